"""Shards behind real servers: nginx, and an S3 that speaks over a socket."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from foreload import transforms
from foreload.errors import DecodeError
from foreload.remote.fetch import Fetch
from tests.remote.web_server import COUNT, SHARDS, loaders, noise, right, same, samples, samples_of, write_shard

pytest.importorskip("obstore")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_nginx(folder: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "nginx.conf").write_text(
        f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/log; events {{}}\n"
        f"http {{ access_log off; client_body_temp_path {tmp_path}; proxy_temp_path {tmp_path};\n"
        f"fastcgi_temp_path {tmp_path}; uwsgi_temp_path {tmp_path}; scgi_temp_path {tmp_path};\n"
        f"server {{ listen 127.0.0.1:{port}; root {folder}; }} }}\n"
    )
    os.chmod(folder, 0o755)
    server = subprocess.Popen(
        ["nginx", "-c", str(tmp_path / "nginx.conf"), "-g", f"user {os.environ.get('USER', 'root')};"]
    )
    try:
        url = f"http://127.0.0.1:{port}/{SHARDS}"
        Fetch().head(url.replace(SHARDS, "s-0.tar"))  # it is tried until the server is there
        assert right(samples(fl.DataLoader(fl.TarDataset(url), 8, shuffle=True)))
        with pytest.raises(FileNotFoundError, match=r"none\.tar"):
            fl.TarDataset(url.replace(SHARDS, "none.tar"))
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture(scope="module")
def bucket(folder: Path, pictures: Path) -> Iterator[dict[str, Any]]:
    """An S3 that speaks over a socket, with the shards below two prefixes of a bucket."""
    moto = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    server = moto.ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"access_key_id": "me", "secret_access_key": "secret", "region": "us-east-1"}
    endpoint = f"http://{host}:{port}"
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="me",
        aws_secret_access_key="secret",
    )
    client.create_bucket(Bucket="data")
    for path in sorted(folder.glob("*.tar")):
        client.put_object(Bucket="data", Key=f"train set/{path.name}", Body=path.read_bytes())
    for path in sorted(pictures.iterdir()):
        client.put_object(Bucket="data", Key=f"pictures/{path.name}", Body=path.read_bytes())
    yield {**keys, "endpoint": endpoint}
    server.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", ["auto", *(pytest.param(way, marks=pytest.mark.slow) for way in ("processes", "stock, forked"))]
)
def test_s3(way: str, bucket: dict[str, Any], pictures: Path) -> None:
    listed = fl.TarDataset("s3://data/train set/", storage=bucket)
    named = fl.TarDataset(f"s3://data/train%20set/{SHARDS}", storage=bucket)
    assert len(listed.shards.paths) == COUNT
    assert right(samples(loaders(way, listed, 8)))
    assert samples_of(named) == samples_of(listed)
    small = transforms.resize((24, 32), normalize=False)
    images = fl.ImageDataset("s3://data/pictures/", transform=small, storage=bucket)
    assert images.classes == [f"class_{i}" for i in range(4)]
    assert same(loaders(way, images, 8), loaders(way, fl.ImageDataset(pictures, transform=small), 8))


@pytest.mark.slow
def test_s3_errors(bucket: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match=r"no \*\.tar below 's3://data/nothing/'"):
        fl.TarDataset("s3://data/nothing/", storage=bucket)
    for url in ("s3://data/none.tar", "s3://nobody/a.tar"):
        with pytest.raises(FileNotFoundError, match=url):
            fl.TarDataset(url, storage=bucket)
    with pytest.raises(OSError, match=r"again and again.*can be reached"):
        fl.TarDataset("s3://data/none.tar", storage=bucket | {"endpoint": "http://127.0.0.1:9"})


@pytest.mark.slow
def test_an_object_that_is_replaced(bucket: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    boto3 = pytest.importorskip("boto3")
    client = boto3.client(
        "s3",
        endpoint_url=bucket["endpoint"],
        region_name="us-east-1",
        aws_access_key_id="me",
        aws_secret_access_key="secret",
    )
    client.put_object(Bucket="data", Key="own/a.tar", Body=(folder / "s-0.tar").read_bytes())
    dataset = fl.TarDataset("s3://data/own/a.tar", storage=bucket)
    stream = iter(fl.TarStream("s3://data/own/a.tar", storage=bucket, shuffle=False))
    assert dataset[3] == samples_of(fl.TarDataset(folder / "s-0.tar"))[3]
    other = write_shard(tmp_path / "a.tar", [noise(number + 1, 3000) for number in range(30)])
    client.put_object(Bucket="data", Key="own/a.tar", Body=other.read_bytes())
    with pytest.raises(DecodeError, match=r"s3://data/own/a\.tar: .*was replaced"):
        dataset[3]
    assert next(stream)["bin"] == noise(1, 3000)  # it is opened when it is read
    assert list(fl.TarDataset("s3://data/own/a.tar", storage=bucket)) == list(fl.TarDataset(other))
