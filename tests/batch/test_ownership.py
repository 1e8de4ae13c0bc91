"""A batch is the holder's, for ever: in a worker that keeps it, and while the loop goes on."""

from __future__ import annotations

import copy
import os
import pathlib
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, default_collate

import foreload as fl
from foreload.workers.processes.slots import ConsumerSlots, Slots
from tests.batch.filled import KINDS, SHAPE, Filled, every_kind, is_intact

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create", "ignore:.*fork.* may lead to deadlocks"
)


class Keeping:
    """Keeps the batches it has made, and hands out all that they hold now."""

    def __init__(self, *, change: bool = False) -> None:
        self.kept: list[Any] = []
        self.change = change

    def __call__(self, samples: Any) -> Any:
        batch = default_collate(samples)
        if self.change and self.kept:
            self.kept[-1][0].fill_(-1)
        self.kept = [*self.kept[-2:], batch]
        return [*batch, torch.stack([x[0, 0, 0] for x, _ in self.kept])]


class KeepingMemory(Keeping):
    """Keeps views of tensors that it made in the loader's memory."""

    def __call__(self, samples: Any) -> Any:
        batch = (
            fl.pad_sequence([x for x, _ in samples])
            if hasattr(fl, "pad_sequence")
            else default_collate(samples)[0]
        )
        labels = torch.tensor([y for _, y in samples])
        self.kept = [*self.kept[-2:], batch[0, 0]]
        return batch, labels, torch.stack([row[0] for row in self.kept])


@pytest.mark.sampled(2)
@every_kind
@pytest.mark.parametrize("make", [Keeping, KeepingMemory])
def test_a_collate_fn_may_keep_its_batches(kind: str, make: Any) -> None:
    workers = KINDS[kind]["num_workers"]
    if kind == "threads":
        workers = 0  # they share one collate function, so one of them is taken to compare
    options = {**KINDS[kind], "num_workers": 1} if kind == "threads" else KINDS[kind]
    ours = fl.DataLoader(Filled(), batch_size=2, collate_fn=make(), **options)
    stock = TorchDataLoader(Filled(), batch_size=2, collate_fn=make(), num_workers=workers)
    expected = [kept.tolist() for _, _, kept in stock]
    for _ in range(2):
        ours.collate_fn = make()
        assert [kept.tolist() for _, _, kept in ours] == expected


def test_what_a_worker_changes_later_does_not_reach_the_loop() -> None:
    loader = fl.DataLoader(Filled(), batch_size=2, collate_fn=Keeping(change=True), **KINDS["processes"])
    held = list(loader)
    assert all(is_intact(x, y) for x, y, _ in held)


class KeepingStream(IterableDataset[Any]):
    """A dataset that makes batches itself, in the loader's memory, and looks at earlier ones."""

    def __iter__(self) -> Iterator[Any]:
        before = None
        for number in range(12):
            batch = default_collate([torch.full(SHAPE, float(number))] * 3)
            yield batch, -1.0 if before is None else float(before[0, 0, 0])
            before = batch


@every_kind
def test_a_stream_may_keep_what_it_yielded(kind: str) -> None:
    loader = fl.DataLoader(
        KeepingStream(), batch_size=None, **{**KINDS[kind], "num_workers": KINDS[kind]["num_workers"] // 2}
    )
    for _ in range(2):
        seen = [(float(batch[0, 0, 0]), float(before)) for batch, before in loader]
        assert seen == [(float(number), float(number - 1)) for number in range(12)]


class Forking(Dataset[Any]):
    """Forks a child in the worker, which looks at a batch that the worker goes on to reuse."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return torch.full(SHAPE, float(index))

    def collate(self, samples: Any) -> Any:
        batch = default_collate(samples)
        if float(batch[0, 0, 0]) == 0:
            read, write = os.pipe()
            if os.fork() == 0:
                os.close(write)
                os.read(read, 1)  # until the worker ends
                intact = bool((batch[0].numpy() == 0).all() and (batch[1].numpy() == 1).all())
                pathlib.Path(self.folder, "verdict").write_text("intact" if intact else "changed")
                os._exit(0)
        return batch


def test_a_child_of_a_worker_keeps_its_batch(tmp_path: pathlib.Path) -> None:
    data = Forking(str(tmp_path))
    loader = fl.DataLoader(data, batch_size=2, num_workers=1, workers="processes", collate_fn=data.collate)
    for batch in loader:
        del batch
    verdict = tmp_path / "verdict"
    for _ in range(6000):
        if verdict.exists() and verdict.read_text():
            break
        threading.Event().wait(0.05)
    assert verdict.read_text() == "intact"


def test_batches_stay_in_the_memory_they_are_made_in() -> None:
    near, far = socket.socketpair()
    slots, lent = Slots(near), ConsumerSlots(far)
    addresses = set()
    for _ in range(20):
        tensor = slots.take((100, 100), torch.float32)
        tensor.fill_(3)
        parts = [memoryview(tensor.numpy()).cast("B")]
        del tensor
        pieces, _ = slots.send(parts)
        (memory,) = lent.take(pieces)
        addresses.add(memory.ctypes.data)
        assert (memory.view(np.float32) == 3).all()
        del memory
        slots.give_back(lent.returned())
    assert len(addresses) == 1
    near.close()
    far.close()


def test_memory_that_is_held_when_it_is_sent_is_copied() -> None:
    near, far = socket.socketpair()
    slots, lent = Slots(near), ConsumerSlots(far)
    kept = slots.take((100, 100), torch.float32)
    kept.fill_(3)
    pieces, _ = slots.send([memoryview(kept.numpy()).cast("B")])
    (memory,) = lent.take(pieces)
    kept.fill_(4)
    assert (memory.view(np.float32) == 3).all()
    other = slots.take((100, 100), torch.float32)
    other.fill_(5)
    assert (kept == 4).all()
    near.close()
    far.close()


def test_a_killed_worker_leaves_its_batches() -> None:
    loader = fl.DataLoader(Filled(), batch_size=2, **KINDS["processes"])
    held = []
    with pytest.warns(UserWarning, match="killed by signal"):
        batches = iter(loader)
        for number, batch in enumerate(batches):
            held.append(batch)
            if number == 4:
                os.kill(batches._workers[0].pid, signal.SIGKILL)
    assert len(held) == 24
    assert all(is_intact(x, y) for x, y in held)


@every_kind
def test_copies_and_pickles_of_batches_are_independent(kind: str) -> None:
    x, y = next(iter(fl.DataLoader(Filled(), batch_size=2, **KINDS[kind])))
    copied = copy.deepcopy(x)
    x.zero_()
    assert is_intact(copied, y)
