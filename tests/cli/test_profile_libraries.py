"""``foreload profile`` on loaders of DALI, FFCV and others that subclass torch's.

NVIDIA DALI is not installed here. What stands for it has the modules, the classes and the order of calls of DALI
1.4x (``nvidia/dali/plugin/base_iterator.py`` and ``plugin/pytorch/__init__.py``), and sleeps instead of decoding.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foreload.cli.profile import profile
from tests.cli.test_profile_loops import the_loop, write

BASE_ITERATOR = """
class _DaliBaseIterator:
    def __init__(self, pipelines, size=-1, auto_reset=False, prepare_first_batch=True):
        self._pipes = pipelines if isinstance(pipelines, list) else [pipelines]
        self._num_gpus = len(self._pipes)
        self.batch_size = self._pipes[0].max_batch_size
        self._size, self._counter, self._auto_reset = size, 0, auto_reset
        self._prepare_first_batch = prepare_first_batch
    def _get_outputs(self):
        if self._counter >= self._size:
            if self._auto_reset:
                self.reset()
            raise StopIteration
        return [pipe.run() for pipe in self._pipes]
    def reset(self):
        self._counter = 0
    def next(self):
        return self.__next__()
    def __next__(self):
        raise NotImplementedError
    def __iter__(self):
        return self
    def __len__(self):
        return -(-self._size // self.batch_size)
"""
PYTORCH = """
import torch
from nvidia.dali.plugin.base_iterator import _DaliBaseIterator
class DALIGenericIterator(_DaliBaseIterator):
    def __init__(self, pipelines, output_map, size=-1, auto_reset=False, prepare_first_batch=True):
        self.output_map = output_map
        _DaliBaseIterator.__init__(self, pipelines, size, auto_reset, prepare_first_batch)
        self._first_batch = None
        if self._prepare_first_batch:
            self._first_batch = DALIGenericIterator.__next__(self)
    def __next__(self):
        if self._first_batch is not None:
            batch, self._first_batch = self._first_batch, None
            return batch
        outputs = self._get_outputs()
        batches = [dict(zip(self.output_map, output)) for output in outputs]
        self._counter += self._num_gpus * self.batch_size
        return batches
class DALIClassificationIterator(DALIGenericIterator):
    def __init__(self, pipelines, size=-1, auto_reset=False, prepare_first_batch=True):
        super().__init__(pipelines, ["data", "label"], size, auto_reset, prepare_first_batch)
"""
DALI_SCRIPT = """
import sys, time, torch
from nvidia.dali.plugin.pytorch import DALIClassificationIterator
class Pipeline:
    max_batch_size = 8
    def run(self):
        if float(sys.argv[1]):  # a sleep of no time gives the core away, for milliseconds on a busy machine
            time.sleep(float(sys.argv[1]))
        return torch.zeros(8, 3, 4, 4), torch.zeros(8, 1)
loader = DALIClassificationIterator([Pipeline(), Pipeline()], size=800, auto_reset=True)
for epoch in range(2):
    for number, data in enumerate(loader):
        images = data[0]["data"]
        time.sleep(float(sys.argv[2]))
    assert number == 49, number
    time.sleep(0.2)
assert type(loader).__next__.__qualname__ == "DALIGenericIterator.__next__"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("load", "work", "kind"), [("0.006", "0.001", "loader-bound"), ("0", "0.04", "consumer-bound")]
)
def test_dali_is_timed(
    load: str,
    work: str,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(tmp_path, "", "nvidia/dali/__init__.py")
    write(tmp_path, BASE_ITERATOR, "nvidia/dali/plugin/base_iterator.py")
    write(tmp_path, PYTORCH, "nvidia/dali/plugin/pytorch/__init__.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = profile(write(tmp_path, DALI_SCRIPT), [load, work], trace=True)
    assert found.code == 0
    title, stats, report = the_loop(found)
    assert title == "nvidia: DALIClassificationIterator(batch_size=8) iterated at train.py:12"
    # The batch that the constructor makes is delivered by the loop's first call, and counted once.
    assert (stats["epochs"], stats["batches"], stats["samples"]) == (2, 100, 1600)
    assert stats["wait_seconds"] + stats["loop_seconds"] == pytest.approx(stats["seconds"], rel=0.01)
    assert stats["loop_seconds"] >= 98 * float(work)
    assert stats["wait_seconds"] >= 98 * 2 * float(load)
    assert report.verdict.kind == kind
    assert len(found.loaders[0].spans) == 100
    found.show()
    shown = " ".join(capsys.readouterr().out.split())
    assert "decoding" not in shown.replace("reading, decoding and collating apart", "")
    assert ("num_threads" in shown) == (kind == "loader-bound")
    found.write_trace(tmp_path / "trace.json")
    assert (
        sum(e.get("name") == "wait" for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"])
        == 100
    )


FFCV = """
import time, torch
from threading import Thread
class EpochIterator(Thread):
    def __init__(self, loader, order):
        super().__init__(daemon=True)
        self.loader, self.left = loader, len(order)
    def __next__(self):
        if not self.left: raise StopIteration()
        self.left -= 1
        time.sleep(0.006)
        return torch.zeros(4, 3), torch.zeros(4)
    def __iter__(self): return self
"""
FFCV_SCRIPT = """
import time
from ffcv.loader.epoch_iterator import EpochIterator
class Loader:
    def __iter__(self): return EpochIterator(self, range(50))
loader = Loader()
for epoch in range(2):
    for images, labels in loader: time.sleep(0.001)
"""


@pytest.mark.slow
def test_ffcv_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ffcv/__init__.py", "ffcv/loader/__init__.py"):
        write(tmp_path, "", name)
    write(tmp_path, FFCV, "ffcv/loader/epoch_iterator.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    title, stats, report = the_loop(profile(write(tmp_path, FFCV_SCRIPT)))
    assert title == "ffcv: EpochIterator() iterated at train.py:8"
    assert (stats["epochs"], stats["batches"], stats["samples"]) == (2, 100, 400)
    assert report.verdict.kind == "loader-bound"
    assert "batches_ahead" in report.verdict.advice[0].change


SUBCLASS = """
import torch
from torch.utils.data import DataLoader
class StreamingDataLoader(DataLoader):  # as MosaicML's and LitData's
    def __iter__(self):
        for batch in super().__iter__():
            yield batch
for batch in StreamingDataLoader(torch.arange(40), batch_size=4): pass
"""


@pytest.mark.slow
def test_a_subclass_of_torchs_loader_is_reported_in_full(tmp_path: Path) -> None:
    (loader,) = profile(write(tmp_path, SUBCLASS)).loaders
    assert loader.title.startswith("StreamingDataLoader(Tensor, batch_size=4")
    assert (loader.stats["batches"], loader.stats["stages"]["sample"]["samples"]) == (10, 40)
