"""Every cache policy with every kind of worker: samples, order, generators and predictions."""

from __future__ import annotations

import functools
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import RandomSampler

import foreload as fl
from foreload.cache.plan import compile_plan
from foreload.options import POLICIES
from tests.cache.varied import ORDERS, SIZE, Varied, block, epochs_of, listed
from tests.pairwise import pairwise


def largest(accesses: Any, sizes: Any, budget: int) -> Any:
    """A policy of the user's own: keep the largest samples."""
    order = np.argsort(-sizes, kind="stable")
    members = np.zeros(len(sizes), np.bool_)
    members[order[np.cumsum(sizes[order]) <= budget]] = True
    return members[accesses]


every_policy = pytest.mark.parametrize("policy", [*POLICIES, largest])

BUDGET = 80_000  # for about half of the samples
WORKERS: dict[str, dict[str, Any]] = {
    "none": {"num_workers": 0},
    "threads": {"num_workers": 2, "workers": "threads"},
    "persistent threads": {"num_workers": 2, "workers": "threads", "persistent_workers": True},
}
PROCESSES: dict[str, dict[str, Any]] = {
    method + (", persistent" if persistent else ""): {
        "workers": "processes",
        "num_workers": 2,
        "multiprocessing_context": method,
        "persistent_workers": persistent,
    }
    for method in ("fork", "forkserver", "spawn")
    for persistent in (False, True)
}


@functools.cache
def stocks(order: str, own: bool, epochs: int, persistent: bool) -> tuple[Any, Any]:
    """Return what torch gives, which draws base seeds without workers too, but only once for persistent ones."""
    arguments = {"num_workers": 2 if persistent else 0, "persistent_workers": persistent}
    got, states, _ = epochs_of(TorchDataLoader, Varied(), order, own, epochs, **arguments)
    return got, states


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("order", "policy", "workers", "own"), pairwise(ORDERS, [*POLICIES, largest], WORKERS, [True, False])
)
def test_samples_order_and_generators_are_torchs(order: str, policy: Any, workers: str, own: bool) -> None:
    dataset = Varied()
    cache = fl.Cache(BUDGET, policy=policy)
    got, states, loader = epochs_of(fl.DataLoader, dataset, order, own, 3, cache=cache, **WORKERS[workers])
    assert (got, states) == stocks(order, own, 3, workers == "persistent threads")
    counts = loader.stats()["cache"]
    one_by_one = ORDERS[order](dataset, None).get("batch_size", 1) is None
    assert counts["hits"] + counts["misses"] == sum(1 if one_by_one else len(b) for e in got for b in e)
    assert counts["misses"] == dataset.calls.sum()
    assert counts["used"] <= counts["peak"] <= counts["room"] <= BUDGET
    assert counts["unforeseen"] == 0
    assert counts["hits"] > 0 or policy != "opt"
    loader.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "order",
    [
        "replacement",
        "one by one, shuffled",
        *(pytest.param(order, marks=pytest.mark.slow) for order in ("distributed", "more than there are")),
    ],
)
@pytest.mark.parametrize(
    "processes",
    [pytest.param(name, marks=pytest.mark.slow) if name.startswith("spawn") else name for name in PROCESSES],
)
def test_processes_of_all_kinds_share_one_cache(processes: str, order: str) -> None:
    arguments = PROCESSES[processes]
    for own in (True, False) if "fork" in processes.split(",") else (True,):
        dataset = Varied()
        got, states, loader = epochs_of(fl.DataLoader, dataset, order, own, 2, cache="1MiB", **arguments)
        expected, expected_states = stocks(order, own, 2, arguments["persistent_workers"])
        assert got == expected
        assert states == expected_states
        assert (dataset.calls <= 1).all()
        counts = loader.stats()["cache"]
        assert counts["misses"] == dataset.calls.sum()
        assert counts["hits"] > 0
        loader.close()


class Even(Varied):
    """Samples of one size."""

    def __getitem__(self, index: int) -> Any:
        self.calls[index] += 1
        return torch.full((99,), index)


@pytest.mark.sampled(3)
@every_policy
@pytest.mark.parametrize("capacity", [0, 1, 40, SIZE])
@pytest.mark.filterwarnings("ignore:.*budget")
def test_predictions_come_true_where_samples_are_of_one_size(policy: Any, capacity: int) -> None:
    dataset = Even()
    generator = torch.Generator().manual_seed(0)
    sampler = RandomSampler(dataset, replacement=True, generator=generator)
    room = capacity * block(torch.zeros(99, dtype=torch.int64))
    cache = fl.Cache(room + 63 if capacity else 0, policy=policy)
    loader = fl.DataLoader(dataset, batch_size=10, num_workers=0, sampler=sampler, cache=cache)
    before, predicted = 0, 0
    accesses: list[int] = []
    for _ in range(4):
        accesses += [int(row[0]) for batch in loader for row in batch]
        hits = loader.stats()["cache"]["hits"]
        planned = (
            0
            if loader.sample_cache is None or loader.sample_cache.plan is None
            else loader.sample_cache.plan.hits.sum()
        )
        assert hits - before == planned
        before = hits
        predicted += int(planned)
    assert dataset.calls.sum() == len(accesses) - predicted
    if policy in ("opt", "lru"):
        # Epoch by epoch it is what the whole would be.
        assert predicted == compile_plan(np.array(accesses), SIZE, capacity, policy).hits.sum()


@pytest.mark.sampled(3)
@every_policy
def test_finished_batches_in_any_order_are_the_same_batches(policy: Any) -> None:
    class Uneven(Varied):
        def __getitem__(self, index: int) -> dict[str, Any]:
            time.sleep(0.003 * (index % 5 == 0))
            return super().__getitem__(index)

    dataset = Uneven()
    generator = torch.Generator().manual_seed(0)
    sampler = RandomSampler(dataset, replacement=True, generator=generator)
    arguments: Any = {"batch_size": 4, "collate_fn": listed, "sampler": sampler}
    loader = fl.DataLoader(
        dataset,
        num_workers=3,
        workers="threads",
        in_order=False,
        cache=fl.Cache(60_000, policy=policy),
        **arguments,
    )
    got = [[sample["name"] for sample in batch] for _ in range(3) for batch in loader]
    generator.manual_seed(0)
    expected = [
        [sample["name"] for sample in batch] for _ in range(3) for batch in TorchDataLoader(dataset, **arguments)
    ]
    assert sorted(got) == sorted(expected)
