"""Page-locked memory that is lent and given back."""

from __future__ import annotations

import pytest
import torch

from foreload.device.ring import HostRing


class Allocated:
    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, size: int) -> torch.Tensor:
        self.sizes.append(size)
        return torch.empty(size, dtype=torch.uint8)


def test_memory_is_lent_again_only_after_it_was_given_back() -> None:
    allocated = Allocated()
    ring = HostRing(allocated)
    first = ring.stage(torch.ones(3))
    lent = ring.collect()
    second = ring.stage(torch.zeros(3))
    assert first.tolist() == [1, 1, 1]
    assert second.data_ptr() != first.data_ptr()
    ring.give_back(lent)
    assert ring.stage(torch.zeros(5)).data_ptr() == first.data_ptr()
    assert len(allocated.sizes) == 2


def test_batches_of_different_lengths_share_memory() -> None:
    allocated = Allocated()
    ring = HostRing(allocated)
    for length in range(1100, 2000):
        ring.stage(torch.ones(length))
        ring.give_back(ring.collect())
    assert allocated.sizes == [8192]


def test_memory_that_is_no_longer_used_is_freed() -> None:
    allocated = Allocated()
    ring = HostRing(allocated)
    for power in range(20):
        ring.stage(torch.ones(1 << power))
        ring.give_back(ring.collect())
        assert sum(map(len, ring._free.values())) <= 1
    assert list(map(len, ring._free.values()))[-1] == 1


def test_memory_of_inference_mode_serves_outside_of_it() -> None:
    ring = HostRing(Allocated())
    with torch.inference_mode():
        ring.stage(torch.ones(3))
    ring.give_back(ring.collect())
    assert ring.stage(torch.ones(3)).tolist() == [1, 1, 1]


def test_what_could_not_be_allocated_is_not_counted_as_lent() -> None:
    def refuse(size: int) -> torch.Tensor:
        raise MemoryError

    allocated = Allocated()
    ring = HostRing(refuse)
    for _ in range(5):
        with pytest.raises(MemoryError):
            ring.stage(torch.ones(3))
    ring._allocate = allocated
    for power in range(20):
        ring.stage(torch.ones(1 << power))
        ring.give_back(ring.collect())
        assert sum(map(len, ring._free.values())) <= 1
