"""A generator of the user's is drawn from as under torch, by whatever workers load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, RandomSampler, Sampler, TensorDataset, random_split

import foreload as fl

Loader = Callable[..., Any]


class Numbers(Dataset[Any]):
    """A dataset of the user's."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index)


DATASETS: dict[str, Callable[[int], Any]] = {
    "tensors": lambda size: TensorDataset(torch.arange(size)),
    "a list": lambda size: [torch.tensor(index) for index in range(size)],
    "an array": lambda size: torch.arange(size).numpy(),
    "the user's": Numbers,
}


def _rows(batch: Any) -> list[int]:
    part = batch[0] if isinstance(batch, (list, tuple)) else batch
    return [int(value) for value in part]


def draws_in_the_loop(make: Loader, data: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    loader = make(data, batch_size=2, shuffle=True, generator=generator)
    return [(_rows(batch), torch.rand(1, generator=generator).item()) for _ in range(2) for batch in loader]


def draws_from_the_default_one(make: Loader, data: Any) -> Any:
    torch.manual_seed(0)
    loader = make(data, batch_size=2, shuffle=True, generator=torch.default_generator)
    return [(_rows(batch), torch.rand(1).item()) for _ in range(2) for batch in loader]


def shares_it(make: Loader, data: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    one, other = (make(data, batch_size=2, shuffle=True, generator=generator) for _ in range(2))
    return [(_rows(a), _rows(b)) for _ in range(2) for a, b in zip(one, other, strict=True)]


def leaves_early(make: Loader, data: Any) -> Any:
    loader = make(data, batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(0))
    return [_rows(next(iter(loader))) for _ in range(3)]


def asks_for_no_end(make: Loader, data: Any) -> Any:
    loader = make(data, batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(0))
    found = []
    for _ in range(3):
        batches = iter(loader)
        found += [_rows(next(batches)) for _ in range(len(loader))]
    return found


def draws_more_than_there_are(make: Loader, data: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    sampler = RandomSampler(data, num_samples=len(data) * 5 // 2, generator=generator)
    loader = make(data, batch_size=2, sampler=sampler)
    found = [_rows(next(iter(loader))) for _ in range(3)]
    return found, torch.rand(1, generator=generator).item()


def splits_with_it(make: Loader, data: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    part, _ = random_split(data, [0.75, 0.25], generator=generator)
    loader = make(part, batch_size=2, shuffle=True, drop_last=True, generator=generator)
    batches = iter(loader)
    first = [_rows(next(batches)) for _ in range(len(loader))]
    return first, list(map(_rows, loader)), torch.rand(1, generator=generator).item()


USES = [
    draws_in_the_loop,
    draws_from_the_default_one,
    shares_it,
    leaves_early,
    asks_for_no_end,
    draws_more_than_there_are,
    splits_with_it,
]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("size", [6, 40])
def test_by_threads_it_is_drawn_from_as_by_torchs_workers(use: Any, name: str, size: int) -> None:
    options: dict[str, Any] = {"num_workers": 2}
    if name == "the user's":
        options["workers"] = "threads"
    found = use(lambda *args, **more: fl.DataLoader(*args, **options, **more), DATASETS[name](size))
    expected = use(lambda *args, **more: TorchDataLoader(*args, num_workers=2, **more), DATASETS[name](size))
    assert found == expected


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", DATASETS)
def test_without_workers_and_by_default_it_is_drawn_from_as_by_torch_without(use: Any, name: str) -> None:
    expected = use(TorchDataLoader, DATASETS[name](12))
    assert use(fl.DataLoader, DATASETS[name](12)) == expected
    assert use(lambda *args, **more: fl.DataLoader(*args, num_workers=0, **more), DATASETS[name](12)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("options", [{"persistent_workers": True}, {"prefetch_factor": 1}, {"prefetch_factor": 5}])
def test_other_options_change_nothing_of_that(use: Any, options: dict[str, Any]) -> None:
    options = {**options, "num_workers": 3}
    found, expected = (
        use(lambda *args, kind=kind, **more: kind(*args, **options, **more), TensorDataset(torch.arange(40)))
        for kind in (fl.DataLoader, TorchDataLoader)
    )
    assert found == expected


class Breaks(Sampler[int]):
    """Raises an error after two indices."""

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Any:
        yield 0
        yield 1
        raise ValueError("the sampler broke")


@pytest.mark.parametrize("kind", [TorchDataLoader, fl.DataLoader])
def test_an_error_of_a_sampler_that_workers_need_at_once_comes_at_once(kind: Any) -> None:
    loader = kind(list(range(8)), sampler=Breaks(), num_workers=2)
    with pytest.raises(ValueError, match="the sampler broke"):
        iter(loader)


@pytest.mark.parametrize("kind", [TorchDataLoader, fl.DataLoader])
def test_a_flag_may_say_how_many_workers(kind: Any) -> None:
    assert kind([1, 2], num_workers=False).num_workers == 0
    assert [batch.tolist() for batch in kind([1, 2], num_workers=True)] == [[1], [2]]
