"""The scripts of examples/profiling, run as a reader runs them."""

from __future__ import annotations

import io
import json
import runpy
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.programs import python

HERE = Path(__file__).parents[2] / "examples" / "profiling"


def run(script: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    if script.endswith(".py"):
        return python(HERE / script, *arguments)
    return subprocess.run([HERE / script, *map(str, arguments)], capture_output=True, text=True, timeout=300)


def run_here(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
    """Run a script as :func:`run` does, but in this process: another one takes seconds to start."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.syspath_prepend(str(HERE))
        patch.setattr(sys, "argv", command)
        try:
            runpy.run_path(command[0], run_name="__main__")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                err.write(end.code)
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())


def here(script: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    return run_here([str(HERE / script), *map(str, arguments)])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "images"
    made = run("synthetic_dataset.py", folder, "--images", 36)
    assert made.returncode == 0, made.stderr
    assert "36 JPEGs of 640 x 480" in made.stdout
    return folder


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the scripts importable, as they are for one another."""
    monkeypatch.syspath_prepend(str(HERE))


@pytest.mark.slow
def test_images_are_made_once_and_come_from_their_seed(data: Path, tmp_path: Path, scripts: None) -> None:
    import synthetic_dataset

    files = sorted(data.glob("class_*/*.jpg"))
    before = [(file.stat().st_mtime_ns, file.read_bytes()) for file in files]
    synthetic_dataset.make(data, 36)
    assert [(file.stat().st_mtime_ns, file.read_bytes()) for file in files] == before
    synthetic_dataset.make(tmp_path / "again", 36)
    synthetic_dataset.make(tmp_path / "other", 36, seed=1)
    for name, same in (("again", True), ("other", False)):
        contents = [file.read_bytes() for file in sorted((tmp_path / name).glob("class_*/*.jpg"))]
        assert (contents == [content for _, content in before]) == same
    assert Image.open(files[0]).size == (640, 480)
    # One that was interrupted is finished.
    mark = tmp_path / "again" / ".synthetic.json"
    mark.write_text(mark.read_text().replace("true", "false"))
    (tmp_path / "again" / "class_0" / "00000.jpg").unlink()
    synthetic_dataset.make(tmp_path / "again", 36)
    assert (tmp_path / "again" / "class_0" / "00000.jpg").read_bytes() == before[0][1]
    with pytest.raises(FileExistsError, match="other images"):
        synthetic_dataset.make(data, 40)
    with pytest.raises(FileExistsError, match="other files"):
        synthetic_dataset.make(HERE, 40)
    with pytest.raises(ValueError, match="1 class or more"):
        synthetic_dataset.make(tmp_path / "none", 0)


def test_planted_costs_are_paid(data: Path, scripts: None) -> None:
    import time

    from synthetic_dataset import SyntheticImages

    began, cpu = time.perf_counter(), time.thread_time()
    SyntheticImages(data, io_ms=100)[0]
    assert time.perf_counter() - began >= 0.1
    assert time.thread_time() - cpu < 0.1
    cpu = time.thread_time()
    SyntheticImages(data, cpu_ms=100)[0]
    assert time.thread_time() - cpu >= 0.1
    with pytest.raises(ValueError, match="io_ms"):
        SyntheticImages(data, io_ms=-1)
    with pytest.raises(FileNotFoundError, match=r"synthetic_dataset\.py"):
        SyntheticImages(data / "class_0")


def collected(batches: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """All samples of an epoch, in an order that does not depend on that of the loader."""
    images, labels = (
        torch.cat(parts) for parts in zip(*((a.clone(), b.clone()) for a, b in batches), strict=True)
    )
    keys = np.lexsort((images.mean((1, 2, 3)).numpy().round(3), labels.numpy()))
    return images[keys], labels[keys]


@pytest.mark.slow
def test_all_loaders_give_the_same_samples(data: Path, scripts: None) -> None:
    import fast_dataloader
    import one_at_a_time
    import slow_dataloader

    images, labels = collected(slow_dataloader.make_loader(data, 8))
    assert images.shape == (36, 3, 96, 96)
    assert images.dtype == torch.float32
    assert labels.tolist() == sorted(list(range(4)) * 9)
    with fast_dataloader.make_loader(data, 8) as fast:
        epochs = [fast, fast]  # the second one comes from the cache
        others = [*epochs, *(make() for make in one_at_a_time.steps(data, 8).values())]
        for loader in others:
            theirs, their_labels = collected(loader)
            assert torch.equal(labels, their_labels)
            # A step of uint8 is 0.017 to 0.018 of these units.
            assert (images - theirs).abs().mean() < 0.015
            assert (images - theirs).abs().max() < 0.15


@pytest.mark.parametrize(
    ("script", "arguments", "keys"),
    [
        pytest.param("slow_dataloader.py", ("--step-ms", 1), {"epochs"}, marks=pytest.mark.slow),
        ("fast_dataloader.py", ("--step-ms", 1), {"epochs", "cache"}),
        pytest.param(
            "train_with_data.py",
            ("--loader", "fast", "--epochs", 6, "--batch-size", 9),
            {"epochs", "losses"},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "train_with_data.py",
            ("--loader", "slow", "--epochs", 6, "--batch-size", 9),
            {"epochs", "losses"},
            marks=pytest.mark.slow,
        ),
        ("which_cause.py", ("--io-ms", 2, "--cpu-ms", 2, "--workers", 0, 3), {"epochs", "workers"}),
        pytest.param(
            "which_cause.py",
            ("--io-ms", 2, "--workers", 3, "--loader", "foreload"),
            {"epochs", "workers"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_scripts_run_and_report(
    script: str, arguments: tuple[Any, ...], keys: set[str], data: Path, tmp_path: Path
) -> None:
    start = run if script == "slow_dataloader.py" else here
    ended = start(script, data, *arguments, "--json", tmp_path / "report.json")
    assert ended.returncode == 0, ended.stderr
    assert "images/s" in ended.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert set(report) == keys
    for epoch in report["epochs"]:
        assert epoch["samples"] == 36
        assert 0 <= epoch["data_share"] <= 1
        assert 0 <= epoch["idle_share"] <= 1
        assert epoch["samples_per_second"] == pytest.approx(36 / epoch["seconds"])
    if "losses" in keys:
        assert report["losses"][-1] < report["losses"][0]
    if "cache" in keys:
        assert report["cache"]["samples"] == 36


def test_training_with_dali_runs_or_says_what_it_needs(data: Path, tmp_path: Path) -> None:
    ended = here("train_with_dali.py", data, "--epochs", 3, "--batch-size", 10, "--json", tmp_path / "report.json")
    if "needs NVIDIA DALI" in ended.stderr:
        assert ended.returncode == 1
        assert "pip install nvidia-dali" in ended.stderr
        pytest.skip("DALI is not installed")
    assert ended.returncode == 0, ended.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["losses"][-1] < report["losses"][0]
    assert {epoch["samples"] for epoch in report["epochs"]} == {36}


def test_dali_gives_the_same_samples(data: Path, scripts: None) -> None:
    pytest.importorskip("nvidia.dali")
    import slow_dataloader
    import train_with_dali

    images, labels = collected(slow_dataloader.make_loader(data, 8))
    batches = train_with_dali.Batches(data, 10)
    for _ in range(2):
        theirs, their_labels = collected(batches)
        assert torch.equal(labels, their_labels)
        assert (images - theirs).abs().mean() < 0.05


@pytest.mark.parametrize(
    ("script", "arguments", "words"),
    [
        ("slow_dataloader.py", ("{}/nowhere",), "synthetic_dataset.py"),
        ("fast_dataloader.py", ("{}/nowhere",), "synthetic_dataset.py"),
        ("slow_dataloader.py", ("{}", "--epochs", 0), "1 or more"),
        ("fast_dataloader.py", ("{}", "--batch-size", "x"), "1 or more"),
        ("slow_dataloader.py", ("{}", "--step-ms", -1), "0 or more"),
        ("train_with_data.py", ("{}",), "--loader"),
        ("train_with_data.py", ("{}", "--loader", "medium"), "slow"),
        ("which_cause.py", ("{}", "--workers", -1), "0 or more"),
        ("synthetic_dataset.py", ("{}/new", "--images", 0), "1 class or more"),
        ("synthetic_dataset.py", ("{}", "--images", 7), "other images"),
        ("measure.py", (), "name a folder"),
        ("measure.py", ("--render", "--out", "{}"), "measure first"),
        ("profile_dataloader.sh", (), "slow|fast"),
        ("profile_dataloader.sh", ("medium",), "slow|fast"),
    ],
)
def test_wrong_arguments_get_clear_words(script: str, arguments: tuple[Any, ...], words: str, data: Path) -> None:
    start = run if script.endswith(".sh") else here
    ended = start(script, *(str(argument).format(data) for argument in arguments))
    assert ended.returncode == 2
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("which", ["slow", "fast"])
def test_the_pair_is_profiled(which: str, data: Path) -> None:
    ended = run("profile_dataloader.sh", which, data, "--epochs", 2, "--step-ms", 1)
    assert ended.returncode == 0, ended.stderr
    assert "epoch 2: 36 images" in ended.stdout
    assert "nsys" in ended.stdout


@pytest.mark.slow
def test_measuring_writes_the_page_that_its_figures_give(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        # Only the first of several scripts in a process of its own.
        in_process = command[1].endswith(".py") and "slow_dataloader" not in command[1]
        return run_here(command[1:]) if in_process else real(command, **options)

    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", start)
    ended = here("measure.py", data, "--repeats", 1, "--epochs", 1, "--out", tmp_path)
    assert ended.returncode == 0, ended.stderr
    page = (tmp_path / "analysis.md").read_text()
    measured = json.loads((tmp_path / "measured.json").read_text())
    speed = measured["runs"]["slow"]["reports"][0]["epochs"][0]["samples_per_second"]
    assert f"{speed:,.0f}" in page
    (tmp_path / "analysis.md").unlink()
    assert here("measure.py", "--render", "--out", tmp_path).returncode == 0
    assert (tmp_path / "analysis.md").read_text() == page


def test_the_page_that_is_kept_is_of_the_figures_that_are_kept(scripts: None) -> None:
    import measure

    assert (HERE / "analysis.md").read_text() == measure.render(json.loads((HERE / "measured.json").read_text()))
