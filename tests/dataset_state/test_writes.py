"""All writes to large arrays and tensors are seen, where the system tells of writes."""

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
from foreload.dataset_state.probes.numbers import Numbers, Room
from foreload.dataset_state.probes.writes import Unwritten
from tests.writes import needs_writes

LARGE = 3 << 23  # bytes, which are not copied to be compared with


def is_true_in_fork(check: Callable[[], bool]) -> bool:
    child = os.fork()
    if child == 0:
        status = 2
        try:
            status = 0 if check() else 1
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


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


@needs_writes
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


@needs_writes
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


@needs_writes
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


@needs_writes
def test_what_the_system_writes_is_seen(tmp_path: Any) -> None:
    (tmp_path / "file").write_bytes(b"some bytes")
    value = np.zeros(LARGE, np.uint8)
    held = CopiedState(Holder(value))
    with open(tmp_path / "file", "rb") as file:
        file.readinto(memoryview(value)[1_234_567:])
    assert held.changed() == "value"


@needs_writes
def test_each_process_sees_its_own_writes() -> None:
    value = np.zeros(LARGE, np.uint8)
    held = CopiedState(Holder(value))

    def in_fork() -> bool:
        held.begin()
        is_right = held.changed() is None
        value[LARGE // 3 + 1] = 1
        return is_right and held.changed() == "value"

    assert is_true_in_fork(in_fork)
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


@needs_writes
@pytest.mark.parametrize("is_whole", [True, False])
def test_a_comparison_that_is_interrupted_is_made_again(is_whole: bool) -> None:
    value = np.zeros(1 << 20, np.uint8)
    interrupts: list[type[BaseException]] = [KeyboardInterrupt]

    def compare() -> bool:
        if interrupts:
            raise interrupts.pop()
        return not value.any()

    is_same = Unwritten(value, lambda: compare, is_whole=is_whole)
    value[4_321] = 1
    if is_whole:
        with pytest.raises(KeyboardInterrupt):
            is_same()
    assert not is_same()


@needs_writes
def test_memory_that_is_given_back_to_the_system_has_changed() -> None:
    memory = mmap.mmap(-1, LARGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    value = np.frombuffer(memory, np.uint8)
    value[:] = 1
    held = CopiedState(Holder(value))
    assert held.changed() is None
    memory.madvise(mmap.MADV_DONTNEED, 1 << 22, 1 << 20)  # zeros, from then on
    assert held.changed() == "value"


@needs_writes
def test_what_is_looked_at_anew_is_compared_with_what_it_is_then() -> None:
    value = torch.zeros(LARGE // 4)
    room = Room()
    probe, left = Numbers("value", value, room), (room.left, room.watched)
    value.numpy()[1_234_567] = 1
    assert probe.changed() == "value"
    probe.renew()
    assert probe.changed() is None
    assert (room.left, room.watched) == left
    value.share_memory_()
    probe.sent()  # other processes may write to it now
    assert probe.changed() is None
    assert room.watched == left[1] == Room().watched - 4 * len(value)


@needs_writes
def test_what_was_written_before_a_fork_began_to_look_is_compared() -> None:
    value = np.zeros(1 << 20, np.uint8)
    is_same = Unwritten(value, lambda: lambda: not value.any(), is_whole=True)

    def in_fork() -> bool:
        value[55_555] = 1
        is_same.begin()
        return not is_same()

    assert is_true_in_fork(in_fork)
    assert is_same()
    is_same.begin()
    assert is_same()


@needs_writes
def test_files_that_somebody_has_closed_are_not_needed() -> None:
    value = np.zeros(1 << 20, np.uint8)
    is_same = Unwritten(value, lambda: lambda: not value.any(), is_whole=True)

    def in_fork() -> bool:
        is_same.begin()
        os.closerange(3, 1 << 16)
        is_right = is_same()
        value[77_777] = 1
        return is_right and not is_same()

    assert is_true_in_fork(in_fork)
