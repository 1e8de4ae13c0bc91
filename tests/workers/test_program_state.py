"""Processes that are not forked lack what the program has set since its modules were imported.

Nobody may see from the samples that the loader has chosen such processes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.programs import python

HELPER = """
size = 1
def load(index): return index
class Kept: number = 1
"""

ELSEWHERE = "is not what it is here in a process that is not forked"

LOOKS = """
import functools, json, logging, multiprocessing, os, pickle, sys
import helper, torch
from foreload.dataset_state.copied import CopiedState

SCALE = 1
LABELS = ["a", "b"]
KEPT = helper.Kept()
LOGGER = logging.getLogger(__name__)
LATER, MORE = (lambda index: index), (lambda index: index + 1)

class Same:
    sizes = (1, 2)
    def __init__(self, size=(1, 2), split="train"): self.size, self.split, self.labels = size, split, LABELS
    def __getitem__(self, index): return index if self.split == "train" else LABELS[index], Same.sizes
class SameNames:
    def __init__(self): self.data = [1, 2]
    def __getitem__(self, index): return self.data[index]
class SameLogger:
    def __getitem__(self, index): LOGGER.debug(__name__); return index
class SameText:
    split = "train set"
    def __getitem__(self, index): return SameText.split, "train set"
class SameFunctions:
    def __getitem__(self, index): return LATER(MORE(index))
class Variable:
    def __getitem__(self, index): return index * SCALE
class Attribute:
    factor = 1
    def __getitem__(self, index): return index * self.factor
class Inherits(Attribute): pass
class Replaced:
    def __getitem__(self, index): return index
class Module:
    def __getitem__(self, index): return index * helper.size
class Function:
    def __getitem__(self, index): return helper.load(index)
class Object:
    def __getitem__(self, index): return index * KEPT.number
class Holds:
    def __init__(self): self.inner = [Variable()]
    def __getitem__(self, index): return self.inner[0][index]
class Under:
    def __getitem__(self, index): return index * SET_LATER

def transform(sample): return sample * SCALE
def look(held): return [[name, each.differs] for name, each in pickle.loads(held)]

if __name__ == "__main__":
    data = [3]
    SameText.split = "".join(["train", " set"])
    SCALE = 2
    SET_LATER = 1
    Attribute.factor = 2
    Replaced.__getitem__ = lambda self, index: index + 1
    helper.size = 2
    helper.load = lambda index: index + 1
    KEPT.number = 2
    kinds = [Same, SameNames, SameLogger, SameText, SameFunctions]
    kinds += [Variable, Attribute, Inherits, Replaced, Module, Function, Object, Holds, Under]
    parts = {kind.__name__: (kind(),) for kind in kinds}
    parts |= {"transform": (Same(), transform), "partial": (Same(), functools.partial(transform))}
    found = []
    def show(looked):  # pickled in this thread, whose settings count
        held = pickle.dumps([(name, CopiedState(*part)) for name, part in looked.items()])
        found.extend(pool.apply(look, (held,)))
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        show(parts)
        with torch.no_grad(): show({"gradient mode": (Same(),)})
        torch.set_default_dtype(torch.float64)
        show({"dtype": (Same(),)})
        torch.set_default_dtype(torch.float32)
        os.chdir("/")
        show({"folder": (Same(),)})
    json.dump(found, sys.stdout)
"""


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_what_differs_in_another_process_is_found(method: str, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "script.py").write_text(LOOKS)
    done = python(tmp_path / "script.py", method, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = dict(json.loads(done.stdout))
    for name in [name for name in found if name.startswith("Same")]:
        assert found.pop(name) is None, name
    assert found.pop("gradient mode") == f"torch's gradient mode {ELSEWHERE}"
    assert found.pop("dtype") == f"torch's default dtype {ELSEWHERE}"
    assert found.pop("folder") == f"the current directory {ELSEWHERE}"
    for name, differs in found.items():
        code = "transform" if name == "partial" else name
        assert differs == f"the code of {code}, or a variable that it uses, {ELSEWHERE}", name
    assert len(found) == 11


EPOCH = """
import json, sys, time
import torch, foreload as fl
from foreload.tune import choose
from foreload.tune.candidates import Measurement

# What the measurement says, for which a busy machine has too little time.
choose.measure_workers = lambda *_: Measurement({("threads", 0): 25.0, ("processes", 2): 50.0}, [], 0.0, "")

SCALE = 1

class Slow(torch.utils.data.Dataset):
    def __len__(self): return 100_000
    def __getitem__(self, index):
        time.sleep(0.05)  # as a whole, long enough for processes to pay
        return index * SCALE

if __name__ == "__main__":
    SCALE = int(sys.argv[2])
    loader = fl.DataLoader(Slow(), batch_size=2, multiprocessing_context=sys.argv[1])
    batches = iter(loader)
    found = [next(batches).tolist() for _ in range(3)]
    batches.close()
    json.dump([found, loader.stats()["workers"]], sys.stdout)
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("method", "scale"),
    [
        ("spawn", 3),
        pytest.param("forkserver", 3, marks=pytest.mark.slow),
        pytest.param("spawn", 1, marks=pytest.mark.slow),
    ],
)
def test_samples_have_what_the_script_has_set(method: str, scale: int, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(EPOCH)
    done = python(tmp_path / "script.py", method, str(scale), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    batches, workers = json.loads(done.stdout)
    assert batches == [[0, scale], [2 * scale, 3 * scale], [4 * scale, 5 * scale]]
    assert workers["kind"] == ("processes" if scale == 1 else "threads"), workers
    assert ("is not what it is here in a process that is not forked" in workers["why"]) == (scale != 1)
