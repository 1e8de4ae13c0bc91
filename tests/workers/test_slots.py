"""Memory that workers share with the loop: its descriptors arrive whole, however many, whatever else is lost."""

from __future__ import annotations

import socket
from itertools import islice
from typing import Any

import torch
from torch.utils.data import Dataset

import foreload as fl
from foreload.workers.processes.slots import ConsumerSlots, Slots

_PARTS, _LENGTH = 400, 16 << 10  # so long that each part of a batch has a slot of its own


class Wide(Dataset[Any]):
    """Samples of more parts than a socket holds messages."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        return [torch.full((_LENGTH,), index * 1000.0 + part) for part in range(_PARTS)]


def test_a_batch_of_hundreds_of_large_tensors_comes() -> None:
    loader = fl.DataLoader(Wide(), batch_size=1, num_workers=1, workers="processes", timeout=60)
    for index, batch in enumerate(loader):
        assert [part[0, [0, -1]].tolist() for part in batch] == [
            [index * 1000.0 + part] * 2 for part in range(_PARTS)
        ]


def test_a_message_that_is_lost_takes_no_other_ones_memory() -> None:
    near, far = socket.socketpair()
    slots, lent = Slots(near), ConsumerSlots(far)
    sent = []
    for value in (1, 2, 3):
        memory = slots.take_bytes(10_000)
        memory[:] = value
        parts = [memory.data]
        del memory
        sent.append(slots.send(parts)[0])
    # The loop was interrupted (Ctrl-C) when it had read the first message.
    (batch,), (last,) = (lent.take(pieces) for pieces in islice(sent, 1, None))
    assert (batch[0], batch[-1], last[0], last[-1]) == (2, 2, 3, 3)
    near.close()
    far.close()
