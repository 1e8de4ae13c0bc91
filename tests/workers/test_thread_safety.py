"""Threads share what is known to allow it, and nothing else unless its author says so."""

from __future__ import annotations

import collections
import functools
import math
import operator
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset, default_collate

import foreload as fl
from foreload.batch.spec import BatchSpec
from foreload.workers.thread_safety import find_user_code


def double(sample: Any) -> Any:
    """Return twice a sample."""
    return sample


class Own:
    """A transform with a state."""

    def __call__(self, sample: Any) -> Any:
        return sample

    def method(self, sample: Any) -> Any:
        return sample


class OwnData(Dataset[Any]):
    """A dataset of the user's."""

    def __init__(self, size: int = 8) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return index


class Shared(OwnData):
    """One that its author declares."""

    thread_safe = True


Point = collections.namedtuple("Point", ["x", "y"])


def found(dataset: Any, collate_fn: Any = default_collate, transform: Any = None) -> str | None:
    return find_user_code(dataset, BatchSpec(collate_fn, transform=transform))


KNOWN: dict[str, Any] = {
    "list": [1, 2.0, "x", b"x", None, True, 1j],
    "nested": [{"a": [1, (2, torch.ones(2))], "b": {3, 4}}, frozenset({1})],
    "arrays": [
        np.ones(2),
        np.float32(1),
        torch.float32,
        np.dtype("int8"),
        torch.device("cpu"),
        slice(3),
        range(4),
    ],
    "tensor": torch.ones(3),
    "array": np.ones(3),
    "string": "abc",
    "range": range(9),
    "tensors": TensorDataset(torch.ones(3)),
    "subset": Subset(TensorDataset(torch.ones(3)), [1, 2]),
    "concat": ConcatDataset([[1, 2], TensorDataset(torch.ones(3))]),
    "stack": StackDataset(a=[1, 2], b=torch.ones(2)),
    "stacked": StackDataset([1, 2], torch.ones(2)),
    "cached": fl.CachedDataset(torch.ones(3)),
    "declared": Shared(),
    "within": Subset(Shared(), [1]),
}
UNKNOWN: dict[str, tuple[Any, str]] = {
    "own": (OwnData(), "OwnData"),
    "subset": (Subset(OwnData(), [1]), "OwnData"),
    "subset of subset": (Subset(Subset(OwnData(), [1]), [0]), "OwnData"),
    "indices": (Subset([1, 2], OwnData()), "OwnData"),  # type: ignore[arg-type]
    "concat": (ConcatDataset([[1], OwnData()]), "OwnData"),
    "stack": (StackDataset(a=[1] * 8, b=OwnData()), "OwnData"),
    "list": ([1, Own()], "Own"),
    "dict": ({"a": {"b": (Own(),)}}, "Own"),
    "objects": (np.array([None, Own()], dtype=object), "an array of objects"),
    "named tuples": ([Point(1, 2)], "Point"),
    "subclass of list": (type("Rows", (list,), {})([1]), "Rows"),
    "subclass of tensor": ([torch.ones(2).as_subclass(type("Image", (torch.Tensor,), {}))], "Image"),
    "subclass of tensors": (type("Mine", (TensorDataset,), {})(torch.ones(2)), "Mine"),
    "subclass of subset": (type("Part", (Subset,), {})([1, 2], [0]), "Part"),
    "subclass of ours": (type("Ours", (fl.CachedDataset,), {"__getitem__": double})(torch.ones(2)), "Ours"),
    "iterator": (iter([1, 2]), "list_iterator"),
    "not quite declared": (type("Almost", (OwnData,), {"thread_safe": 1})(), "Almost"),
    "declared against": (type("Never", (Shared,), {"thread_safe": False})(), "Never"),
    "a list of a declared and another": ([Shared(), Own()], "Own"),
}


@pytest.mark.parametrize("what", KNOWN)
def test_known_datasets(what: str) -> None:
    assert found(KNOWN[what]) is None


@pytest.mark.parametrize("what", UNKNOWN)
def test_unknown_datasets_are_named(what: str) -> None:
    dataset, name = UNKNOWN[what]
    assert found(dataset) == name


def closure(factor: int) -> Callable[[Any], Any]:
    def times(sample: Any) -> Any:
        return sample * factor

    return times


KNOWN_FUNCTIONS = [
    None,
    len,
    list,
    float,
    dict.fromkeys,
    math.sqrt,
    operator.neg,
    torch.stack,
    torch.tensor,
    torch.from_numpy,
    np.asarray,
    default_collate,
    torch.utils.data.default_convert,
    fl.transforms.train(8),
]
UNKNOWN_FUNCTIONS: list[tuple[Any, str]] = [
    (double, "double"),
    (lambda sample: sample, "<lambda>"),
    (closure(2), "closure.times"),
    (Own(), "Own"),
    (Own().method, "Own"),
    (Own, "Own"),
    (functools.partial(double, 1), "partial"),
    (functools.partial(torch.stack, dim=0), "partial"),
    (functools.lru_cache(double), "double"),
    (random.Random(1).shuffle, "Random"),
    ([1, 2].__getitem__, "list.__getitem__"),
    (str.maketrans, "str.maketrans"),
    (operator.itemgetter(0), "itemgetter"),
    (torch.nn.Linear(2, 2), "Linear"),
    (torch.nn.Linear(2, 2).forward, "Linear"),
    (torch.no_grad()(double), "double"),
]


@pytest.mark.parametrize("function", KNOWN_FUNCTIONS, ids=lambda function: type(function).__name__)
def test_known_functions(function: Any) -> None:
    assert found([1, 2], transform=function) is None
    if function is not None:
        assert found([1, 2], collate_fn=function) is None


@pytest.mark.parametrize(("function", "name"), UNKNOWN_FUNCTIONS, ids=[name for _, name in UNKNOWN_FUNCTIONS])
def test_unknown_functions_are_named_as_transform_and_as_collate_fn(function: Any, name: str) -> None:
    assert found([1, 2], transform=function) == name
    assert found([1, 2], collate_fn=function) == name
    # The author of a dataset answers for all that belongs to its loader.
    assert found(Shared(), transform=function, collate_fn=function) is None


def test_a_transform_may_be_declared_by_itself() -> None:
    class Declared(Own):
        thread_safe = True

    assert found([1, 2], transform=Declared()) is None
    assert found(OwnData(), transform=Declared()) == "OwnData"


@pytest.mark.slow
def test_not_every_value_of_a_huge_list_is_looked_at() -> None:
    assert found([(1, 2)] * 50_000) is None
    assert found([[torch.ones(1), [1]]] * 200_001) == "a list with more than 200,000 values"
    assert found([1] * 1_000_000) is None, "plain values take no look each"


# Our own datasets, with transforms of ours and of the user's.


def images(folder: Path, photos: Path, transform: Any) -> Any:
    return fl.ImageDataset(photos, 16, transform=transform)


def hdf5(folder: Path, photos: Path, transform: Any) -> Any:
    with h5py.File(folder / "rows.h5", "w") as file:
        file["data"] = np.ones((64, 4), np.float32)
    return fl.HDF5Dataset(folder / "rows.h5", transform=transform)


def text(folder: Path, photos: Path, tokenizer: Any) -> Any:
    (folder / "lines.txt").write_text("".join(f"line {n}\n" for n in range(64)))
    return fl.TextDataset(folder / "lines.txt", tokenizer, 8)


def anything(folder: Path, photos: Path, transform: Any) -> Any:
    return fl.MemoryEfficientDataset(photos, transform=transform)


def mixture(folder: Path, photos: Path, transform: Any) -> Any:
    return fl.Mixture([hdf5(folder, photos, transform), hdf5(folder, photos, None)], [0.5, 0.5])


def subset(folder: Path, photos: Path, transform: Any) -> Any:
    return Subset(hdf5(folder, photos, transform), range(40))


def tokens(line: str) -> list[int]:
    """A tokenizer of the user's."""
    return [ord(letter) for letter in line]


@pytest.mark.parametrize("make", [images, hdf5, text, anything, mixture, subset])
def test_our_own_datasets_are_loaded_by_threads_without_code_of_the_users(
    make: Any, tmp_path: Path, photos: Path
) -> None:
    own = tokens if make is text else double
    for transform, kind in ((None, "threads"), (own, "processes")):
        if make is anything and transform is None:
            continue  # its images differ in size
        loader: Any = fl.DataLoader(make(tmp_path, photos, transform), 8, num_workers=2, collate_fn=None)
        loader.choose_workers()
        assert loader.stats()["workers"]["kind"] == kind, (make, transform)


def test_a_transform_that_is_set_later_is_seen_by_the_next_epoch(tmp_path: Path) -> None:
    dataset = hdf5(tmp_path, tmp_path, None)
    loader: Any = fl.DataLoader(dataset, 8, num_workers=2)
    list(loader)
    assert loader.stats()["workers"]["kind"] == "threads"
    dataset.transform = double
    list(loader)
    assert loader.stats()["workers"]["kind"] == "processes"


class Forwarding:
    """Passes everything that it has not on to something that fails in a way of its own."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return torch.full((2,), index)

    def __getattr__(self, name: str) -> Any:
        if name == "error":  # it is being made from a pickle
            raise AttributeError(name)
        raise self.error(name)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 0},
        {"num_workers": 2},
        {"seed": 1},
        {"cache": "1MiB"},
        {"cache": "1MiB", "num_workers": 2},
        {"num_workers": 2, "workers": "threads"},
    ],
    ids=str,
)
@pytest.mark.parametrize("error", [KeyError, RuntimeError])
def test_what_torch_does_not_ask_a_dataset_for_may_fail(options: Any, error: type[Exception]) -> None:
    loader = fl.DataLoader(Forwarding(error), batch_size=None, **options)
    assert sorted(int(sample[0]) for sample in loader) == list(range(40))
    assert loader.state_dict()
    assert loader.report()


def test_a_wrapper_is_not_thread_safe_because_what_it_wraps_is() -> None:
    class Safe(Forwarding):
        thread_safe = True

    class Wrapper:
        def __init__(self) -> None:
            self.inner = Safe(KeyError)

        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> Any:
            return self.inner[index]

        def __getattr__(self, name: str) -> Any:
            return getattr(self.__dict__["inner"], name)

    spec = BatchSpec(default_collate)
    assert find_user_code(Safe(KeyError), spec) is None
    assert find_user_code(Wrapper(), spec) is not None


@functools.wraps(default_collate)
def named_as_torchs(samples: Any) -> Any:
    """Collate like torch, which this is named after."""
    return default_collate(samples)


def test_a_function_is_known_by_the_module_that_it_is_in() -> None:
    """Not by the name that functools.wraps() gave it."""
    assert find_user_code([1, 2], BatchSpec(named_as_torchs)) is not None
    assert find_user_code([1, 2], BatchSpec(default_collate)) is None
