"""Workers can be seeded, whatever other threads draw from torch's generator as they are forked."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

import foreload as fl


@pytest.fixture(name="_drawing")
def drawing() -> Iterator[None]:
    """Draw numbers in another thread all the time, which locks the generator nearly all the time."""
    numbers, is_over = torch.empty(1_000_000), threading.Event()

    def draw() -> None:
        while not is_over.is_set():
            numbers.uniform_()

    thread = threading.Thread(target=draw)
    state = torch.get_rng_state()
    thread.start()
    yield
    is_over.set()
    thread.join()
    torch.set_rng_state(state)


@pytest.mark.usefixtures("_drawing")
@pytest.mark.filterwarnings("ignore:DataLoader worker .* is killed")
def test_workers_can_be_seeded() -> None:
    """The lock of the generator is free as they are forked; if it is not after all, another takes its place."""
    for _ in range(3):
        batches = list(fl.DataLoader(range(20), 10, num_workers=2, workers="processes", timeout=100))
        assert torch.cat(batches).tolist() == list(range(20))
