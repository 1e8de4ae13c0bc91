"""Orders and plans are what they were recorded to be, and what tables of all samples say."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from foreload import _native
from foreload.order import samplers
from foreload.order.ranks import Router
from foreload.order.resume import merged
from foreload.order.samplers import KeyedSampler, global_batches, global_rounds, rank_blocks
from foreload.order.skip import LeftOut
from tests.order.plain import PlainRouter, plain_order
from tests.order.recorded import RECORDED, orders, plans

recorded = json.loads(RECORDED.read_text())


@pytest.mark.slow
def test_orders_are_those_that_were_recorded() -> None:
    assert dict(orders()) == recorded["orders"]


@pytest.mark.slow
def test_plans_are_those_that_were_recorded() -> None:
    assert dict(plans()) == recorded["plans"]


numbers = st.integers(0, 45)
spans = st.tuples(numbers, st.integers(0, 8)).map(lambda span: (span[0], sum(span)))
kinds = st.sampled_from(["keyed", "torch", "unshuffled"])


def sampler_of(kind: str, samples: int, ranks: int, rank: int, drop_last: bool) -> Any:
    data: Any = range(samples)
    if kind == "keyed":
        return KeyedSampler(data, 3, 2, num_replicas=ranks, rank=rank, drop_last=drop_last)
    sampler: Any = DistributedSampler(data, ranks, rank, kind == "torch", 3, drop_last)
    sampler.set_epoch(2)
    return sampler


@given(
    kinds,
    numbers,
    st.integers(1, 9),
    st.booleans(),
    st.lists(spans, max_size=3),
    st.sets(numbers),
    st.integers(1, 9),
)
def test_an_order_drawn_in_blocks_is_that_of_all_ranks(
    kind: str, samples: int, ranks: int, drop_last: bool, taken: Any, skipped: Any, block: int
) -> None:
    sampler = sampler_of(kind, samples, ranks, 0, drop_last)
    skip = LeftOut([], np.array(sorted(skipped), np.int64))
    known: Any = []
    drawn: Any = []
    expected = plain_order(sampler, 2, merged(taken), skip, known)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samplers, "BLOCK", block)
        patch.setattr(samplers, "FIRST_BLOCK", block)
        rounds = list(global_rounds(sampler, 2, merged(taken), skip, drawn))
    assert all(len(part) % ranks == 0 for part in rounds)
    assert np.concatenate([*rounds, np.zeros(0, np.int64)]).tolist() == expected.tolist()
    assert merged(drawn) == merged(known)


@given(kinds, numbers, st.integers(1, 9), st.booleans(), numbers, st.integers(1, 9))
def test_a_rank_draws_its_part_without_that_of_others(
    kind: str, samples: int, ranks: int, drop_last: bool, start: int, block: int
) -> None:
    for rank in range(ranks):
        sampler = sampler_of(kind, samples, ranks, rank, drop_last)
        expected = plain_order(sampler, 2, [(0, start)] if start else [])[rank::ranks]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(samplers, "BLOCK", block)
            patch.setattr(samplers, "FIRST_BLOCK", block)
            assert rank_blocks(sampler, start).peek().tolist() == expected.tolist()


@given(kinds, numbers, st.integers(1, 9), st.integers(1, 7), st.booleans(), st.integers(0, 2**64 - 1))
def test_swaps_are_those_of_a_router_with_tables(
    kind: str, samples: int, ranks: int, batch: int, drop_last: bool, seed: int
) -> None:
    sampler = sampler_of(kind, samples, ranks, 0, drop_last)
    router, plain = Router(samples, ranks, seed), PlainRouter(samples, ranks, seed)
    for rank in range(ranks):
        assert router.owned_by(rank).tolist() == plain.owned_by(rank).tolist()
        assert router.owned_by(rank, 2).tolist() == plain.owned_by(rank)[:2].tolist()
    before = list(global_batches(sampler, 2, batch, drop_last))
    after = list(global_batches(sampler, 2, batch, drop_last, router))
    for parts, routed in zip(before, after, strict=True):
        expected = [part.tolist() for part in plain.route(list(parts))]
        assert (
            [part.tolist() for part in routed] == [part.tolist() for part in router.route(list(parts))] == expected
        )


@given(st.data(), st.integers(1, 6))
def test_swaps_of_uneven_parts_are_those_of_a_router_with_tables(data: Any, ranks: int) -> None:
    router, plain = Router(50, ranks, 7), PlainRouter(50, ranks, 7)
    part = st.lists(st.integers(0, 49), max_size=8)
    parts = [np.array(data.draw(part), np.int64) for _ in range(ranks)]
    assert [own.tolist() for own in router.route(parts)] == [own.tolist() for own in plain.route(parts)]


@given(st.integers(1, 2**62), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.data())
def test_positions_undo_the_permutation(n: int, seed: int, epoch: int, data: Any) -> None:
    start, stride = data.draw(st.integers(0, n - 1)), data.draw(st.integers(1, 2**63 - 1))
    count = min(100, (n - 1 - start) // stride + 1)
    values, found, one = (np.empty(count, np.int64) for _ in range(3))
    _native.permute(n, seed, epoch, start, values, stride)
    _native.positions(n, seed, epoch, values, found)
    assert found.tolist() == [start + i * stride for i in range(count)]
    for i, position in enumerate(found.tolist()):
        _native.permute(n, seed, epoch, position, one[i : i + 1])
    assert one.tolist() == values.tolist()


@pytest.mark.parametrize("values", [[-1], [5], [0, 1, 2**40]])
def test_samples_outside_of_the_dataset_have_no_position(values: list[int]) -> None:
    with pytest.raises(IndexError, match=str(values[-1])):
        Router(5, 2).route([np.array(values, np.int64), np.zeros(0, np.int64)])
