"""Plans against exhaustive search, against cachetools, and against what must always hold."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import cachetools
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreload.cache.forms import ENCODED, PLANES, RGB, choose_forms, fitted, option
from foreload.cache.plan import compile_plan, fixed_set
from foreload.options import POLICIES

traces = st.lists(st.integers(0, 7), max_size=60)
sizes_of_8 = st.lists(st.integers(1, 9), min_size=8, max_size=8)


def most_hits(accesses: list[int], capacity: int, resident: frozenset[int]) -> int:
    """The best over every decision that a cache could take."""

    @cache
    def best(at: int, cached: frozenset[int]) -> int:
        if at == len(accesses):
            return 0
        sample = accesses[at]
        if sample in cached:
            return 1 + max(best(at + 1, cached), best(at + 1, cached - {sample}))
        outcomes = [best(at + 1, cached)]
        if capacity and len(cached) < capacity:
            outcomes.append(best(at + 1, cached | {sample}))
        elif capacity:
            outcomes += [best(at + 1, cached - {dropped} | {sample}) for dropped in cached]
        return max(outcomes)

    return best(0, resident)


@settings(max_examples=2 * settings.default.max_examples)
@given(
    st.lists(st.integers(0, 5), max_size=14), st.integers(0, 4), st.frozensets(st.integers(0, 5)), st.booleans()
)
def test_opt_is_optimal(accesses: list[int], capacity: int, resident: frozenset[int], tail: bool) -> None:
    resident = frozenset(sorted(resident)[:capacity])
    flags = np.array([i in resident for i in range(6)])
    plan = compile_plan(accesses, 6, capacity, resident=flags, tail=tail)
    assert plan.hits.sum() == most_hits(accesses, capacity, resident)


@given(traces, sizes_of_8, st.integers(0, 30), st.sampled_from(POLICIES), st.booleans(), st.booleans())
def test_what_must_hold(
    accesses: list[int], sizes: list[int], budget: int, policy: Any, tail: bool, begun: bool
) -> None:
    resident = np.zeros(8, np.bool_)
    if begun:
        resident = np.cumsum(sizes) <= budget
    plan = compile_plan(accesses, 8, budget, policy, sizes=sizes, resident=resident, tail=tail)
    assert not (plan.retained & ~resident).any()
    held = dict.fromkeys(np.flatnonzero(plan.retained).tolist())
    for sample, hit, keep in zip(accesses, plan.hits, plan.keep, strict=True):
        assert hit == (sample in held)
        held.pop(sample, None)
        if keep:
            held[sample] = None
        assert sum(sizes[i] for i in held) <= budget


@given(traces, sizes_of_8, st.integers(0, 30), st.booleans(), st.integers(0, 2**32))
def test_a_policy_of_ones_own_is_executed_bit_by_bit(
    accesses: list[int], sizes: list[int], budget: int, begun: bool, seed: int
) -> None:
    resident = (np.cumsum(sizes) <= budget) & begun
    wanted: list[bool] = []

    def whenever_it_fits(trace: Any, bytes_each: Any, most: int) -> Any:
        assert trace.tolist() == [*np.flatnonzero(resident), *accesses]
        assert (bytes_each.tolist(), most) == (sizes, budget)
        random, held = np.random.default_rng(seed), set()
        for sample in trace.tolist():
            held.discard(sample)
            fits = sum(sizes[i] for i in held) + sizes[sample] <= budget
            wanted.append(bool(fits and random.integers(4)))
            held |= {sample} if wanted[-1] else set()
        return np.array(wanted, np.bool_)

    plan = compile_plan(accesses, 8, budget, whenever_it_fits, sizes=sizes, resident=resident)
    cached = np.flatnonzero(resident).tolist()
    assert plan.keep.tolist() == wanted[len(cached) :]
    held = {sample for sample, stays in zip(cached, wanted, strict=False) if stays}
    assert np.flatnonzero(plan.retained).tolist() == sorted(held)
    for sample, hit, keep in zip(accesses, plan.hits, plan.keep, strict=True):
        assert hit == (sample in held)
        held = held | {sample} if keep else held - {sample}


def test_a_policy_of_ones_own_that_makes_no_sense_is_named() -> None:
    def hoard(accesses: Any, sizes: Any, budget: int) -> Any:
        return np.ones(len(accesses), np.bool_)

    def counts(accesses: Any, sizes: Any, budget: int) -> Any:
        return np.ones(len(accesses), np.int64)

    with pytest.raises(ValueError, match="policy hoard keeps 30 at access 2, but the budget is 25"):
        compile_plan([0, 1, 2], 3, 25, hoard, sizes=[10, 10, 10])
    with pytest.raises(TypeError, match="policy counts must return a bool for each of 3 accesses, got int64"):
        compile_plan([0, 1, 2], 3, 25, counts)
    with pytest.raises(IndexError):
        compile_plan([0, 5], 2, 1, hoard)


@given(traces, sizes_of_8, st.integers(0, 30), st.sampled_from(["lru", "lfu", "fifo"]))
def test_classic_policies_do_what_cachetools_does(
    accesses: list[int], sizes: list[int], budget: int, policy: Any
) -> None:
    kind = {"lru": cachetools.LRUCache, "lfu": cachetools.LFUCache, "fifo": cachetools.FIFOCache}[policy]
    theirs: Any = kind(budget, getsizeof=lambda sample: sizes[sample])
    hits = []
    for sample in accesses:
        hits.append(sample in theirs)
        if hits[-1]:
            theirs[sample]
        elif sizes[sample] <= budget:
            theirs[sample] = sample
    assert compile_plan(accesses, 8, budget, policy, sizes=sizes).hits.tolist() == hits


@given(st.integers(1, 6), st.integers(0, 7), st.integers(1, 4), st.randoms())
def test_for_permutations_no_policy_beats_a_fixed_set(
    samples: int, capacity: int, epochs: int, random: Any
) -> None:
    orders = [random.sample(range(samples), samples) for _ in range(epochs)]
    accesses = list(itertools.chain(*orders))
    fixed = compile_plan(accesses, samples, capacity, "fixed").hits.sum()
    assert fixed == min(capacity, samples) * (epochs - 1)
    if len(accesses) <= 14:
        assert fixed == most_hits(accesses, capacity, frozenset())
    assert all(compile_plan(accesses, samples, capacity, policy).hits.sum() <= fixed for policy in POLICIES)


def test_replacement_sampling_gives_the_known_rates() -> None:
    samples, epochs = 5000, 9
    accesses = np.random.default_rng(0).integers(0, samples, epochs * samples)
    warm = {
        policy: np.mean(compile_plan(accesses, samples, samples // 2, policy).hit_rates(epochs)[1:])
        for policy in POLICIES
    }
    assert warm["opt"] == pytest.approx(0.81, abs=0.01)
    for policy in ("lru", "fifo", "lfu", "random"):
        assert warm[policy] == pytest.approx(0.50, abs=0.01)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 12)), max_size=9), st.integers(0, 40))
def test_a_fixed_set_is_at_least_half_as_good_as_the_best(items: list[tuple[int, int]], budget: int) -> None:
    values = np.array([value for value, _ in items], float)
    sizes = np.array([size for _, size in items], np.int64)
    chosen = fixed_set(values, sizes, budget)
    best = max(
        sum(items[i][0] for i in some)
        for count in range(len(items) + 1)
        for some in itertools.combinations(range(len(items)), count)
        if sum(items[i][1] for i in some) <= budget
    )
    assert sizes[chosen].sum() <= budget
    assert 2 * values[chosen].sum() >= best
    if len(set(sizes.tolist())) <= 1:
        assert values[chosen].sum() == best


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(0, 3000), st.randoms())
def test_forms_are_chosen_within_one_image_of_the_best(images: int, budget: int, random: Any) -> None:
    costs = np.array(
        [[random.randint(0, 9), random.randint(0, 30), random.randint(50, 300), 200, 1] for _ in range(images)]
    )
    costs = costs.T.astype(float)
    forms = (ENCODED, RGB, PLANES)
    kept = choose_forms(costs, forms, budget)
    sizes, saves = zip(*(option(form, costs) for form in forms), strict=True)
    used = sum(sizes[forms.index(kept.forms[i])][i] for i in range(images) if kept.members[i])
    assert used <= budget
    best = max(
        sum(saves[form][i] for i, form in enumerate(some) if form is not None)
        for some in itertools.product((None, 0, 1, 2), repeat=images)
        if sum(sizes[form][i] for i, form in enumerate(some) if form is not None) <= budget
    )
    assert kept.saved >= best - max(costs[0] + costs[1]) - 1e-9


@given(st.tuples(*[st.floats(0, 1e-6)] * 2, st.floats(1e-6, 1e-3)), st.booleans(), st.integers(0, 100))
def test_times_are_fitted_by_sizes_and_what_cancels_is_nothing(
    line: tuple[float, float, float], alike: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    encoded = random.integers(4900, 5100, 200) if alike else random.integers(100_000, 300_000, 200)
    pixels = np.full(200, 133_120) if alike else encoded * random.uniform(8, 12, 200)
    true = line[0] * encoded + line[1] * pixels + line[2]
    # Some have been decoded whole, the others in part.
    noise = random.choice([0.8, 1.2], 200) if alike else np.ones(200)
    costs = np.stack([np.zeros(200), true * noise, encoded, pixels, np.ones(200)])
    found = fitted(costs)[1]
    assert found == pytest.approx(true, rel=0.15 if alike else 1e-4)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="policy must be one of opt, fixed"):
        compile_plan([0], 1, 1, "mru")  # type: ignore[arg-type]
    for policy in ("opt", "lru", "fixed"):
        with pytest.raises(IndexError):
            compile_plan([0, 5], 2, 1, policy)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sizes must have 2 entries"):
        compile_plan([0], 2, 1, sizes=[1])
