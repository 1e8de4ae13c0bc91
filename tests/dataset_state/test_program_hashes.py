"""Texts have other hashes in each interpreter, and sets of them other orders in processes that are not forked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.programs import python

SCRIPT = """
import multiprocessing, pickle, sys
from foreload.dataset_state.copied import CopiedState

NAMES, KNOWN, SIZES = {"cat", "dog", "bird"}, {"cat", "dog"}, {1, 2, 3}
class Held:
    def __init__(self): self.names = {"cat", "dog"}
    def __getitem__(self, index): return list(self.names)[index]
class Global:
    def __getitem__(self, index): return list(NAMES)[index]
class Hashes:
    def __getitem__(self, index): return hash(str(index)) % 10
class Makes:
    def __getitem__(self, index): return [name for name in {str(index), "other"}]
class Inside:
    def __getitem__(self, index): return [list({"a", "b"}) for _ in range(2)]
class SameNumbers:
    def __init__(self): self.sizes = {3, 4}
    def __getitem__(self, index): return list(SIZES), self.sizes
class SameSearched:
    def __init__(self): self.names = sorted({"cat", "dog"})
    def __getitem__(self, index): return self.names[index] in KNOWN
KINDS = Held, Global, Hashes, Makes, Inside, SameNumbers, SameSearched
def look(held): return [(name, each.differs) for name, each in pickle.loads(held)]
if __name__ == "__main__":
    held = [(kind.__name__, CopiedState(kind())) for kind in KINDS]
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        for name, differs in pool.apply(look, (pickle.dumps(held),)): print(name, differs, sep=": ")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (path := tmp_path / "script.py").write_text(SCRIPT)
    return path


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_samples_that_depend_on_hashes_are_left_to_the_calling_thread(method: str, script: Path) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONHASHSEED"}
    done = python(script, method, folder=script.parent, environment=environment)
    assert done.returncode == 0, done.stderr
    found = dict(line.split(": ") for line in done.stdout.splitlines())
    assert len(found) == 7
    for name, differs in found.items():
        if name.startswith("Same"):
            assert differs == "None", name
        else:
            assert differs.startswith("the hashes of texts, on which "), (name, differs)
            assert f"{name}.__getitem__ depends" in differs or "a set depends" in differs
