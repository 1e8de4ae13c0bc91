"""Measuring takes nothing from the dataset's queues and connections, and writes to no memory that others see."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import queue
import socket
import threading
from collections.abc import Callable
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from foreload.tune import measure
from tests.tune.rows import Rows

SIZE = 200
CONTEXT: Any = multiprocessing.get_context("fork")


def busy() -> None:
    sum(range(200_000))  # long enough for processes to pay


class Takes(Rows):
    """Samples are what comes next."""

    def __init__(self, take: Callable[[], Any]) -> None:
        super().__init__(SIZE)
        self.take = take

    def __getitem__(self, index: int) -> Any:
        busy()
        return index, self.take()


def from_pipe(send: Callable[[bytes], Any], receive: Callable[[int], bytes]) -> Callable[[], int]:
    for number in range(SIZE):
        send(number.to_bytes(2, "big"))
    return lambda: int.from_bytes(receive(2), "big")


def of_queue(numbers: Any) -> Callable[[], Any]:
    for number in range(SIZE):
        numbers.put(number)
    return lambda: numbers.get(timeout=300)


def of_simple_queue() -> Callable[[], Any]:
    numbers = CONTEXT.SimpleQueue()
    for number in range(SIZE):
        numbers.put(number)
    return lambda: numbers.get()


def of_connection() -> Callable[[], Any]:
    near, far = CONTEXT.Pipe()
    for number in range(SIZE):
        far.send(number)
    return lambda: near.recv()


def of_socket() -> Callable[[], Any]:
    near, far = socket.socketpair()
    held = [far]
    take = from_pipe(far.sendall, near.recv)
    return lambda: held and take()


def of_descriptors() -> Callable[[], Any]:
    read, write = os.pipe()
    return from_pipe(lambda part: os.write(write, part), lambda size: os.read(read, size))


def of_thread() -> Callable[[], Any]:
    numbers: queue.Queue[int] = queue.Queue(4)
    thread = threading.Thread(target=lambda: [numbers.put(number) for number in range(SIZE)], daemon=True)
    thread.start()
    return lambda: numbers.get(timeout=300)


def of_file(path: Path) -> Callable[[], Any]:
    path.write_bytes(b"".join(number.to_bytes(2, "big") for number in range(SIZE)))
    file = os.open(path, os.O_RDONLY)
    return lambda: int.from_bytes(os.read(file, 2), "big")


def of_semaphore() -> Callable[[], Any]:
    left = CONTEXT.Semaphore(SIZE)
    return lambda: left.acquire(block=False) and left.get_value()


SOURCES: dict[str, Callable[[Path], Callable[[], Any]]] = {
    "queue": lambda path: of_queue(CONTEXT.Queue()),
    "simple queue": lambda path: of_simple_queue(),
    "connection": lambda path: of_connection(),
    "socket": lambda path: of_socket(),
    "pipe": lambda path: of_descriptors(),
    "thread": lambda path: of_thread(),
    "list": lambda path: iter(range(SIZE)).__next__,
    "file": of_file,
    "semaphore": lambda path: of_semaphore(),
}


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("source", SOURCES)
def test_measuring_takes_nothing(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_TIMEOUT_SECONDS", 300)
    found = []
    for kind in (TorchDataLoader, fl.DataLoader):
        loader = kind(Takes(SOURCES[source](tmp_path / "numbers")), batch_size=50)
        found.append([part.tolist() for batch in loader for part in batch])
    assert found[1] == found[0]
    assert loader.stats()["workers"]["choosing_seconds"] < 250


class Counts(Rows):
    """Counts in memory how often a sample was loaded."""

    def __init__(self, visits: Any) -> None:
        super().__init__(SIZE)
        self.visits = visits

    def __getitem__(self, index: int) -> Any:
        busy()
        self.visits[index] += 1
        return index, int(self.visits[index])


def of_shared_memory() -> Any:
    class Owner(np.ndarray):
        pass

    memory = shared_memory.SharedMemory(create=True, size=8 * SIZE)
    memory.unlink()
    counts = np.ndarray(SIZE, np.int64, memory.buf).view(Owner)
    counts.memory = memory  # type: ignore[attr-defined]
    counts[:] = 0
    return counts


def of_mapped_file(path: Path) -> Any:
    path.write_bytes(bytes(SIZE))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), SIZE)


MEMORY: dict[str, Callable[[Path], Any]] = {
    "raw array": lambda path: CONTEXT.RawArray(ctypes.c_long, SIZE),
    "array": lambda path: CONTEXT.Array(ctypes.c_long, SIZE),
    "anonymous": lambda path: mmap.mmap(-1, SIZE),
    "mapped": of_mapped_file,
    "memmap": lambda path: np.memmap(path, np.int64, "w+", shape=(SIZE,)),
    "part of it": lambda path: np.memmap(path, np.int64, "w+", shape=(20_000,))[15_000:],
    "tensor": lambda path: torch.zeros(SIZE, dtype=torch.long).share_memory_(),
    "large tensor": lambda path: torch.zeros(1_281_167, dtype=torch.long).share_memory_(),
    "view of it": lambda path: torch.zeros(1_281_167, 2, dtype=torch.long).share_memory_()[:, 1],
    "shared memory": lambda path: of_shared_memory(),
    "large anonymous": lambda path: mmap.mmap(-1, 1 << 21),
}


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("memory", MEMORY)
def test_measuring_writes_to_no_shared_memory(memory: str, tmp_path: Path) -> None:
    found = []
    for kind in (TorchDataLoader, fl.DataLoader):
        dataset = Counts(MEMORY[memory](tmp_path / f"{kind.__module__}.numbers"))
        batches = [part.tolist() for batch in kind(dataset, batch_size=50) for part in batch]
        found.append((batches, [int(dataset.visits[index]) for index in range(SIZE)]))
    assert found[0][1] == [1] * SIZE
    assert found[1] == found[0]
