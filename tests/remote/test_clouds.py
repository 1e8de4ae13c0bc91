"""Shards at Google's and Azure's, as their own protocols have them: the same samples as from files."""

from __future__ import annotations

import base64
import datetime
import gzip
import hashlib
import hmac
import io
import json
import shutil
import socket
import subprocess
import tarfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import foreload as fl

pytestmark = pytest.mark.slow

obstore = pytest.importorskip("obstore")

ACCOUNT = "devstoreaccount1"  # azurite's, with its well-known key
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
COUNT, EACH = 3, 20


class Cloud(NamedTuple):
    """A bucket called "cloud", and how to come to it."""

    scheme: str
    storage: dict[str, Any]
    store: Any


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def google() -> Iterator[Cloud]:
    """Google's XML interface is that of S3, save for the signature.

    (gcp-storage-emulator answers neither HEAD nor with the dates that obstore needs.)
    """
    moto = pytest.importorskip("moto.moto_server.werkzeug_app", reason="moto is not installed")
    serving = pytest.importorskip("werkzeug.serving")
    backend = moto.DomainDispatcherApplication(moto.create_backend_app)

    def signed(environ: dict[str, Any], start: Any) -> Any:
        credential = "Credential=me/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
        return backend(environ | {"HTTP_AUTHORIZATION": f"AWS4-HMAC-SHA256 {credential}"}, start)

    server = serving.make_server("127.0.0.1", 0, signed, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    urllib.request.urlopen(urllib.request.Request(f"{url}/cloud", method="PUT")).close()
    account = {"gcs_base_url": url, "disable_oauth": True, "client_email": "", "private_key": ""}
    storage = {"service_account_key": json.dumps(account | {"private_key_id": ""})}
    store = obstore.store.GCSStore("cloud", client_options={"allow_http": True}, **storage)
    yield Cloud("gs", storage, store)
    server.shutdown()


@pytest.fixture(scope="module")
def azure() -> Iterator[Cloud]:
    command = shutil.which("azurite-blob")
    if command is None:
        pytest.skip("azurite-blob is not on the path: npm install -g azurite")
    port = free_port()
    arguments = ["--blobPort", str(port), "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
    server = subprocess.Popen([command, *arguments], stdout=subprocess.DEVNULL)
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    try:
        make_container(endpoint)
        keys = {"account_name": ACCOUNT, "account_key": KEY, "endpoint": endpoint}
        store = obstore.store.AzureStore("cloud", client_options={"allow_http": True}, **keys)
        yield Cloud("az", keys, store)
    finally:
        server.terminate()
        server.wait(10)


def make_container(endpoint: str) -> None:
    """Make the container "cloud" when the server listens; obstore makes none."""
    date = datetime.datetime.now(datetime.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
    named = "".join(f"{name}:{value}\n" for name, value in headers.items())
    text = "PUT" + "\n" * 12 + f"{named}/{ACCOUNT}/{ACCOUNT}/cloud\nrestype:container"
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()
    headers |= {"Authorization": f"SharedKey {ACCOUNT}:{signature}", "Content-Length": "0"}
    request = urllib.request.Request(f"{endpoint}/cloud?restype=container", method="PUT", headers=headers)
    for _ in range(300):
        with suppress(ConnectionError, urllib.error.URLError):
            with urllib.request.urlopen(request) as answer:
                assert answer.status == 201
            return
        time.sleep(0.1)
    raise TimeoutError("azurite does not listen")


@pytest.fixture(scope="module", params=["google", "azure"])
def cloud(request: pytest.FixtureRequest, folder: Path) -> Cloud:
    found: Cloud = request.getfixturevalue(request.param)
    for path in sorted(folder.iterdir()):
        obstore.put(found.store, f"train set/{path.name}", path.read_bytes())
        obstore.put(found.store, f"zipped/{path.name}.gz", gzip.compress(path.read_bytes()))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards whose samples say which they are."""
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(COUNT):
        with tarfile.open(folder / f"train-{shard}.tar", "w") as tar:
            for number in range(shard * EACH, (shard + 1) * EACH):
                member = tarfile.TarInfo(f"{number:05}.bin")
                content = bytes([number % 251]) * (number * 7)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return folder


def batches(dataset: Any) -> list[Any]:
    return list(fl.DataLoader(dataset, batch_size=8, shuffle=True, seed=3, num_workers=2, collate_fn=list))


def test_shards(cloud: Cloud, folder: Path) -> None:
    expected = batches(fl.TarDataset(folder))
    for shards in ("train set/", "train%20set/train-{0..2}.tar"):
        assert batches(fl.TarDataset(f"{cloud.scheme}://cloud/{shards}", storage=cloud.storage)) == expected


@pytest.mark.parametrize("folder_name", ["train set/", "zipped/"])
def test_stream(folder_name: str, cloud: Cloud, folder: Path) -> None:
    """Streams, too, take all shards below a URL, compressed or not."""
    found = list(fl.TarStream(f"{cloud.scheme}://cloud/{folder_name}", storage=cloud.storage, shuffle=False))
    assert found == list(fl.TarStream(folder, shuffle=False))


@pytest.mark.parametrize("kind", [fl.TarDataset, fl.TarStream])
def test_what_is_not_there(kind: Any, cloud: Cloud) -> None:
    for bucket in ("cloud/none/", "nobody/"):
        url = f"{cloud.scheme}://{bucket}"
        with pytest.raises(FileNotFoundError, match=url):
            kind(url, storage=cloud.storage)
    for url in (f"{cloud.scheme}://cloud/none.tar", f"{cloud.scheme}://nobody/a.tar"):
        with pytest.raises(FileNotFoundError, match=url):
            list(iter(kind(url, storage=cloud.storage)))


def test_wrong_key(azure: Cloud) -> None:
    wrong = azure.storage | {"account_key": base64.b64encode(b"another").decode()}
    with pytest.raises(PermissionError, match=r"credentials.*az://cloud/"):
        fl.TarDataset("az://cloud/train.tar", storage=wrong)
