"""State and code count in a fingerprint: whatever decides samples, and nothing that differs between runs."""

from __future__ import annotations

import copy
import functools
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

import foreload as fl
from foreload.cache.fingerprint import content_hash, fingerprint
from tests.cache.spill.held import Held
from tests.datasets.every_dataset import DATASETS, write

MODULE = """
import collections, functools, types
import helpers
from torch.utils.data import Dataset
FACTOR = {"constant": 1}["constant"]
TABLE = {"a": [1, 2], "b": {3, 4}}
def outer(value):
    def inner(index, default=5, *, other=6):
        return [value + 7 for _ in range(index) if index in {8, 9}]
    return inner
def helper(index):
    return deeper(index) * FACTOR
def deeper(index):
    return index + 10
class Base(Dataset):
    offset = 11
    def __len__(self): return 12
    @property
    def scale(self): return 13
    @staticmethod
    def fixed(): return 14
    @classmethod
    def of(cls): return 15
    @functools.lru_cache
    def kept(self): return 16
class Data(Base):
    table = {"x": 17}
    def __init__(self):
        self.function = lambda index: index + 18
        self.closure = outer(19)
        self.part = functools.partial(helper, 20)
        self.me = self
        self.lock = __import__("threading").Lock()
    def __getitem__(self, index):
        return helper(index), TABLE, (lambda: 21)(), helpers.load(index), helpers.LIMIT
class Table(dict):
    def __missing__(self, key): return 22
"""
HELPERS = """
LIMIT = 23
def load(index): return other(index) + 24
def other(index): return 25
"""


def built(module: str, helpers: str) -> Any:
    """The dataset of a module, which is made anew from its source."""
    made = {}
    for name, source in (("helpers", helpers), ("some_module", module)):
        made[name] = ModuleType(name)
        sys.modules[name] = made[name]
        exec(compile(source, f"{name}.py", "exec"), vars(made[name]))
    return made["some_module"].Data()


@pytest.fixture
def modules() -> Any:
    yield
    for name in ("helpers", "some_module"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("modules")
def test_all_code_and_constants_that_a_dataset_refers_to_count() -> None:
    first, of_rank = fingerprint(built(MODULE, HELPERS)), content_hash(built(MODULE, HELPERS))
    assert fingerprint(built("# moved\n\n" + MODULE, HELPERS)) == first
    for number in range(1, 26):
        sources = [
            "".join(str(900 + number) if word == str(number) else word for word in words_of(source))
            for source in (MODULE, HELPERS)
        ]
        is_used = number != 22
        assert sources != [MODULE, HELPERS]
        assert (fingerprint(built(*sources)) != first) == is_used, number
        assert (content_hash(built(*sources)) != of_rank) == is_used, number
        assert (fingerprint(Subset(built(*sources), [0])) != fingerprint(Subset(built(MODULE, HELPERS), [0]))) == (
            is_used
        )


def words_of(source: str) -> list[str]:
    return re.split(r"(\d+)", source)


def test_state_counts_also_beside_what_cannot_be_pickled() -> None:
    held = {"lock": threading.Lock(), "local": threading.local(), "generator": (i for i in range(3))}
    assert fingerprint(Held(rows=[1], **held)) == fingerprint(Held(rows=[1], **held))
    assert fingerprint(Held(rows=[1], **held)) != fingerprint(Held(rows=[2], **held))


VALUES: dict[str, tuple[Any, Any]] = {
    "tensor": (torch.arange(4), torch.tensor([0, 1, 2, 4])),
    "view": (torch.arange(8)[:4], torch.arange(8)[4:]),
    "scalar": (torch.tensor(1.0), torch.tensor(2.0)),
    "columns": (torch.arange(6).view(2, 3).T, torch.arange(6).view(2, 3).T + 1),
    "complex": (torch.tensor([1 + 2j]).conj(), torch.tensor([1 + 2j])),
    "sparse": (torch.eye(3).to_sparse(), (2 * torch.eye(3)).to_sparse()),
    "parameter": (torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)),
    "array": (np.arange(4), np.arange(4) + 1),
    "dtype": (np.zeros(4, np.int32), np.zeros(4, np.float32)),
    "large": (torch.zeros(1 << 21), torch.zeros(1 << 21).index_fill(0, torch.tensor([1_000_003]), 1)),
    "closure": ((lambda x: lambda: x)(1), (lambda x: lambda: x)(2)),
    "default": (eval("lambda x=1: x"), eval("lambda x=2: x")),
    "constant": (eval("lambda: 1"), eval("lambda: 2")),
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_count(kind: str) -> None:
    one, other = VALUES[kind]
    assert fingerprint(Held(value=one)) == fingerprint(Held(value=copy.deepcopy(one)))
    assert fingerprint(Held(value=one)) != fingerprint(Held(value=other))
    assert content_hash(Held(value=one)) == content_hash(Held(value=copy.copy(one)))
    if kind != "large":  # of which ranks compare samples
        assert content_hash(Held(value=one)) != content_hash(Held(value=other))


def plain(index: int, factor: int = 1) -> int:
    return index * factor


class Scale:
    """A wrapper of a function, as functools makes one look."""

    def __init__(self, function: Any, factor: int) -> None:
        functools.update_wrapper(self, function)
        self.factor = factor

    def __call__(self, index: int) -> int:
        return int(self.__wrapped__(index)) * self.factor  # type: ignore[attr-defined]


class Stiff(Scale):
    """Refuses to be pickled."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("no")


def part_of(function: Any, factor: int) -> Any:
    return functools.update_wrapper(functools.partial(function, factor=factor), function)


@pytest.mark.parametrize("wrap", [Scale, Stiff, part_of])
def test_what_a_wrapper_holds_beside_its_function_counts(wrap: Any) -> None:
    def other(index: int, factor: int) -> int:
        return index + factor

    for found in (fingerprint, content_hash):
        assert found(Held(of=wrap(plain, 2))) == found(Held(of=wrap(plain, 2)))
        assert len({found(Held(of=wrap(*each))) for each in ((plain, 2), (plain, 3), (other, 2))}) == 3


@pytest.mark.parametrize("keep", [functools.lru_cache, fl.cached(8)])
def test_what_a_cache_keeps_does_not_count(keep: Any) -> None:
    def found(factor: int, calls: int) -> str:
        load = keep(eval(f"lambda index: index * {factor}"))
        for index in range(calls):
            load(index)
        return fingerprint(Held(load=load))

    assert found(2, 0) == found(2, 3) != found(3, 0)


class Link:
    """One of a chain."""

    def __init__(self, following: Link | None) -> None:
        self.following = following


CHAIN: Any = None


class Chained(Held):
    """Names something too deep to be pickled."""

    def __getitem__(self, index: int) -> Any:
        return CHAIN


def test_what_is_too_deep_to_compare_is_shared_with_no_other_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    first = None
    for _ in range(300_000):  # from Python 3.14 on, only C's stack sets the limit here
        first = Link(first)
    assert content_hash(Chained()) == content_hash(Chained())
    monkeypatch.setattr(sys.modules[__name__], "CHAIN", first)
    with pytest.warns(UserWarning, match="cannot tell whether .* the same dataset: RecursionError"):
        assert content_hash(Chained(rank=0)) != content_hash(Chained(rank=0))


def test_of_memory_elsewhere_only_pieces_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pieces are chosen where a tensor is, which for the CPU is the same code."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    copied = []

    def cpu(tensor: torch.Tensor) -> torch.Tensor:
        copied.append(tensor.numel())
        return tensor.to("cpu")

    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    model = torch.zeros(1 << 24, device=device)
    known = content_hash(Held(model=model))
    assert known == content_hash(Held(model=model.to("cpu"))) == content_hash(Held(model=model.clone()))
    model[-1] = 1
    assert content_hash(Held(model=model)) != known
    assert 0 < max(copied) <= 1 << 20


def test_tensors_without_memory_count_by_their_shape() -> None:
    one, other = (torch.empty(size, device="meta") for size in (3, 4))
    known = content_hash(Held(value=one))
    assert content_hash(Held(value=one.clone())) == known != content_hash(Held(value=other))


PROGRAM = """
import sys
from pathlib import Path
import foreload as fl
from foreload.cache.fingerprint import fingerprint
from tests.cache.spill.test_state_and_code import HELPERS, MODULE, VALUES, built
from tests.datasets.every_dataset import DATASETS
print(fingerprint(built(MODULE, HELPERS)), [fingerprint([value]) for value, _ in VALUES.values()])
for kind, make in DATASETS.values():
    print(fingerprint(make(kind, Path(sys.argv[1]))), fingerprint([make(kind, Path(sys.argv[1]))]))
"""


@pytest.mark.slow
def test_fingerprints_are_the_same_in_every_process(tmp_path: Path) -> None:
    write(tmp_path)
    said = [
        subprocess.run(
            [sys.executable, "-c", "import torch; torch.manual_seed(0)\n" + PROGRAM, tmp_path],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1]
    assert len(said[0].split()) > 2 * len(DATASETS)
