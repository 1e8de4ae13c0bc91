"""The logic of benchmarks/gpu.py, with a GPU whose clock is simulated."""

from __future__ import annotations

import importlib
import itertools
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.decoders import ByPillow
from tests.fake_device import FakeDevice

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


class FakeGpu:
    """A GPU that copies 10 GB/s from page-locked memory and 2 GB/s from other memory, and knows no other work."""

    device = torch.device("cpu")
    name = "simulated"

    def __init__(self, event_seconds: float = 0.0) -> None:
        self.now = 0.0
        self.waits = 0
        self._event_seconds = event_seconds
        self._pinned: dict[int, torch.Tensor] = {}  # by address, which no other memory may get

    def event(self) -> float:
        self.now += self._event_seconds
        return self.now

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def synchronize(self) -> None:
        self.waits += 1

    def host_memory(self, size: int, *, pin: bool) -> torch.Tensor:
        memory = torch.zeros(size, dtype=torch.uint8)
        if pin:
            self._pinned[memory.data_ptr()] = memory
        return memory

    def copy(self, host: torch.Tensor) -> torch.Tensor:
        self.now += host.nbytes / (10e9 if host.data_ptr() in self._pinned else 2e9)
        return host


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("gpu")
    common: Any = importlib.import_module("common")
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    device = FakeDevice()
    for name in ("foreload.loader", "foreload.device.prefetch"):
        monkeypatch.setattr(f"{name}.side_stream", lambda where, *, non_blocking=True: device)
    return module


def content(gpu: Any, tmp_path: Path, record: Any) -> tuple[dict[str, float], dict[str, Any]]:
    record.write()
    written = json.loads((tmp_path / "gpu.json").read_text())
    return {each["what"]: each["reached"] for each in written["verdicts"]}, written["samples"]


def test_it_says_that_there_is_no_gpu(gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu.py"])
    with pytest.raises(SystemExit, match="torch finds none: nothing was measured"):
        gpu.main()
    assert not list(tmp_path.iterdir())


def test_copies_are_held_against_the_bus(gpu: Any, tmp_path: Path) -> None:
    fake = FakeGpu()
    assert gpu.rate(fake, fake.host_memory(1 << 20, pin=True)) == pytest.approx(10)
    assert gpu.rate(fake, fake.host_memory(1 << 20, pin=False)) == pytest.approx(2)
    record = gpu.Record("gpu")
    gpu.measure_copies(fake, record, 3, size=1 << 20)
    verdicts, samples = content(gpu, tmp_path, record)
    # Each of four batches of a MiB takes the simulated device a quarter of a second.
    delivered = (1 << 20) / 0.25 / 1e9
    assert samples["copies of device="]["all"] == pytest.approx([delivered] * 3)
    assert samples["copies, ordinary"]["median"] == pytest.approx(2)
    assert verdicts == {"copies of device=, of the bus": pytest.approx(delivered / 10)}


def test_the_idle_share_is_the_time_between_steps(gpu: Any) -> None:
    fake = FakeGpu()

    def batches() -> Iterator[int]:
        for number in range(100):
            fake.now += 0.5 if number == 0 else 0.002
            yield number

    def step(batch: int) -> None:
        fake.now += 0.3 if batch == 0 else 0.008

    made = gpu.loop(fake, batches(), step, 11)
    assert made.seconds == pytest.approx(0.010)
    assert made.idle == pytest.approx(0.2)
    assert made.first < 0.5  # by the real clock
    assert fake.waits == 2  # after the first step, and in the end
    with pytest.raises(ValueError, match="a pass needs two steps, and there were batches for 1"):
        gpu.loop(fake, [0], step, 11)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_loaders_are_compared_with_work_as_long_as_a_copy(gpu: Any, tmp_path: Path) -> None:
    fake = FakeGpu(event_seconds=1e-3)
    record = gpu.Record("gpu")
    gpu.measure_overlap(fake, record, 2, size=1 << 16, steps=4, workers=0, side=8)
    verdicts, samples = content(gpu, tmp_path, record)
    assert set(verdicts) == {
        "PrefetchLoader over stock, against stock",
        "PrefetchLoader over stock, pinned, against stock, pinned",
    }
    # The loop's own copies take (65,536 bytes / 2 GB/s) per step; what PrefetchLoader copies is not in its time.
    assert samples["stock"]["median"] - samples["PrefetchLoader over stock"]["median"] == pytest.approx(0.032768)


def test_training_is_measured_without_the_first_round(gpu: Any, tmp_path: Path) -> None:
    fake = FakeGpu()
    passes = iter(range(100))

    def batches() -> Iterator[float]:
        wait = 1.0 if next(passes) == 0 else 0.001
        while True:
            fake.now += wait
            yield wait

    def step(batch: Any) -> None:
        fake.now += 0.099

    record = gpu.Record("gpu")
    there = {gpu.THERE: lambda: itertools.repeat(0.0)}
    gpu.measure_training(fake, record, 3, {**there, "synthetic": batches}, step, steps=5)
    verdicts, samples = content(gpu, tmp_path, record)
    assert samples["synthetic"]["median"] == pytest.approx(100)
    assert samples["synthetic: idle"]["all"] == pytest.approx([1, 1, 1])
    assert samples[f"{gpu.THERE}: idle"]["all"] == [0, 0, 0]
    assert verdicts["synthetic: step, against one batch on the GPU"] == pytest.approx(100 / 99)
    assert verdicts["synthetic: GPU idle, %"] == pytest.approx(1)
    assert verdicts["synthetic: first step, s"] == statistics.median(samples["synthetic: first step"]["all"])


def test_decoders_are_compared_with_the_cpu(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, photos: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu, "BATCH", 8)
    monkeypatch.setattr("foreload.loader.side_stream", lambda where, *, non_blocking=True: None)
    record = gpu.Record("gpu")
    decoder = ByPillow()
    gpu.measure_decoding(FakeGpu(1e-3), record, 2, photos, {"cpu": "cpu", "pillow": decoder}, steps=7)
    verdicts, samples = content(gpu, tmp_path, record)
    assert sum(decoder.counts) >= 3 * 7 * 8  # more than an epoch, three times
    # The simulated clock knows only that a step takes two events.
    assert samples["JPEGs by cpu"]["all"] == pytest.approx([8 / 2e-3] * 2)
    assert verdicts == {"JPEGs decoded on the GPU by pillow, against the CPU": pytest.approx(1)}


def test_decoders_that_do_not_decode_are_left_out(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def named(name: str) -> Any:
        if name == "torchvision":
            raise AttributeError("module 'torchvision.version' has no attribute 'cuda'")
        return ByPillow() if name == "nvimagecodec" else SimpleNamespace(decode=lambda files, device: [None])

    monkeypatch.setattr(gpu, "decoder_named", named)
    assert gpu.decoders(FakeGpu(), next(photos.glob("**/*.jpg"))) == {"nvimagecodec": "nvimagecodec"}
    assert "torchvision is left out: module" in capsys.readouterr().out


def test_what_was_measured_is_kept_when_something_fails(gpu: Any, tmp_path: Path) -> None:
    record = gpu.Record("gpu")

    def fail() -> None:
        raise OSError("no shared memory")

    parts = {"first": lambda: record.samples({"a": [1.0]}, "s"), "second": fail, "third": lambda: None}
    with pytest.raises(SystemExit, match=r"gpu\.py could not measure second"):
        gpu.measure_all(record, parts)
    written = json.loads((tmp_path / "gpu.json").read_text())
    assert written["samples"]["a"]["all"] == [1.0]
    assert written["failed"] == {"second": "OSError: no shared memory"}


@pytest.mark.slow  # torch imports its decompositions
def test_the_model_is_resnet_50(gpu: Any) -> None:
    with torch.device("meta"):
        model = gpu.resnet50()
        assert sum(each.numel() for each in model.parameters()) == 25_557_032
        assert model(torch.zeros(2, 3, 224, 224)).shape == (2, 1000)


def test_its_loaders_give_batches_to_train_on(gpu: Any, monkeypatch: pytest.MonkeyPatch, photos: Path) -> None:
    monkeypatch.setattr(gpu, "images", lambda count: photos)
    monkeypatch.setattr(gpu, "BATCH", 4)
    for module in ("foreload.loader", "foreload.device.prefetch"):
        monkeypatch.setattr(f"{module}.side_stream", lambda where, *, non_blocking=True: None)
    for source in gpu.sources_of(FakeGpu(), 40).values():
        images, labels = next(iter(source()))
        assert (images.shape, images.dtype) == ((4, 3, 224, 224), torch.bfloat16)
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert labels.dtype is torch.int64
