"""The scripts of examples/, run as a reader runs them; tests/cli/test_examples.py runs examples/profiling."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from tests.conftest import jpeg, photo
from tests.programs import Program, python

EXAMPLES = Path(__file__).parents[1] / "examples"
# (Some train for half a minute on a quiet machine.)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(620)]


def run(script: str, *arguments: Any) -> str:
    ended = python(EXAMPLES / script, *arguments, timeout=600)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_images_are_learned_as_well_as_with_torchs_loader(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    said = run("images/train.py", tmp_path, "--images", 600, "--epochs", 2, "--seeds", 3, "--json", found)
    assert re.search(r"foreload +accuracy .* s for 2 epochs", said)
    figures = json.loads(found.read_text())
    means = {name: sum(of["accuracy"]) / 3 for name, of in figures.items()}
    assert all(seconds > 0 for of in figures.values() for seconds in of["seconds"])
    assert means["foreload"] > 0.9, figures
    assert abs(means["foreload"] - means["torch"]) < 0.05, figures


def test_text(tmp_path: Path) -> None:
    accuracy = re.search(
        r"accuracy ([\d.]+) on 400 of 2000 texts", run("text/train.py", tmp_path / "reviews.jsonl")
    )
    assert accuracy is not None
    assert float(accuracy[1]) > 0.9


def test_hdf5(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    errors = re.findall(r"mean squared error ([\d.]+)", run("hdf5/train.py", tmp_path / "rows.h5"))
    assert len(errors) == 3
    assert float(errors[-1]) < 0.05 < float(errors[0])


def test_the_optimal_cache_on_a_dataset_of_ones_own() -> None:
    said = run("cache/own_dataset.py", "--samples", 400, "--keep", 120, "--epochs", 3)
    loads = {name: int(count) for name, count in re.findall(r"^(.+?) +(\d+) loads of 1200", said, re.MULTILINE)}
    assert loads["no cache"] == 1200
    assert loads["OPTCache"] < loads["LRU"] < 1200
    assert "the same samples each time" in said


def test_a_run_goes_on_after_ctrl_c(tmp_path: Path) -> None:
    command = [EXAMPLES / "resume" / "train.py", tmp_path, "--samples", 400, "--epochs", 2]
    record = tmp_path / "trained.jsonl"
    running = Program(*command, stdout=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 300
        while not record.exists() or record.read_text().count("\n") < 5:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=300)
    finally:
        running.kill()
    assert "interrupted" in said
    assert "going on in epoch 0" in run(
        "resume/train.py", tmp_path, "--samples", 400, "--epochs", 2, "--step-ms", 0
    )
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    for epoch in range(2):
        trained = [index for at, indices in lines if at == epoch for index in indices]
        assert sorted(trained) == list(range(400))


def test_lightning(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    assert "140 samples, then 260: each once: True" in run("frameworks/with_lightning.py", tmp_path)


def test_accelerate() -> None:
    pytest.importorskip("accelerate")
    assert "4000 samples on this process" in run("frameworks/with_accelerate.py")


def test_trainer(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    said = run("frameworks/with_trainer.py", tmp_path)
    assert "the loader: foreload.loader" in said
    assert "200 steps" in said


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[str]:
    """A server like S3, with packed photos in a bucket; yields its address."""
    server_module = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    pytest.importorskip("obstore")
    folder(tmp_path / "photos", 12)
    fl.pack(tmp_path / "photos", tmp_path / "packed")
    server = server_module.ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=endpoint, **keys)
    client.create_bucket(Bucket="photos")
    for path in (tmp_path / "packed").iterdir():
        client.upload_file(str(path), "photos", f"packed/{path.name}")
    yield endpoint
    server.stop()


def test_shards_from_a_bucket(bucket: str, tmp_path: Path) -> None:
    options = [f"endpoint={bucket}", "access_key_id=a", "secret_access_key=b", "region=us-east-1"]
    given = [word for option in options for word in ("--option", option)]
    said = run("bucket/train.py", "s3://photos/packed/", "--spill", tmp_path / "spilled", *given)
    assert re.findall(r"epoch (\d): (\d+) images", said) == [("0", "12"), ("1", "12")]
    assert "hit rate 0.50, 0 images left out" in said


def folder(root: Path, count: int) -> None:
    for number in range(count):
        path = root / "ab"[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(photo(100, 80, number)))


def test_the_imagenet_recipe(tmp_path: Path) -> None:
    folder(tmp_path / "train", 20)
    folder(tmp_path / "val", 10)
    common = (tmp_path, "--arch", "small", "--batch-size", 4, "--size", 32, "--lr", 0.01)
    out = tmp_path / "checkpoint.pth.tar"
    said = run("imagenet/main.py", *common, "--epochs", 2, "--cache", "16MiB", "--out", out)
    assert said.count("* Acc@1") == 2
    assert "best accuracy" in said
    more = run("imagenet/main.py", *common, "--epochs", 3, "--resume", out, "--out", out)
    assert "Epoch [2][0/5]" in more
    assert "Epoch [1]" not in more


def test_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(EXAMPLES / "start" / "start.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)  # kept without: they would go stale
    small = notebook.cells[1]
    assert "IMAGES = 400" in small.source
    small.source = small.source.replace("IMAGES = 400", "IMAGES = 60")
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert any("text/html" in output.get("data", {}) for output in outputs)  # the report
