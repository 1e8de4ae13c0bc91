"""Processes that are not forked have the loop's settings, and those that the script has given to libraries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.programs import python

SET = """
import csv, decimal, functools, json, locale, math, multiprocessing, os, pickle, re, sys, tempfile, warnings
import numpy as np, torch
from torch.utils.data import TensorDataset
from PIL import Image
from foreload.dataset_state.program.libraries import LibraryState, UserNames
from foreload.dataset_state.program.settings import LoopSettings, present_settings

class Mine(UserWarning): pass
class Lazy:
    def __init__(self): self._cache, self.tempdir, self.nan = {}, None, 0  # names that modules have too

def settings():
    return {
        "folder": os.getcwd(), "dtype": str(torch.get_default_dtype()), "gradient": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(), "autocast": torch.is_autocast_enabled("cpu"),
        "precision": decimal.getcontext().prec, "traps": decimal.getcontext().traps[decimal.Inexact],
        "errors": np.geterr(), "recursion": sys.getrecursionlimit(), "field": csv.field_size_limit(),
        "warnings": [kind.__name__ for action, _, kind, _, _ in warnings.filters if action == "error"],
        "locale": locale.setlocale(locale.LC_ALL), "products": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warns only": torch.is_deterministic_algorithms_warn_only_enabled(),
    }
def take_over(sent):
    before = settings()
    values, present = pickle.loads(sent).values, present_settings()
    return before, settings(), [name for name in values if values[name] != present[name]]
def compare(sent):
    differs = pickle.loads(sent).differs()
    from PIL import ImageFile
    return differs, ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    found = {}
    with context.Pool(1) as pool:
        def look(name): found[name] = pool.apply(compare, (pickle.dumps(LibraryState(UserNames())),))
        look("nothing")
        from PIL import ImageFile
        ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS = True, None
        look("constants")
        np.load, load = functools.partial(np.load, allow_pickle=True), np.load
        look("partial")
        np.load = load
        TensorDataset.__getitem__, get = lambda self, index: 0, TensorDataset.__getitem__
        look("method")
        TensorDataset.__getitem__ = get
        import mimetypes, pandas
        mimetypes.types_map[".sample"] = "text/sample"
        look("container")
        del mimetypes.types_map[".sample"]
        look("undone")
        re.sub("first seen here", "", "")
        tempfile.gettempdir()
        look("names")
        sent_to = context.Pool(1)
    os.chdir("/")
    torch.set_default_dtype(torch.float64)
    decimal.getcontext().prec, decimal.getcontext().traps[decimal.Inexact] = 5, True
    np.seterr(all="raise")
    sys.setrecursionlimit(5000)
    csv.field_size_limit(10**6)
    warnings.simplefilter("error", pandas.errors.PerformanceWarning)  # which is not imported there
    warnings.filterwarnings("error", "a.*b", Mine, "module", 3)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_float32_matmul_precision("medium")
    locale.setlocale(locale.LC_ALL, "C.UTF-8" if locale.setlocale(locale.LC_ALL) == "C" else "C")
    with sent_to as pool, torch.autocast("cpu"), torch.inference_mode():
        there = pool.apply(take_over, (pickle.dumps(LoopSettings()),))
        json.dump([found, *there, settings()], sys.stdout)
"""


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_settings_are_taken_over_or_found_to_differ(method: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SET)
    done = python(tmp_path / "script.py", method, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found, before, there, lacks, here = json.loads(done.stdout)
    assert [name for name in here if before[name] == here[name]] == []
    assert there == here
    assert lacks == []
    elsewhere = [name for name, (differs, *_) in found.items() if differs is None]
    assert elsewhere == ["nothing", "constants", "undone", "names"]
    assert found["nothing"][1:] != found["constants"][1:] == [True, None]
    differing = {name: differs for name, (differs, *_) in found.items() if differs}
    assert differing == {
        "partial": "numpy.load",
        "method": "torch.utils.data.TensorDataset.__getitem__",
        "container": "mimetypes.types_map",
    }


EPOCH = """
import json, os, sys, time, warnings
import torch, foreload as fl
from foreload.tune import choose
from foreload.tune.candidates import Measurement

# What the measurement says, for which a busy machine has too little time.
choose.measure_workers = lambda *_: Measurement({("threads", 0): 25.0, ("processes", 2): 50.0}, [], 0.0, "")

SCALE, MODE = 1, []

class Slow(torch.utils.data.Dataset):
    def __init__(self): self.items = torch.arange(100_000)
    def __len__(self): return 100_000
    def __getitem__(self, index):
        time.sleep(0.05)
        return self.items[index] * SCALE, torch.is_grad_enabled()

def set_up(worker): assert MODE == ["imported"], MODE

MODE.append("imported")

if __name__ == "__main__":
    SCALE, init = int(sys.argv[2]), set_up if sys.argv[3] == "init" else None
    loader = fl.DataLoader(Slow(), batch_size=2, multiprocessing_context=sys.argv[1], worker_init_fn=init)
    with torch.no_grad(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        batches = iter(loader)
        found = [[part.tolist() for part in next(batches)] for _ in range(3)]
        batches.close()
    json.dump([found, loader.stats()["workers"], [str(each.message) for each in said]], sys.stdout)
"""


def _epoch(folder: Path, *arguments: str) -> list[object]:
    (folder / "script.py").write_text(EPOCH)
    done = python(folder / "script.py", *arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    found: list[object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_processes_load_in_the_loops_modes_and_tensors_may_move(method: str, tmp_path: Path) -> None:
    found, workers, said = _epoch(tmp_path, method, "1", "none")
    assert found == [[[first, first + 1], [False, False]] for first in (0, 2, 4)]
    assert (workers["kind"], workers["tuning"]) == ("processes", []), workers  # type: ignore[index]
    assert [text for text in said if "worker" in text] == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("scale", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_what_workers_with_an_init_function_lack_is_warned_of(scale: int, tmp_path: Path) -> None:
    _, workers, said = _epoch(tmp_path, "spawn", str(scale), "init")
    assert workers["kind"] == "processes"  # type: ignore[index]
    lacks = [text for text in said if "worker_init_fn is for them" in text]  # type: ignore[attr-defined]
    assert len(lacks) == (scale != 1)
    assert all("the code of Slow, or a variable that it uses, is not" in text for text in lacks)
