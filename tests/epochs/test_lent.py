"""Batches of a stream that no copy stands for are the loop's until it asks for the next one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from torch.utils.data import IterableDataset

import foreload as fl


class Refills(IterableDataset[Any]):
    """Yields one buffer again and again, beside what no copy of it would be."""

    thread_safe = True

    def __init__(self, tag: Any) -> None:
        self.tag = tag

    def __iter__(self) -> Iterator[Any]:
        row = {"x": np.zeros(1), "tag": self.tag}
        for number in range(20):
            row["x"][:] = number
            yield row


@pytest.mark.parametrize("tag", [object(), threading.Lock(), {"a"}, "a"], ids=lambda tag: type(tag).__name__)
def test_a_buffer_that_is_filled_again_is_the_loops_until_it_asks_for_the_next(tag: Any) -> None:
    found = []
    loader: Any = fl.DataLoader(Refills(tag), batch_size=None, collate_fn=lambda sample: sample)
    for batch in loader:
        time.sleep(0.002)
        found.append(int(batch["x"][0]))
    assert found == [*range(20)]
    first = next(iter(loader))  # and the thread ends, though the loop has it
    assert first["x"].shape == (1,)


def test_so_it_is_with_one_worker_thread() -> None:
    """Stock raises here, since no process can be sent a lock."""
    found = []
    with pytest.warns(UserWarning, match="copying it fails"):
        for batch in fl.DataLoader(
            Refills(threading.Lock()), batch_size=None, collate_fn=lambda sample: sample, num_workers=1
        ):
            time.sleep(0.002)
            found.append(int(batch["x"][0]))
    assert found == [*range(20)]
