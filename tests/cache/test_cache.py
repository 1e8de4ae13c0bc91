"""DataLoader(cache=): the samples that come without it, loaded as rarely as the plan says."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, RandomSampler

import foreload as fl
from foreload.options import parse_bytes
from tests.cache.counted import SIZE, WORKERS, Counted, room_for

ORDERS: dict[str, Callable[[Dataset[Any], torch.Generator | None], dict[str, Any]]] = {
    "shuffle": lambda d, g: {"shuffle": True, "generator": g},
    "replacement": lambda d, g: {"sampler": RandomSampler(d, replacement=True, generator=g)},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", WORKERS)
def test_samples_are_right(workers: str) -> None:
    dataset = Counted()
    loader = fl.DataLoader(
        dataset, batch_size=8, shuffle=True, seed=0, cache=room_for(SIZE // 2), **WORKERS[workers]
    )
    for _ in range(3):
        for x, y in loader:
            assert torch.equal(x, y[:, None].float().expand(-1, 100))
    # Each sample once per epoch: every epoch after the first hits what is kept.
    assert loader.stats()["cache"]["hits"] == 2 * (SIZE // 2)
    assert dataset.calls.sum() == 3 * SIZE - 2 * (SIZE // 2)
    loader.close()


@pytest.mark.slow
def test_two_threads_reach_what_one_reaches() -> None:
    hits = []
    for workers in (1, 2, 4):
        dataset = Counted(1000)
        loader = fl.DataLoader(
            dataset,
            batch_size=8,
            num_workers=workers,
            workers="threads",
            sampler=RandomSampler(dataset, replacement=True, generator=torch.Generator().manual_seed(0)),
            cache=room_for(500),
        )
        for _ in range(4):
            for x, y in loader:
                assert torch.equal(x[:, 7].long(), y)
        hits.append(loader.stats()["cache"]["hits"])
        assert loader.stats()["cache"]["samples"] <= 500
    assert max(hits) - min(hits) <= 0.002 * max(hits)


def test_what_is_random_is_not_kept() -> None:
    dataset = Counted()
    loader = fl.DataLoader(
        dataset,
        batch_size=8,
        num_workers=2,
        workers="threads",
        cache="1MiB",
        transform=lambda s: (s[0] + torch.rand(()), s[1]),
    )
    epochs = [torch.cat([x for x, _ in loader]) for _ in range(2)]
    assert dataset.calls.sum() == SIZE
    assert (epochs[0] != epochs[1]).all()
    assert ((epochs[0] - torch.arange(SIZE)[:, None]) < 1).all()


def test_a_transform_needs_no_cache() -> None:
    for workers in WORKERS.values():
        loader = fl.DataLoader(Counted(), batch_size=60, transform=shifted, **workers)
        assert [y.tolist() for _, y in loader] == [list(range(1, 61)), list(range(61, 121))]
        loader.close()
    tensors = torch.utils.data.TensorDataset(torch.arange(4.0))
    assert next(iter(fl.DataLoader(tensors, batch_size=4, transform=lambda row: -row[0]))).tolist() == [
        0,
        -1,
        -2,
        -3,
    ]


def shifted(sample: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
    return sample[0], sample[1] + 1


def test_epochs_that_are_open_at_once() -> None:
    dataset = Counted()
    for order in ("shuffle", "replacement"):
        chosen = ORDERS[order](dataset, torch.Generator().manual_seed(1))
        loader = fl.DataLoader(
            dataset, batch_size=8, num_workers=2, workers="threads", cache=room_for(50), **chosen
        )
        for (x, y), (u, v) in zip(loader, loader, strict=True):
            assert torch.equal(x[:, 0].long(), y)
            assert torch.equal(u[:, 0].long(), v)


def test_two_loaders_do_not_share() -> None:
    small, large = Counted(20, 5), Counted(20, 7)
    loaders = [fl.DataLoader(dataset, batch_size=4, cache="1MiB") for dataset in (small, large)]
    for _ in range(2):
        for (x, _), (u, _) in zip(*loaders, strict=True):
            assert (x.shape, u.shape) == ((4, 5), (4, 7))


@pytest.mark.parametrize("workers", ["none", "threads", "processes"])
def test_epochs_that_are_left_early(workers: str) -> None:
    dataset = Counted()
    chosen = ORDERS["replacement"](dataset, torch.Generator().manual_seed(1))
    loader = fl.DataLoader(dataset, batch_size=8, cache=room_for(50), **chosen, **WORKERS[workers])
    for stop in (1, 3, 0, 5):
        for x, y in itertools.islice(loader, stop):
            assert torch.equal(x[:, 0].long(), y)
    assert loader.stats()["cache"]["hits"] > 0


def test_an_order_that_turns_out_otherwise() -> None:
    generator = torch.Generator().manual_seed(0)
    dataset = Counted()
    loader = fl.DataLoader(
        dataset,
        batch_size=8,
        num_workers=0,
        cache=room_for(50),
        sampler=RandomSampler(dataset, replacement=True, generator=generator),
    )
    for _ in range(3):
        iterator = iter(loader)
        generator.manual_seed(99)  # after the plan was made
        for x, y in iterator:
            assert torch.equal(x[:, 0].long(), y)


def test_samples_that_fail_can_be_asked_for_again() -> None:
    class Broken(Counted):
        def __getitem__(self, index: int) -> Any:
            if index == 5 and self.calls[5] < 2:
                self.calls[5] += 1
                raise KeyError("not yet")
            return super().__getitem__(index)

    loader = fl.DataLoader(Broken(), batch_size=8, num_workers=2, workers="threads", cache="1MiB")
    for _ in range(2):
        with pytest.raises(KeyError, match="not yet"):
            list(loader)
    assert next(iter(loader))[1].tolist() == list(range(8))


def test_datasets_that_load_several_at_once() -> None:
    class Many(Counted):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [self[index] for index in indices]

    dataset = Many()
    chosen = ORDERS["replacement"](dataset, torch.Generator().manual_seed(1))
    loader = fl.DataLoader(dataset, batch_size=8, num_workers=2, workers="threads", cache=room_for(60), **chosen)
    for _ in range(3):
        for x, y in loader:
            assert torch.equal(x[:, 0].long(), y)
    counts = loader.stats()["cache"]
    assert counts["misses"] == dataset.calls.sum() < 2 * SIZE


def test_without_collation() -> None:
    loader = fl.DataLoader(Counted(), batch_size=None, num_workers=2, workers="threads", cache="1MiB")
    for _ in range(2):
        for i, (x, y) in enumerate(loader):
            assert (x == i).all()
            assert y == i
            x += 1  # it is the caller's


def test_samples_of_other_indices_pass_by() -> None:
    class Named(Dataset[Any]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, name: Any) -> str:
            return f"<{name!r}>"

    names: Any = ["a", -1, 2, ("x", 1), torch.tensor(1)]
    loader = fl.DataLoader(Named(), batch_size=None, sampler=names, cache="1MiB", num_workers=0)
    for _ in range(2):
        assert list(loader) == ["<'a'>", "<-1>", "<2>", "<('x', 1)>", "<tensor(1)>"]


def test_a_dataset_is_seen_as_itself_in_workers() -> None:
    class Asking(Counted):
        def __getitem__(self, index: int) -> Any:
            info: Any = torch.utils.data.get_worker_info()
            return info.dataset.size

    for workers in ("threads", "processes"):
        loader = fl.DataLoader(Asking(), batch_size=60, cache="1MiB", **WORKERS[workers])
        assert [batch.tolist() for batch in loader] == [[SIZE] * 60] * 2


def test_a_transform_of_the_datasets_own_is_warned_of() -> None:
    dataset = Counted()
    dataset.transform = abs  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match=r"after its own 'transform'.*DataLoader\(transform=...\)"):
        next(iter(fl.DataLoader(dataset, cache="1MiB")))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"cache": "abc"}, ValueError, "cache budget must be bytes, or a text such as '8GiB'"),
        ({"cache": "150%"}, ValueError, "cache budget must be at most 100% of the memory"),
        ({"cache": "8 parsecs"}, ValueError, "cache budget"),
        ({"cache": "-1GiB"}, ValueError, "cache budget"),
        ({"cache": "nan%"}, ValueError, "cache budget"),
        ({"cache": -1}, ValueError, "cache budget must be 0 or more"),
        ({"cache": 1.5}, TypeError, "cache budget must be an int or a text"),
        ({"cache": True}, TypeError, "cache budget"),
        ({"transform": 3}, TypeError, "transform must be callable"),
    ],
)
def test_wrong_arguments_are_named(arguments: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        fl.DataLoader(Counted(), **arguments)


def test_wrong_configurations_are_named() -> None:
    with pytest.raises(ValueError, match="cache policy must be one of opt"):
        fl.Cache("1MiB", policy="best")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cache keep must be one of"):
        fl.Cache("1MiB", keep="raw")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="cache spill must be a folder"):
        fl.Cache("1MiB", spill=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="map-style"):
        fl.DataLoader(Stream(), cache="1MiB")


@pytest.mark.parametrize("order", [{}, {"shuffle": True}, {"sampler": [3, 1, 2]}])
def test_one_rank_swaps_with_none_in_any_order(order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = fl.Cache("1MiB", route=True)
    batches = []
    for options in ({}, {"cache": cache}):
        torch.manual_seed(0)
        batches.append(
            [[field.tolist() for field in batch] for batch in fl.DataLoader(Counted(), **order, **options)]
        )
    assert batches[0] == batches[1]
    monkeypatch.setattr("foreload.cache.loader_cache.present_rank", lambda: (0, 2))
    with pytest.raises(ValueError, match="DistributedSampler"):
        next(iter(fl.DataLoader(Counted(), **order, cache=cache)))


def test_more_than_there_is_is_said_and_cut() -> None:
    with pytest.warns(UserWarning, match="more than this process may use"):
        loader = fl.DataLoader(Counted(), batch_size=8, cache="1000TiB")
    assert len(list(loader)) == 15
    assert loader.stats()["cache"]["room"] <= parse_bytes("100%")


def test_budgets_are_read_as_people_write_them() -> None:
    for text, amount in (
        ("1k", 1024),
        ("1 KB", 1000),
        ("0.5 MiB", 1 << 19),
        ("7", 7),
        ("2GiB", 2 << 30),
        ("10b", 10),
    ):
        assert parse_bytes(text) == amount


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        ("0.5", r"got '0\.5'; for a share of the memory, write '50%'"),
        (".125b", r"write '12\.5%'"),
        ("1.5", "whole bytes, got '1.5'; give a unit"),
        ("0.0001 KiB", "whole bytes"),
        *(
            (amount, f"or a text such as .*, got '{amount}'")
            for amount in ("", "-1", "nan", "1e400", "inf%", "5 G 3")
        ),
        ("101%", "at most 100%"),
    ],
)
def test_amounts_that_make_no_sense_are_refused(amount: str, words: str) -> None:
    with pytest.raises(ValueError, match=f"cache budget must be .*{words}"):
        fl.Cache(amount)


def test_loaders_with_a_cache_can_be_copied() -> None:
    loader = fl.DataLoader(Counted(), batch_size=8, cache="1MiB")
    list(loader)
    for other in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert other.cache == loader.cache
        assert len(list(other)) == 15
        assert other.stats()["cache"]["hits"] == 0
    with loader:
        list(loader)
    assert loader.stats()["cache"] is None


def test_parts_of_any_dataset_share_its_places() -> None:
    dataset = Counted()
    some = torch.utils.data.Subset(dataset, range(50, 70))
    for workers in WORKERS.values():
        dataset.calls.zero_()
        loader = fl.DataLoader(some, batch_size=5, shuffle=True, cache="1MiB", **workers)
        for _ in range(3):
            assert sorted(int(i) for x, y in loader for i in y) == list(range(50, 70))
        assert dataset.calls.sum() == 20
        loader.close()


def test_a_dataset_without_a_length_is_refused() -> None:
    class Endless(Dataset[int]):
        def __getitem__(self, index: int) -> int:
            return index

    with pytest.raises(TypeError, match="cache: Endless has no __len__"):
        next(iter(fl.DataLoader(Endless(), sampler=[1, 2], cache="1MiB")))
