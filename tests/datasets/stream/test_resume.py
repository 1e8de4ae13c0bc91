"""Streams in loaders go on exactly after every batch, over ranks too."""

from __future__ import annotations

import io
import json
import pickle
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from tests.datasets.stream.numbers import Numbers, Rows, write_tar

WORKERS: dict[str, dict[str, Any]] = {
    "here": {"num_workers": 0},
    "threads": {"num_workers": 2, "workers": "threads"},
    "processes": {"num_workers": 2, "workers": "processes"},
}


def saved(state: Any) -> Any:
    """Through a file, as a checkpoint is, and as JSON, which shows that it is plain."""
    json.dumps(state["streams"])
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_stock_dataloader(tmp_path: Path) -> None:
    for number in range(4):
        write_tar(tmp_path / f"{number}.tar", range(number * 10, number * 10 + 10))
    data = fl.TarDataset(tmp_path)
    for stream in (data.stream(buffer=8, seed=1), fl.TarStream(tmp_path, buffer=8, seed=1)):
        for workers in (0, 1, 2):
            loader: Any = TorchDataLoader(stream, 7, num_workers=workers)
            keys = [int(key) for batch in loader for key in batch["cls"]]
            assert sorted(keys) == list(range(40)), (type(stream), workers)
            assert keys != list(range(40))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [fl.Stream, fl.TarStream])
@pytest.mark.parametrize("workers", WORKERS)
def test_it_goes_on_exactly_after_every_batch(kind: Any, workers: str, tmp_path: Path) -> None:
    for number in range(5):
        write_tar(tmp_path / f"{number}.tar", range(number * 8, number * 8 + 5 + number % 3))

    def make() -> Any:
        source = fl.TarDataset(tmp_path) if kind is fl.Stream else tmp_path
        stream = kind(source, buffer=6, seed=9)
        stream.set_epoch(3)
        return fl.DataLoader(stream, batch_size=3, collate_fn=_keys, **WORKERS[workers])

    expected = list(make())
    assert sorted(chain.from_iterable(expected)) == sorted(sample["cls"] for sample in fl.TarDataset(tmp_path))
    for stop in range(len(expected) + 1) if workers == "here" else (1, 2, 5, len(expected) - 1):
        loader = make()
        iterator = iter(loader)
        assert [next(iterator) for _ in range(stop)] == expected[:stop]
        state = saved(loader.state_dict())
        iterator.close()
        again = make()
        again.load_state_dict(state)
        assert list(again) == expected[stop:], stop


@pytest.mark.parametrize("kind", [fl.Stream, fl.TarStream])
def test_a_state_that_is_written_out_later_is_that_of_its_moment(kind: Any, tmp_path: Path) -> None:
    for number in range(2):
        write_tar(tmp_path / f"{number}.tar", range(number * 20, number * 20 + 20))
    items: Any = iter(kind(fl.TarDataset(tmp_path) if kind is fl.Stream else tmp_path, buffer=6, seed=9))
    for _ in range(5):
        next(items)
    expected, later = items.state_dict(), items.present_state()
    sent = pickle.loads(pickle.dumps(later))
    assert len(list(items)) == 35
    assert later.written() == sent.written() == expected
    assert len(expected["held"]) == 5


def _keys(samples: list[Any]) -> list[bytes]:
    return [sample["cls"] for sample in samples]


@settings(max_examples=25)
@given(st.integers(1, 200), st.integers(1, 30), st.integers(1, 20), st.integers(0, 9))
def test_states_may_follow_one_another(size: int, buffer: int, steps: int, seed: int) -> None:
    stream = fl.Stream(Numbers(size), buffer=buffer, seed=seed)
    expected = list(stream)
    iterator: Any = iter(stream)
    got: list[int] = []
    while len(got) < size:
        got += [next(iterator) for _ in range(min(steps, size - len(got)))]
        state = json.loads(json.dumps(iterator.state_dict()))
        source = Numbers(size)
        iterator = iter(fl.Stream(source, buffer=buffer))
        iterator.load_state_dict(state)
        assert iterator.state_dict() == state
        # The buffer is read again, and nothing else.
        assert sorted(index for run in source.asked for index in run) == sorted(state["held"])
    assert got == expected


def test_a_state_of_something_else_is_refused(tmp_path: Path) -> None:
    iterator: Any = iter(fl.Stream(range(100), buffer=10, seed=0))
    next(iterator)
    state = iterator.state_dict()
    for other, said in (
        (fl.Stream(range(100), buffer=11), "buffer = 10, but this one has 11"),
        (fl.Stream(range(100), buffer=10, num_replicas=2, rank=0), "ranks = 1, but this one has 2"),
        (fl.Stream(range(100), buffer=10, shuffle=False), "shuffle = True"),
        (fl.Stream(range(99), buffer=10), "of a dataset of 100 samples, but this one has 99"),
    ):
        another: Any = iter(other)
        with pytest.raises(ValueError, match=said):
            another.load_state_dict(state)
    paths = [write_tar(tmp_path / f"{number}.tar", range(9)) for number in range(2)]
    iterator = iter(fl.TarStream(paths, seed=0, buffer=12))
    next(iterator)
    one: Any = iter(fl.TarStream(paths[:1], seed=0, buffer=12))
    with pytest.raises(ValueError, match="stream of 2 shards, but this one has 1"):
        one.load_state_dict(iterator.state_dict())
    for path in paths:
        write_tar(path, range(2))
    one = iter(fl.TarStream(paths, seed=0, buffer=12))
    with pytest.raises(ValueError, match="tar has 2 samples, but had more when the state was taken"):
        one.load_state_dict(iterator.state_dict())
    for changed in (range(9), range(1, 10)):  # other sizes, other keys
        for path in paths:
            write_tar(path, changed, size=200 if changed[0] == 0 else 100)
        one = iter(fl.TarStream(paths, seed=0, buffer=12))
        with pytest.raises(ValueError, match=r"tar has other samples than when the state was taken"):
            one.load_state_dict(iterator.state_dict())


@pytest.mark.parametrize("kind", [fl.Stream, fl.TarStream])
def test_the_ranks_of_a_distributed_run_share_the_samples(kind: Any, tmp_path: Path) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    for number in range(5):
        write_tar(tmp_path / f"{number}.tar", range(number * 5, number * 5 + 5))
    seen: list[list[int]] = [[], [], []]
    for rank in range(2):
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
        try:
            stream = kind(fl.TarDataset(tmp_path) if kind is fl.Stream else tmp_path, buffer=5)
            loaders: list[Any] = [
                fl.DataLoader(stream, batch_size=None, num_workers=2, workers="threads"),
                TorchDataLoader(stream, None, num_workers=2),
            ]
            if rank == 1:  # in a process that knows of no group
                loaders.append(TorchDataLoader(stream, None, num_workers=1, multiprocessing_context="forkserver"))
            for keys, loader in zip(seen, loaders, strict=False):
                keys += [int(sample["cls"]) for sample in loader]
        finally:
            torch.distributed.destroy_process_group()
    assert sorted(seen[0]) == sorted(seen[1]) == list(range(25))
    assert set(seen[2]) == set(seen[1][-len(seen[2]) :])


def test_wrong_arguments() -> None:
    for kind, source in ((fl.Stream, range(9)), (fl.TarStream, "a.tar")):
        for arguments, error, said in (
            ({"buffer": 0}, ValueError, "buffer must be 1 or more, got 0"),
            ({"buffer": 1.5}, TypeError, "buffer must be an int, got 1.5"),
            ({"seed": -1}, ValueError, "seed must be from 0"),
            ({"shuffle": 1}, TypeError, "shuffle must be True or False, got 1"),
            ({"rank": 0}, ValueError, "num_replicas and rank must be given together"),
            ({"rank": 2, "num_replicas": 2}, ValueError, "rank must be from 0 to 1, got 2"),
            ({"rank": 0, "num_replicas": 0}, ValueError, "num_replicas must be 1 or more"),
        ):
            with pytest.raises(error, match=said):
                kind(source, **arguments)
    with pytest.raises(TypeError, match="dataset must be map-style, with __len__ and __getitem__, got set"):
        fl.Stream({1})

    class Wrong(Rows):
        def storage_blocks(self, size: int) -> list[int]:
            return [0, 5, 5]

    with pytest.raises(ValueError, match=r"Wrong.storage_blocks must return the first sample of each block"):
        next(iter(fl.Stream(Wrong("."))))
