"""References to parts of a batch count that no Python object holds: those of C++, weak ones, those in slots."""

from __future__ import annotations

import math
import mmap
import pathlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from PIL import Image

from foreload.cache.serialize import flatten_exactly
from foreload.dataset_state.given import find_held


class Tag(str):
    """A text with an attribute that lies in a slot."""

    __slots__ = ("seen",)
    seen: list[int]


@dataclass
class Box:
    size: int


class Holder:
    """Holds parts of batches in ways that counts of Python's do not show."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.weights = torch.ones(3, 2, requires_grad=True)
        self.weights.sum().backward()
        self.tag, self.pixels, self.array = Tag("a"), np.zeros((4, 4), np.uint8), np.zeros((4, 3))
        self.tag.seen = [0]
        self.storage, self.bytes = torch.zeros(4).untyped_storage(), bytearray(16)
        self.references: list[Any] = []
        (folder / "map").write_bytes(bytes(64))
        with open(folder / "map", "r+b") as file:
            self.writable = mmap.mmap(file.fileno(), 64)
        with open(folder / "map", "rb") as file:
            self.readable = mmap.mmap(file.fileno(), 64, access=mmap.ACCESS_READ)

    def known(self, part: Any) -> Any:
        """Return a part after keeping a weak reference to it."""
        self.references.append(weakref.ref(part))
        return part


GIVEN: dict[str, Callable[[Holder], Any]] = {
    "a part of a storage": lambda holder: holder.storage[4:8],
    "a storage": lambda holder: torch.zeros(3).set_(holder.storage).untyped_storage(),  # type: ignore[no-untyped-call]
    "a row of a gradient": lambda holder: holder.weights.grad[1],
    "a gradient": lambda holder: [holder.weights.grad],
    "a text with slots": lambda holder: holder.tag,
    "what is referred to weakly": lambda holder: holder.known(Box(1)),
    "a buffer of another library": lambda holder: pyarrow.py_buffer(holder.bytes),
    "an image over an array": lambda holder: Image.fromarray(holder.pixels),
    "a view of what another library holds": lambda holder: pyarrow.array(holder.array[1]).to_numpy(),
    "a read-only view of a map": lambda holder: np.frombuffer(memoryview(holder.writable).toreadonly(), np.uint8),
    "a NaN": lambda holder: {"value": math.nan},
    "NumPy's NaN": lambda holder: (1, np.nan),
    "a NaN in a list": lambda holder: [np.nan],
}
MADE: dict[str, Callable[[Holder], Any]] = {
    "a copy of a gradient": lambda holder: holder.weights.grad.clone(),
    "a new text with slots": lambda holder: Tag("b"),
    "a new object": lambda holder: Box(1),
    "a new image": lambda holder: Image.new("L", (4, 4)),
    "a read-only view of a map to be read": lambda holder: np.frombuffer(holder.readable, np.uint8),
    "another NaN": lambda holder: [float("nan"), (1, float("nan"))],
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_reference_out_of_sight_is_found(name: str, tmp_path: pathlib.Path) -> None:
    holder = Holder(tmp_path)
    assert find_held([GIVEN[name](holder)])


@pytest.mark.parametrize("name", MADE)
def test_what_is_only_in_the_batch_is_not(name: str, tmp_path: pathlib.Path) -> None:
    holder = Holder(tmp_path)
    assert find_held([MADE[name](holder)]) is None


@pytest.mark.filterwarnings("ignore")
def test_of_a_quantized_tensor_it_cannot_be_told() -> None:
    scales, zeros = torch.ones(2), torch.zeros(2, dtype=torch.long)
    given = torch.quantize_per_channel(torch.ones(2, 2), scales, zeros, 0, torch.qint8)
    assert "quantized" in str(find_held([given.clone()]))
    assert find_held([torch.quantize_per_tensor(torch.ones(2, 2), 1.0, 0, torch.qint8)]) is None


@pytest.mark.parametrize("name", ["inference", "mask"])
def test_what_no_copy_has_is_not_sent(name: str) -> None:
    with torch.inference_mode():
        tensor = torch.ones(2)
    part: Any = {"inference": tensor, "mask": np.ma.MaskedArray([1, 2, 3])}[name]
    with pytest.raises(Exception, match="is not sent"):
        flatten_exactly([part])
    flatten_exactly([torch.ones(2), np.ma.MaskedArray([1, 2, 3], [True, False, True])])
