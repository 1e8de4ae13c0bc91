"""The owner of a tensor's memory is known, as far as Python objects own it."""

from __future__ import annotations

import gc
import mmap
import sys
import weakref
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.dlpack import from_dlpack

from foreload._torch import address_of
from foreload.dataset_state import memory
from foreload.dataset_state.memory import is_foreign, object_under, uses_of_storage

WHOLE = np.zeros((4, 6))


@pytest.mark.parametrize(
    "make",
    [
        torch.from_numpy,
        torch.as_tensor,
        torch.asarray,
        lambda array: torch.from_numpy(array)[1:, 2:].T.detach(),
        lambda array: torch.nn.Parameter(torch.from_numpy(array)),
    ],
)
def test_the_array_is_found(make: Callable[[Any], torch.Tensor]) -> None:
    for whole in (WHOLE, WHOLE[1:]):
        storage = make(whole).untyped_storage()
        assert is_foreign(storage)
        assert object_under(storage) is whole


@pytest.mark.parametrize("memory", [bytearray(64), b"0" * 64, array("d", range(8)), WHOLE])
def test_the_buffer_is_found(memory: Any) -> None:
    assert object_under(torch.frombuffer(memory, dtype=torch.float64)[1:].untyped_storage()) is memory
    view = memoryview(memory)
    assert object_under(torch.frombuffer(view, dtype=torch.float64).untyped_storage()) is view


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(3),
        lambda: torch.zeros(3).share_memory_(),
        lambda: torch.tensor(WHOLE),
        lambda: torch.stack([torch.from_numpy(WHOLE)] * 2),
        lambda: torch.from_numpy(WHOLE).reshape(3, 8).T.reshape(-1),
    ],
)
def test_what_torch_has_allocated_has_no_owner(make: Callable[[], torch.Tensor]) -> None:
    storage = make().untyped_storage()
    assert not is_foreign(storage)
    assert object_under(storage) is None


def test_memory_of_torchs_that_arrays_lie_in_is_not_foreign() -> None:
    rows = torch.zeros(3)
    array = rows.numpy()
    for tensor in (rows, torch.from_numpy(array)):
        assert object_under(tensor.untyped_storage()) is (None if tensor is rows else array)
        assert is_foreign(tensor.untyped_storage()) is (tensor is not rows)


def test_memory_of_others_is_foreign_and_has_no_owner(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(bytes(64))
    for tensor in (
        from_dlpack(WHOLE),
        from_dlpack(torch.zeros(3)),
        torch.from_file(str(tmp_path / "rows"), shared=True, size=16),
    ):
        assert is_foreign(tensor.untyped_storage())
        assert object_under(tensor.untyped_storage()) is None


def test_looking_holds_nothing() -> None:
    class Own(np.ndarray):
        pass

    whole = np.zeros(3).view(Own)
    gone = weakref.ref(whole)
    tensor = torch.from_numpy(whole)
    for _ in range(3):
        assert object_under(tensor.untyped_storage()) is whole
    del whole
    assert gone() is not None
    del tensor
    gc.collect()
    assert gone() is None


def test_a_map_of_a_file_is_the_array_or_buffer_that_a_tensor_was_made_of(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(bytes(64))
    mapped = np.memmap(path, np.float64, "r+")
    assert object_under(torch.from_numpy(mapped).untyped_storage()) is mapped
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        tensor = torch.frombuffer(memory, dtype=torch.float64)
        assert object_under(tensor.untyped_storage()) is memory
        del tensor


def test_uses_of_a_storage_are_counted_where_torch_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds of torch 2.6 without CUDA have no function for that."""
    tensor = torch.zeros(4)
    place = address_of(tensor.untyped_storage())
    alone = uses_of_storage(place)
    views = [tensor[:2], tensor.view(2, 2)]
    assert uses_of_storage(place) == alone + len(views)
    monkeypatch.setattr(memory, "storage_uses", None)
    assert uses_of_storage(place) == alone + len(views)
    monkeypatch.setattr(memory, "_present_count", lambda place: sys.maxsize)  # where it is not found
    assert uses_of_storage(place) > 1 << 30
