"""Streams give each sample once over ranks and workers, shuffled, and read in blocks."""

from __future__ import annotations

from functools import partial
from itertools import chain, permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from foreload.order import KeyedSampler
from tests.datasets.stream.numbers import Numbers, Rows


def part(dataset: Any, worker: int, workers: int, **options: Any) -> list[Any]:
    """Return what one worker of one rank gives."""
    info = SimpleNamespace(id=worker, num_workers=workers, seed=1000 + worker)
    with patch("foreload.order.shuffle.get_worker_info", lambda: info):
        return list(fl.Stream(dataset, **options))


# The order.


@given(
    size=st.integers(0, 300),
    ranks=st.integers(1, 4),
    workers=st.integers(1, 4),
    buffer=st.integers(1, 100),
    seed=st.one_of(st.none(), st.integers(0, 2**64 - 1)),
    epoch=st.integers(0, 2**31),
)
def test_each_sample_once_dealt_evenly(
    size: int, ranks: int, workers: int, buffer: int, seed: int | None, epoch: int
) -> None:
    # By hand: the blocks in the order that the seed gives them, cut into as many equal parts.
    length = max(1, min(buffer // 16, size // 64))
    blocks = [range(begin, min(size, begin + length)) for begin in range(0, size, length)]
    known = seed if seed is not None else 0 if ranks > 1 else 1000
    order = [index for block in KeyedSampler(blocks, known, epoch) for index in blocks[block]]
    readers = ranks * workers
    seen: list[int] = []
    for rank in range(ranks):
        counted = 0
        for worker in range(workers):
            stream = partial(part, Numbers(size), worker, workers, buffer=buffer, seed=seed)
            with patch.object(fl.Stream, "epoch", epoch):
                got = stream(num_replicas=ranks, rank=rank)
            reader = rank * workers + worker
            own = order[size * reader // readers : size * (reader + 1) // readers]
            assert sorted(got) == sorted(own)
            # Nothing leaves the buffer before it came in, and the buffer holds no more than it may.
            assert all(own.index(index) < place + buffer for place, index in enumerate(got))
            counted += len(got)
            seen += got
        assert counted == len(fl.Stream(range(size), num_replicas=ranks, rank=rank))
    assert sorted(seen) == list(range(size))


@pytest.mark.parametrize("workers", [1, 3])
def test_without_shuffle_the_order_is_that_of_storage(workers: int) -> None:
    data = Numbers(100)
    assert [i for worker in range(workers) for i in part(data, worker, workers, shuffle=False)] == list(range(100))


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        stream = fl.Stream(range(500), buffer=30, seed=seed)
        stream.set_epoch(epoch)
        torch.rand(3)
        return list(stream)

    orders = {(seed, epoch): order(seed, epoch) for seed in (0, 1, 2**64 - 1) for epoch in (0, 1, 7)}
    assert all(order(*key) == known for key, known in orders.items())
    assert len({tuple(each) for each in orders.values()}) == len(orders)


def test_without_a_seed_torchs_generator_gives_one_for_each_epoch() -> None:
    stream = fl.Stream(range(200), buffer=20)
    for loader in (stream, TorchDataLoader(stream, num_workers=2, batch_size=None)):
        torch.manual_seed(5)
        first, second = list(loader), list(loader)
        torch.manual_seed(5)
        assert list(loader) == first != second
        assert sorted(first) == sorted(second) == list(range(200))


def test_every_sample_can_come_anywhere_and_neighbours_part() -> None:
    size, epochs = 2000, 60
    stream = fl.Stream(range(size), buffer=100, seed=3)
    places = np.empty((epochs, size), np.int64)
    for epoch in range(epochs):
        stream.set_epoch(epoch)
        order = np.array(list(stream))
        places[epoch, order] = np.arange(size)
        assert abs(np.corrcoef(order, np.arange(size))[0, 1]) < 0.35
        assert (np.abs(np.diff(order)) == 1).mean() < 0.1
    # Each is early, late and in the middle at times, on average in the middle.
    tenths = places * 10 // size
    assert all(len(set(tenths[:, index].tolist())) >= 7 for index in range(size))
    assert np.abs(places.mean(0) - size / 2).max() < 5 * size / (12 * epochs) ** 0.5


def test_what_is_stored_by_class_is_mixed() -> None:
    classes = np.array(list(fl.Stream(range(20_000), buffer=1000, seed=0))) // 1000
    batches = classes[: len(classes) // 64 * 64].reshape(-1, 64)
    # With all twenty at random, a batch has 19 of them on average.
    assert np.mean([len(set(batch.tolist())) for batch in batches]) > 12


@pytest.mark.parametrize("loader", [TorchDataLoader, fl.DataLoader])
def test_set_epoch_reaches_workers_that_persist(loader: Any) -> None:
    stream = fl.Stream(range(100), seed=1, buffer=10)
    made = loader(stream, batch_size=None, num_workers=2, persistent_workers=True)
    orders = []
    for epoch in (0, 1, 0):
        stream.set_epoch(epoch)
        orders.append([int(index) for index in made])
    assert orders[0] == orders[2] != orders[1]
    assert all(sorted(order) == list(range(100)) for order in orders)
    if isinstance(made, fl.DataLoader):
        made.close()


# Reading.


def test_neighbours_are_read_together_and_no_more_than_are_held() -> None:
    data = Numbers(20_000)
    stream = iter(fl.Stream(data, buffer=100, seed=0))
    given = 0
    for _ in stream:
        given += 1
        assert sum(map(len, data.asked)) <= given + 100 + 25
    assert np.mean(list(map(len, data.asked))) == 25
    # Blocks of six.
    assert np.mean([np.diff(together) == 1 for together in data.asked if len(together) == 25]) > 0.75
    assert given == 20_000


def test_blocks_of_ones_own_are_kept_together(tmp_path: Path) -> None:
    rows = Rows(tmp_path, transform=lambda number: number * 10, target_transform=str)
    loader: Any = fl.DataLoader(
        rows.stream(buffer=1, seed=2), batch_size=None, num_workers=0, on_error="skip", collate_fn=lambda row: row
    )
    order = [row[0] // 10 for row in loader]
    runs = [[*range(13), *range(14, 20)], [20], list(range(21, 50))]
    assert any(order == list(chain.from_iterable(chosen)) for chosen in permutations(runs))
    assert len(loader.errors) == 1
    assert "no 13" in loader.errors[0].error


def test_a_failed_sample_is_named_and_the_others_come() -> None:
    stream = iter(fl.Stream(Numbers(100, broken=[7, 8]), buffer=10, seed=0))
    seen, failures = [], []
    while True:
        try:
            seen.append(next(stream))
        except StopIteration:
            break
        except OSError as error:
            failures.append((str(error), error.__notes__))
    assert sorted(seen) == [index for index in range(100) if index not in (7, 8)]
    assert sorted(failures) == [(f"no {index}", [f"foreload: while loading sample {index}"]) for index in (7, 8)]
