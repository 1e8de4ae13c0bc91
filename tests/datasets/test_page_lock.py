"""Memory of tensors that is page-locked for a GPU, with CUDA's part of it simulated."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import foreload as fl


class Cudart:
    """A stand-in for the part of CUDA's runtime that locks pages.

    Attributes:
        locked: the sizes of what is locked, by address.
        mapped: whether each was still there when it was unlocked.
        refuses: the error that locking fails with; 0: it does not.
        error: the error that the next kernel is blamed for.
    """

    def __init__(self) -> None:
        self.locked: dict[int, int] = {}
        self.mapped: list[bool] = []
        self.refuses = self.error = 0

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        taken = any(address < begin + length and begin < address + size for begin, length in self.locked.items())
        error = self.refuses or (1 if size == 0 else 712 if taken else 0)
        self.error = error or self.error
        if not error:
            self.locked[address] = size
        return error

    def cudaHostUnregister(self, address: int) -> int:
        del self.locked[address]
        self.mapped.append(is_mapped(address))
        return 0

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return any(0 <= tensor.data_ptr() - begin < size for begin, size in self.locked.items())


def is_mapped(address: int) -> bool:
    places = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return any(int(begin, 16) <= address < int(end, 16) for begin, end in places)


@pytest.fixture
def cudart(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cudart]:
    made, ones = Cudart(), torch.ones

    def kernel(*shape: int, device: Any = None, **more: Any) -> torch.Tensor:
        if device == "cuda":
            error, made.error = made.error, 0
            if error:
                raise RuntimeError(f"CUDA error {error}")
        return ones(*shape, **more)

    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "cudart", lambda: made)
        patch.setattr(torch.Tensor, "is_pinned", lambda tensor, *_: made.is_pinned(tensor))
        patch.setattr(torch, "ones", kernel)
        yield made


@pytest.mark.parametrize("share", [True, False])
def test_memory_is_unlocked_before_it_is_freed(cudart: Cudart, share: bool) -> None:
    data = fl.CachedDataset((torch.zeros(1000, 300), torch.zeros(1000, 700)), share=share)
    assert sorted(cudart.locked.values()) == [1_200_000, 2_800_000]
    row, array = data[3][0], data[5][1].numpy()
    assert row.is_pinned()
    del data
    assert len(cudart.locked) == 2  # a copy of the row to a GPU may be under way
    del row
    assert list(cudart.locked.values()) == [2_800_000]
    del array
    assert not cudart.locked  # or what is mapped there next would be copied from where this was
    assert cudart.mapped == [True, True]


def test_memory_is_locked_once(cudart: Cudart) -> None:
    shared = torch.arange(1000.0).share_memory_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = fl.CachedDataset(shared), fl.CachedDataset((shared[500:], torch.arange(500)))
        fl.CachedDataset((shared, torch.zeros(1000, 0)))
    assert cudart.error == 0
    del first
    assert second[0][0].is_pinned()


def test_a_refusal_is_a_warning_and_no_later_kernels_error(cudart: Cudart) -> None:
    cudart.refuses = 2
    with pytest.warns(UserWarning, match=r"memory could not be page-locked \(CUDA error 2\)"):
        data = fl.CachedDataset(torch.zeros(1000, 8))
    assert cudart.error == 0
    del data
    assert not cudart.mapped


def test_a_forked_process_unlocks_nothing(cudart: Cudart) -> None:
    data = fl.CachedDataset(torch.zeros(1000, 8))
    child = os.fork()
    if child == 0:
        del data
        os._exit(len(cudart.mapped))
    assert os.waitpid(child, 0)[1] == 0
    assert data[0].is_pinned()


def test_a_forked_process_without_cuda_locks_nothing(cudart: Cudart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_cuda_isInBadFork", lambda: True, raising=False)
    assert not fl.CachedDataset(torch.zeros(1000, 8))[0].is_pinned()
    assert not cudart.locked
