"""Texts have other hashes in each interpreter, and sets of them other orders in processes that are not forked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.programs import python

SCRIPT = """
import dataclasses, multiprocessing, operator, pickle, sys
from foreload.dataset_state.copied import CopiedState

NAMES, KNOWN, SIZES = {"cat", "dog", "bird"}, {"cat", "dog"}, {1, 2, 3}
class Held:
    def __init__(self): self.names = set(map(str, range(30)))
    def __getitem__(self, index): return list(self.names)[index]
class Global:
    def __getitem__(self, index): return list(NAMES)[index]
class Hashes:
    def __getitem__(self, index): return hash(str(index)) % 10
class Makes:
    def __getitem__(self, index): return [name for name in {str(index), "other"}]
class Inside:
    def __getitem__(self, index): return [list({"a", "b"}) for _ in range(2)]
class Words(set): pass
class Derived(Held):
    def __init__(self): self.names = Words(map(str, range(30)))
class Shrunk(Held):  # smaller when it is made anew, and so in another order
    def __init__(self):
        self.names = set(range(1000))
        self.names -= set(range(1000)) - {1, 33, 8, 16}
class Views:
    def __getitem__(self, index): return list({"a": 1, "b": 2}.keys() & {"a": 3, "b": index}.keys())
class Union:
    def __getitem__(self, index): return list(frozenset.union(KNOWN, NAMES))
class MostCommon:
    def __getitem__(self, index): return max(set(str(index)), key=str(index).count)
class ByKey:
    def __getitem__(self, index): return sorted(set(str(index)), key=len)
class ByOptions:
    options = {"key": len}
    def __getitem__(self, index): return sorted(set(str(index)), **self.options)
class LengthOfOne:
    def __getitem__(self, index): return len(set(str(index)).pop())
class Joined:
    def __init__(self): self.tags = [{"cat"}, {"dog"}]
    def __getitem__(self, index): return list(operator.or_(*self.tags))
class Method:
    def __getitem__(self, index): return str(index).__hash__()
@dataclasses.dataclass(frozen=True)
class Record: name: str
class SameRecords:
    def __getitem__(self, index): return Record(str(index))
class SamePairs:
    def __init__(self): self.pairs = {(1, 2), (3, 4)}
    def __getitem__(self, index): return (index, index + 1) in self.pairs
class SameAnyOrder:
    def __getitem__(self, index): return sorted(set(str(index))), len(set(str(index)))
class SameNumbers:
    def __init__(self): self.sizes = {3, 4}
    def __getitem__(self, index): return list(SIZES), self.sizes
class SameSearched:
    def __init__(self): self.names = sorted({"cat", "dog"})
    def __getitem__(self, index): return self.names[index] in KNOWN
KINDS = Held, Global, Hashes, Makes, Inside, Derived, Shrunk, Views, Union, Method, MostCommon, ByKey
KINDS += ByOptions, LengthOfOne, Joined
KINDS += SameRecords, SamePairs, SameAnyOrder, SameNumbers, SameSearched
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
    assert len(found) == 20
    for name, differs in found.items():
        if name.startswith("Same"):
            assert differs == "None", name
        else:
            ways = f"on which {name}.__getitem__ depends", "on which a set depends", "the order of a set is not"
            assert any(way in differs for way in ways), (name, differs)
