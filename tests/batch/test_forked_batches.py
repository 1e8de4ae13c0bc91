"""Batches in forked children, arguments of processes and grandchildren stay what they are."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pathlib
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

import foreload as fl
from foreload.forks.count import fork_count, may_be_in_child
from tests.batch.filled import KINDS, SHAPE, Filled, every_kind, is_intact

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create", "ignore:.*fork.* may lead to deadlocks"
)


class FilledStream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([torch.full(SHAPE, float(number)) for number in range(48)])


def in_child(check: Callable[[], bool], go: int) -> int:
    """Fork a child that calls ``check`` once there is something to read from ``go``; return its id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.read(go, 1)
            code = 0 if check() else 2
        finally:
            os._exit(code)
    return pid


def ended_well(pid: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.fixture
def gate() -> Iterator[tuple[int, int]]:
    """A pipe: what is written to its second end lets children go on."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@every_kind
@pytest.mark.parametrize("held_by_parent", [False, True])
def test_a_forked_child_keeps_the_batch_that_it_was_forked_with(
    kind: str, held_by_parent: bool, gate: tuple[int, int]
) -> None:
    loader = fl.DataLoader(Filled(), batch_size=2, persistent_workers=kind != "here", **KINDS[kind])
    batches = iter(loader)
    batch = next(batches)
    pid = in_child(lambda: is_intact(*batch), gate[0])
    if not held_by_parent:
        del batch
    for x, y in batches:
        assert is_intact(x, y)
    for x, y in loader:
        assert is_intact(x, y)
    os.write(gate[1], b"g")
    assert ended_well(pid)
    loader.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_children_of_every_step_keep_their_batches(kind: str, gate: tuple[int, int]) -> None:
    loader = fl.DataLoader(Filled(), batch_size=4, **KINDS[kind])
    children = []
    for _ in range(2):
        for x, y in loader:
            children.append(in_child(lambda x=x, y=y: is_intact(x, y), gate[0]))  # type: ignore[misc]
            del x, y
    os.write(gate[1], b"g" * len(children))
    assert all(ended_well(pid) for pid in children)


def test_a_forked_process_keeps_a_batch_that_is_its_argument() -> None:
    context = multiprocessing.get_context("fork")
    loader = fl.DataLoader(Filled(), batch_size=2, **KINDS["processes"])
    batches = iter(loader)
    batch = next(batches)
    go, result = context.Event(), context.Queue()

    def check(held: Any) -> None:
        go.wait()
        result.put(is_intact(*held))

    process = context.Process(target=check, args=(batch,))
    process.start()
    del batch
    for x, y in batches:
        assert is_intact(x, y)
        del x, y
    go.set()
    assert result.get(timeout=300)
    process.join()
    process._args = ()  # type: ignore[attr-defined]


def test_workers_of_another_loader_may_hold_batches_as_their_dataset() -> None:
    first = fl.DataLoader(Filled(), batch_size=2, persistent_workers=True, **KINDS["processes"])
    batches = iter(first)
    kept = [next(batches) for _ in range(12)]
    second = fl.DataLoader(kept, batch_size=None, num_workers=1, workers="processes")
    later = iter(second)
    assert is_intact(*next(later))
    kept.clear()
    for _ in range(2):
        for x, y in first:
            assert is_intact(x, y)
            del x, y
    rest = list(later)
    assert len(rest) == 11
    assert all(is_intact(x, y) for x, y in rest)
    first.close()


def test_a_child_goes_on_with_the_batches_that_had_arrived(gate: tuple[int, int]) -> None:
    loader = fl.DataLoader(Filled(), batch_size=2, prefetch_factor=4, in_order=False, **KINDS["processes"])
    batches = iter(loader)
    next(batches)

    def go_on() -> bool:
        try:
            while True:
                if not is_intact(*next(batches)):
                    return False
        except RuntimeError as error:
            return "fork" in str(error)

    pid = in_child(go_on, gate[0])
    rest = [y.tolist() for x, y in batches if is_intact(x, y)]
    os.write(gate[1], b"g")
    assert ended_well(pid)
    assert len(rest) == 23


def test_a_child_loads_with_a_loader_of_the_parents() -> None:
    loader = fl.DataLoader(Filled(), batch_size=4, **KINDS["here"])
    batches = iter(loader)
    next(batches)
    read, write = os.pipe()
    os.write(write, b"g")
    pid = in_child(lambda: len(list(batches)) == 11 and len(list(loader)) == 12, read)
    assert ended_well(pid)
    os.close(read)
    os.close(write)


def test_a_grandchild_keeps_its_batch_when_the_child_has_ended(gate: tuple[int, int]) -> None:
    loader = fl.DataLoader(Filled(), batch_size=2, persistent_workers=True, **KINDS["processes"])
    held = [next(iter(loader))]
    verdict, answer = os.pipe()

    def fork_again() -> bool:
        if os.fork() == 0:
            os.read(gate[0], 1)
            os.write(answer, b"y" if is_intact(*held[0]) else b"n")
            os._exit(0)
        return True

    read, write = os.pipe()
    os.write(write, b"g")
    assert ended_well(in_child(fork_again, read))
    held.clear()
    for _ in range(2):
        assert all(is_intact(x, y) for x, y in loader)
    os.write(gate[1], b"g")
    assert os.read(verdict, 1) == b"y"
    for end in (verdict, answer, read, write):
        os.close(end)
    loader.close()


def test_a_batch_in_a_stream_is_the_childs_too(gate: tuple[int, int]) -> None:
    loader = fl.DataLoader(FilledStream(), batch_size=2, num_workers=1, workers="processes")
    batches = iter(loader)
    held = [next(batches)]
    before = held[0].clone()
    pid = in_child(lambda: np.array_equal(held[0].numpy(), before.numpy()), gate[0])
    held.clear()
    assert len(list(batches)) == 23
    os.write(gate[1], b"g")
    assert ended_well(pid)


def test_forks_in_several_threads_are_counted() -> None:
    before = fork_count()

    def fork() -> None:
        for _ in range(5):
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)

    threads = [threading.Thread(target=fork) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fork_count() == before + 30
    assert may_be_in_child(before)
    assert not may_be_in_child(fork_count())


def mapped() -> int:
    """Count the slots that this process maps."""
    return pathlib.Path("/proc/self/maps").read_text().count("memfd:foreload-batch")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def open_files() -> set[str]:
    """The numbers of the files that this process has open, and their kinds."""
    files = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the folder itself
            files.add(f"{number}: {os.readlink(f'/proc/self/fd/{number}').partition(':')[0]}")
    return files


def test_forks_leave_no_memory_behind() -> None:
    """Another loader's workers are forked in each epoch while batches are held: slots go, and new ones come."""
    train = fl.DataLoader(Filled(16), batch_size=2, persistent_workers=True, **KINDS["processes"])
    other = fl.DataLoader(Filled(4), batch_size=2, num_workers=1, workers="processes")
    counts, files = [], []
    gc.collect()  # what tests before this one left holds descriptors too
    for _ in range(12):
        held = []
        for number, batch in enumerate(train):
            held = [*held[-1:], batch]
            if number == 3:
                assert len(list(other)) == 2
        assert all(is_intact(*batch) for batch in held)
        del batch
        held.clear()
        counts.append(mapped())
        files.append(open_files())
    assert max(counts[4:]) <= max(counts[:4]) + 2
    assert all(seen == files[1] for seen in files[1:]), [seen ^ files[1] for seen in files[1:]]
    train.close()
    gc.collect()
    assert mapped() == 0


def test_descriptors_do_not_grow_with_batches_that_are_held() -> None:
    before = descriptors()
    loader = fl.DataLoader(Filled(), batch_size=1, **KINDS["processes"])
    held = list(loader)
    assert len(held) == 48
    assert descriptors() <= before + 1
    assert all(is_intact(x, y) for x, y in held)
