"""Whatever is written to large arrays and tensors is seen, wherever it lies, where the system tells of writes."""

from __future__ import annotations

import gc
import mmap
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foreload import _native
from foreload.dataset_state.copied import CopiedState
from foreload.dataset_state.looks.writes import Unwritten

LARGE = 3 << 23  # bytes, which are not copied to be compared with


def tells() -> bool:
    memory = np.zeros(1 << 20, np.uint8)
    return _native.watch_writes(memory.__array_interface__["data"][0], memory.nbytes) is not None


needs_system = pytest.mark.skipif(
    not tells(), reason="this system does not tell of writes (Linux 6.11 and later do)"
)


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value


ARRAYS: dict[str, Callable[[], Any]] = {
    "short, copied": lambda: np.zeros(1 << 19, np.uint8),
    "copied": lambda: np.zeros((1000, 1001), np.float32),
    "large": lambda: np.zeros((LARGE // 64, 64), np.uint8),
    "columns first": lambda: np.zeros((64, LARGE // 64), np.uint8).T,
    "part of another": lambda: np.zeros(LARGE + 9000, np.uint8)[4321 : 4321 + LARGE],
    "tensor": lambda: torch.zeros(LARGE // 4),
    "tensor of an array": lambda: torch.from_numpy(np.zeros(LARGE // 8)),
    "bfloat16": lambda: torch.zeros(LARGE // 2, dtype=torch.bfloat16),
}


@needs_system
@pytest.mark.parametrize("name", ARRAYS)
@settings(max_examples=15, deadline=None)
@given(place=st.floats(0, 1))
def test_a_write_anywhere_is_seen(name: str, place: float) -> None:
    value = ARRAYS[name]()
    held = CopiedState(Holder(value))
    assert held.changed() is None
    numbers = value.view(torch.int16).numpy() if isinstance(value, torch.Tensor) else value
    at = np.unravel_index(int(place * (numbers.size - 1)), numbers.shape)
    numbers[at] = 1
    assert held.changed() == "value"
    assert held.changed() == "value"  # also if nothing more is written


@needs_system
def test_what_is_written_as_it_was_has_not_changed() -> None:
    value = np.arange(1 << 20)
    held = CopiedState(Holder(value))
    value[777] += 1
    assert held.changed() == "value"
    value[777] -= 1
    assert held.changed() is None
    value[778] *= 1
    assert held.changed() is None
    value[779] = 0
    assert held.changed() == "value"


@needs_system
def test_two_that_look_at_the_same_memory_both_see_a_write() -> None:
    value = np.zeros(LARGE, np.uint8)
    first, second = CopiedState(Holder(value)), CopiedState(Holder(value[100_000:]))
    value[LARGE // 2 + 1] = 1
    third = CopiedState(Holder(value))  # protects the page again
    assert first.changed() == second.changed() == "value"
    assert third.changed() is None
    del first
    gc.collect()
    value[LARGE // 2 + 2] = 1
    assert third.changed() == "value"


@needs_system
def test_what_the_system_writes_is_seen(tmp_path: Any) -> None:
    (tmp_path / "file").write_bytes(b"some bytes")
    value = np.zeros(LARGE, np.uint8)
    held = CopiedState(Holder(value))
    with open(tmp_path / "file", "rb") as file:
        file.readinto(memoryview(value)[1_234_567:])
    assert held.changed() == "value"


@needs_system
def test_each_process_sees_its_own_writes() -> None:
    value = np.zeros(LARGE, np.uint8)
    held = CopiedState(Holder(value))
    child = os.fork()
    if child == 0:
        held.begin()
        is_right = held.changed() is None
        value[LARGE // 3 + 1] = 1
        os._exit(0 if is_right and held.changed() == "value" else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert held.changed() is None
    value[LARGE // 3 + 2] = 1
    assert held.changed() == "value"


@pytest.mark.parametrize("shared", [True, False])
def test_without_the_system_it_is_compared(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if shared:  # other processes may write to it
        value = np.frombuffer(mmap.mmap(-1, 1 << 20), np.uint8)
    else:
        value = np.zeros(1 << 20, np.uint8)
        monkeypatch.setattr(_native, "watch_writes", lambda address, size: None)
    before = value.copy()
    is_same = Unwritten(value, lambda: lambda: bool((value == before).all()), is_whole=True)
    assert is_same()
    value[54_321] = 1
    assert not is_same()
    assert not is_same()
    value[54_321] = 0
    assert is_same()
