"""The iterator of a loader with persistent workers, which is the same for all epochs, as in torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from tests.workers.kinds import Numbers

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "stock": (TorchDataLoader, {"num_workers": 2}),
    "threads": (fl.DataLoader, {"num_workers": 2, "workers": "threads"}),
    "processes": (fl.DataLoader, {"num_workers": 2}),
    "auto": (fl.DataLoader, {}),
}


@pytest.fixture(params=KINDS)
def loader(request: pytest.FixtureRequest) -> Iterator[Any]:
    make, options = KINDS[request.param]
    loader = make(Numbers(), batch_size=4, persistent_workers=True, **options)
    yield loader
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()


def first_of(batches: Any) -> list[int]:
    return [int(batch[0]) for batch in batches]


def test_it_is_one_object_which_begins_again(loader: Any) -> None:
    batches = iter(loader)
    assert first_of([next(batches), next(batches)]) == [0, 4]
    assert iter(loader) is batches is loader._iterator
    assert batches._num_yielded == 0
    assert first_of(batches) == [0, 4, 8, 12, 16]
    assert batches._num_yielded == len(batches) == 5
    assert first_of(batches) == []
    assert first_of(loader) == [0, 4, 8, 12, 16]


def test_loops_at_once_share_an_epoch(loader: Any) -> None:
    assert [first_of(pair) for pair in zip(loader, loader, strict=False)] == [[0, 4], [8, 12]]
    nested = [(int(outer[0]), first_of(loader)) for outer in loader]
    assert nested == [(0, [0, 4, 8, 12, 16])]


def test_a_loader_that_is_reset_gets_another(loader: Any) -> None:
    batches: Any = iter(loader)
    next(batches)
    batches._shutdown_workers()
    loader._iterator = None  # as Lightning resets a loader
    other = iter(loader)
    assert other is not batches
    assert first_of(other) == [0, 4, 8, 12, 16]


def test_a_prefetched_loader_is_timed_where_its_loop_waits() -> None:
    loader: Any = fl.DataLoader(Numbers(), batch_size=4, num_workers=1, workers="threads", persistent_workers=True)
    prefetched = fl.PrefetchLoader(loader, "meta")
    for _ in range(2):
        assert len([*prefetched]) == 5
    assert loader.stats()["stages"]["device"]["count"] == 10
    loader.close()


def test_a_prefetched_iterator_begins_again_with_its_loader() -> None:
    loader: Any = fl.DataLoader(Numbers(), batch_size=4, num_workers=1, workers="threads", persistent_workers=True)
    prefetched = fl.PrefetchLoader(iter(loader), "cpu", device_transform=lambda batch: batch)
    assert first_of(prefetched) == [0, 4, 8, 12, 16]
    iter(loader)
    assert first_of(prefetched) == [0, 4, 8, 12, 16]
    loader.close()
