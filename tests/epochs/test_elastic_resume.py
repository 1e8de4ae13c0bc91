"""Runs that go on with another number of ranks, in the middle of an epoch: real processes of torch.distributed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler

import foreload as fl
from tests.ranks import Numbers, run_ranks

SIZE, EPOCH = 397, 3


def plain(batches: Iterable[Any]) -> list[list[int]]:
    return [torch.atleast_1d(torch.as_tensor(batch)).tolist() for batch in batches]


SKIPPED = [3, 50, 51, 200, 396]

# The arguments of a loader before and after the interruption.
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "same": ({}, {}),
    "other batches": ({"batch_size": 3}, {"batch_size": 8}),
    "drop_last": ({"drop_last": True}, {"drop_last": True}),
    "in order": ({"shuffle": False}, {"shuffle": False}),
    "one by one": ({"batch_size": None}, {"batch_size": None}),
    "one by one, in order": ({"batch_size": None, "shuffle": False}, {"batch_size": None, "shuffle": False}),
    "workers": ({"num_workers": 2, "workers": "threads"}, {"num_workers": 1, "workers": "processes"}),
    "cache": ({"cache": "8KiB"}, {"cache": "8KiB"}),
    "routed": ({"cache": fl.Cache("8KiB", route=True)}, {"cache": fl.Cache("8KiB", route=True)}),
    "skipped steps": ({"skip": fl.Skip(steps=[0, 2])}, {"skip": fl.Skip(steps=[0])}),
    "skipped samples": ({"skip": fl.Skip(samples=SKIPPED)}, {"skip": fl.Skip(samples=SKIPPED)}),
    "skipped samples, routed": (
        {"skip": fl.Skip(samples=SKIPPED), "cache": fl.Cache("8KiB", route=True)},
        {"skip": fl.Skip(samples=SKIPPED), "cache": fl.Cache("8KiB", route=True)},
    ),
    "DistributedSampler": ({"stock": True}, {"stock": True}),
    "DistributedSampler, one by one": ({"stock": True, "batch_size": None}, {"stock": True, "batch_size": None}),
}


def make(rank: int, world: int, stock: bool = False, **arguments: Any) -> Any:
    arguments = {"batch_size": 5, "num_workers": 0, "seed": 9, "shuffle": True, **arguments}
    if stock:
        arguments["sampler"] = DistributedSampler(Numbers(SIZE), world, rank, seed=9)
        arguments |= {"seed": None, "shuffle": None}
    loader = fl.DataLoader(Numbers(SIZE), **arguments)
    loader.set_epoch(EPOCH)
    return loader


def begin(rank: int, world: int, stop: int) -> dict[str, Any]:
    """Load some batches of each loader; return them and the state."""
    found = {}
    for name, (arguments, _) in CHANGES.items():
        with make(rank, world, **arguments) as loader:
            batches = iter(loader)
            loaded = plain(next(batches) for _ in range(stop))
            found[name] = loaded, json.loads(json.dumps(loader.state_dict()))
    return found


def go_on(rank: int, world: int, states: dict[str, Any]) -> dict[str, Any]:
    """Load the rest of the epoch, and the next one."""
    found = {}
    for name, (_, arguments) in CHANGES.items():
        with make(rank, world, **arguments) as loader:
            loader.load_state_dict(states[name])
            rest = plain(loader)
            loader.set_epoch(EPOCH + 1)
            found[name] = rest, plain(loader)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [(2, 4), *(pytest.param(*ranks, marks=pytest.mark.slow) for ranks in [(4, 2), (8, 3), (1, 8)])],
)
def test_each_sample_that_was_left_comes_once(before: int, after: int, tmp_path: Path) -> None:
    first = run_ranks(begin, before, tmp_path / "before", 4)
    states = {name: first[0][name][1] for name in CHANGES}
    for name in CHANGES:  # whichever rank's state is saved
        assert all(rank[name][1]["given"] == states[name]["given"] for rank in first), name
    second = run_ranks(go_on, after, tmp_path / "after", states)
    for name, (was, is_) in CHANGES.items():
        seen = [index for rank in first for batch in rank[name][0] for index in batch]
        assert len(seen) == len(set(seen)) == before * 4 * (was.get("batch_size", 5) or 1), name
        parts = [rank[name][0] for rank in second]
        assert len({len(part) for part in parts}) == 1, name
        assert {len(step) for step in zip(*([len(b) for b in part] for part in parts), strict=True)} == {after}
        counts = Counter(index for part in parts for batch in part for index in batch)
        left = set(range(SIZE)) - set(seen)
        if "samples" in name:
            left -= set(SKIPPED)
            assert not set(SKIPPED) & set(seen)
        if "steps" in name:  # numbered as the present ranks have them; what was passed over is not made up for
            left = set(list(make(0, 1, batch_size=None))[max(6 * 5 * before, 5 * after) :])
        batch = is_.get("batch_size", 5) or 1
        if is_.get("drop_last"):
            assert set(counts) <= left, name
            assert set(counts.values()) == {1}, name
            assert sum(counts.values()) == len(left) // after // batch * batch * after, name
        else:
            assert left <= set(counts), name
            # No more than fills the last round, from the beginning of the order.
            assert sum(counts.values()) - len(left) == -len(left) % after, name
            assert sum(counts[index] - 1 for index in left) + sum(counts[i] for i in set(counts) - left) < after
        epoch = {index for rank in second for batch in rank[name][1] for index in batch}
        if not is_.get("drop_last") and "skip" not in is_:
            assert epoch == set(range(SIZE)), name


def differ(rank: int, world: int, states: list[Any]) -> str:
    """Go on from this rank's own state, after rank 0."""
    loader = make(rank, world)
    loader.load_state_dict(states[rank])
    if rank:
        torch.distributed.barrier()
    try:
        loaded = plain(loader)
    except ValueError as error:
        return str(error)
    finally:
        if not rank:
            torch.distributed.barrier()
    return f"{len(loaded)} steps"


def test_ranks_that_would_go_on_from_different_places_are_told(tmp_path: Path) -> None:
    ahead = [run_ranks(begin, 2, tmp_path / f"{stop}", stop) for stop in (3, 4)]
    states = [ahead[0][0]["same"][1], ahead[1][1]["same"][1]]  # rank 1 was a step ahead
    steps = -(-SIZE // 2 // 5) - 3
    first, second = run_ranks(differ, 2, tmp_path / "differ", states)
    assert first == f"{steps} steps"
    assert "goes on from another place than the first rank to do so" in second
    assert "Load one state on all ranks" in second
    assert run_ranks(differ, 2, tmp_path / "slowest", [states[0]] * 2) == [f"{steps} steps"] * 2
    # With another number of ranks, the place must be the same to the position.
    first, second, third = run_ranks(differ, 3, tmp_path / "other", [*states, states[0]])
    assert "another place" in second
    assert first == third


def out_of_order(rank: int, world: int, stop: int) -> list[int]:
    """Load with in_order=False, which delivers other batches first on each rank; go on from the own state."""
    with make(rank, world, num_workers=2, workers="threads", in_order=False) as loader:
        batches = iter(loader)
        seen = plain(next(batches) for _ in range(stop))
        state = loader.state_dict()
    with make(rank, world, num_workers=0) as loader:
        loader.load_state_dict(state)
        seen += plain(loader)
    return [index for batch in seen for index in batch]


def test_ranks_whose_batches_came_out_of_order_go_on_from_states_of_their_own(tmp_path: Path) -> None:
    parts = run_ranks(out_of_order, 2, tmp_path, 5)
    assert len(parts[0]) == len(parts[1])
    assert sorted(set(parts[0] + parts[1])) == list(range(SIZE))
    assert len(parts[0] + parts[1]) == SIZE + 1
