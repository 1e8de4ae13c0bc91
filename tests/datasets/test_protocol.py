"""Hooks of datasets and samplers are taken by inheritance, not by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, Sampler, Subset

import foreload as fl
from foreload.cache.fingerprint import fingerprint
from foreload.cache.wrappers import has_remote_samples
from foreload.order import KeyedSampler
from foreload.protocol import (
    ArraySampler,
    BlockStorage,
    EpochListener,
    ImageForms,
    LoaderDefaults,
    NativeBatches,
    SampleSource,
    TwoStage,
    TwoStageBatches,
)

HOOKS = (
    ArraySampler,
    BlockStorage,
    EpochListener,
    ImageForms,
    LoaderDefaults,
    NativeBatches,
    SampleSource,
    TwoStage,
    TwoStageBatches,
)
NAMES = sorted({name for hook in HOOKS for name in vars(hook) if not name.startswith("_")})


class Numbers(Dataset[int]):
    """A user's own dataset, some of whose names happen to be those of hooks."""

    is_held = is_remote = True

    def __init__(self) -> None:
        self.classes = ["a"]

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return index

    def wrong(self, *_: Any) -> Any:
        raise AssertionError("the user's own method was taken for a hook")


for _name in NAMES:
    if _name not in ("is_held", "is_remote"):
        setattr(Numbers, _name, Numbers.wrong)


class Order(Sampler[int]):
    """A user's own sampler with names of hooks."""

    def __iter__(self) -> Iterator[int]:
        return iter([5, 3, 1])

    def __len__(self) -> int:
        return 3

    order_blocks = restore_drawn = Numbers.wrong


def delivered(loader: Any) -> list[int]:
    return [int(index) for batch in loader for index in batch]


def test_every_hook_is_tried_below() -> None:
    assert NAMES == [
        "batch_assembly",
        "check_order",
        "default_collate",
        "epoch_begins",
        "fingerprint",
        "finish_sample",
        "form_costs",
        "is_held",
        "is_remote",
        "order_blocks",
        "prepare_sample",
        "prepare_samples",
        "read_many",
        "restore_drawn",
        "seeded_sampler",
        "storage_blocks",
    ]


@pytest.mark.parametrize("wrap", [lambda dataset: dataset, lambda dataset: Subset(dataset, range(12))])
@pytest.mark.parametrize(
    "options", [{}, {"cache": "1MiB"}, {"num_workers": 2}, {"transform": lambda index: index}]
)
def test_methods_of_a_users_dataset_are_no_hooks(options: dict[str, Any], wrap: Any) -> None:
    with fl.DataLoader(wrap(Numbers()), 5, **options) as loader:
        assert delivered(loader) == list(range(12))
        assert delivered(loader) == list(range(12))
    with fl.DataLoader(wrap(Numbers()), 5, shuffle=True, seed=1, **options) as loader:
        assert isinstance(loader.sampler, KeyedSampler)
        assert sorted(delivered(loader)) == list(range(12))


def test_a_users_names_are_neither_remote_nor_a_fingerprint_nor_blocks() -> None:
    numbers = Numbers()
    assert not has_remote_samples(numbers)
    assert fingerprint(numbers) == fingerprint(Numbers())
    assert sorted(fl.Stream(numbers, buffer=3, seed=0)) == list(range(12))
    assert [fl.AsyncPrefetchDataset(numbers)[i] for i in range(12)] == list(range(12))


def test_methods_of_a_users_sampler_are_no_hooks() -> None:
    loader: Any = fl.DataLoader(range(12), 2, sampler=Order())  # type: ignore[arg-type]
    epoch = iter(loader)
    assert next(epoch).tolist() == [5, 3]
    state = loader.state_dict()
    again: Any = fl.DataLoader(range(12), 2, sampler=Order())  # type: ignore[arg-type]
    again.load_state_dict(state)
    assert delivered(again) == [1]


def test_wrappers_do_not_pass_on_the_hooks_of_what_they_wrap(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"abc")
    files = fl.FileDataset(tmp_path)
    ahead = fl.AsyncPrefetchDataset(files)
    assert ahead.batch_assembly  # an attribute is found ...
    assert not isinstance(ahead, NativeBatches)  # ... but samples come from the threads that load ahead
    assert next(iter(fl.DataLoader(ahead, 1))).tolist() == [[97, 98, 99]]


class Doubled(Dataset[int], TwoStageBatches, EpochListener, LoaderDefaults):
    """Takes part in some hooks."""

    def __init__(self) -> None:
        self.orders: list[list[int] | None] = []
        self.keys: list[tuple[int, int]] = []
        self.prepared: list[int] = []
        self.checked = 0

    def __len__(self) -> int:
        return 6

    def check_order(self) -> None:
        self.checked += 1

    def __getitem__(self, index: int) -> int:
        return 2 * index

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [2 * index for index in indices]

    def prepare_samples(self, indices: Any, keep: Any = "auto") -> list[int]:
        self.prepared += indices
        return list(indices)

    def finish_sample(self, index: int, prepared: Any) -> int:
        assert index == prepared
        return 2 * index

    def epoch_begins(self, order: Any, key: tuple[int, int]) -> None:
        self.orders.append(None if order is None else order.tolist())
        self.keys.append(key)

    @property
    def default_collate(self) -> Any:
        return list


def test_who_inherits_takes_part_and_may_decline() -> None:
    doubled = Doubled()
    plain: Any = fl.DataLoader(doubled, 4, shuffle=True, seed=3)
    assert isinstance(plain.sampler, KeyedSampler)  # seeded_sampler() returned None
    assert doubled.checked == 0
    batches = list(plain)
    assert all(type(batch) is list for batch in batches)
    assert doubled.orders == [[index // 2 for batch in batches for index in batch]]
    assert doubled.keys == [(3, 0)]
    assert doubled.prepared == []
    with fl.DataLoader(doubled, 4, cache="1MiB", num_workers=0) as cached:
        assert delivered(cached) == delivered(cached) == [0, 2, 4, 6, 8, 10]
    assert sorted(set(doubled.prepared)) == list(range(6))
    assert doubled.checked == 1


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name not in ("is_held", "is_remote", "default_collate")]
)
def test_a_hook_that_is_not_written_says_so_or_declines(name: str) -> None:
    kind = next(hook for hook in HOOKS if name in vars(hook))
    arguments = {"prepare_sample": 1, "storage_blocks": 1, "form_costs": 0, "fingerprint": 0, "batch_assembly": 3}
    arguments |= {"seeded_sampler": 1, "epoch_begins": 2, "order_blocks": 1, "restore_drawn": 1, "read_many": 1}
    arguments["check_order"] = 0
    method = getattr(type("Mine", (kind,), {})(), name)
    given = [torch.zeros(0)] * arguments.get(name, 2)
    if name in ("check_order", "fingerprint", "seeded_sampler", "restore_drawn"):
        assert method(*given) is None
        return
    with pytest.raises(NotImplementedError, match=rf"^Mine must have a method {name}\("):
        method(*given)
