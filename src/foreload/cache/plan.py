"""Cache plans, compiled from the order of samples before an epoch begins.

A plan is one bit per access: whether the sample stays cached until its next access. All policies compile to it,
and an access is a hit exactly if the last access to the same sample has its bit set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foreload import _native
from foreload.checks import Array
from foreload.options import POLICIES, Policy, PolicyFunction

__all__ = ["Plan", "compile_plan", "fixed_set"]


@dataclass(frozen=True)
class Plan:
    """The actions of a cache at each of a known sequence of accesses.

    Attributes:
        accesses: the sample of each access (int64).
        hits: whether the sample is cached then (bool).
        keep: whether it stays until its next access (bool). A hit that is not kept is evicted.
        retained: bool per sample: whether one that was cached before the first access stays until it is used.
    """

    accesses: Array
    hits: Array
    keep: Array
    retained: Array

    @property
    def hit_rate(self) -> float:
        """The share of accesses that are hits."""
        return float(self.hits.mean()) if len(self.hits) else 0.0

    def hit_rates(self, epochs: int) -> list[float]:
        """Return the share of hits in each of ``epochs`` equal parts."""
        return [float(part.mean()) for part in np.array_split(self.hits, epochs)]


def compile_plan(
    accesses: Array,
    samples: int,
    budget: int,
    policy: Policy | PolicyFunction = "opt",
    *,
    sizes: Array | None = None,
    costs: Array | None = None,
    resident: Array | None = None,
    tail: bool = False,
    seed: int = 0,
) -> Plan:
    """Compile the plan by which ``policy`` caches these accesses.

    Args:
        accesses: samples in the order of their accesses.
        samples: the number of samples.
        budget: in bytes, or in samples without ``sizes``.
        policy: ``"opt"`` reaches the most possible hits if sizes and costs are equal (Belady's MIN with bypass).
            Otherwise it saves at least half of the cost that could be saved if no sample takes over half of the
            budget (local ratio: Bar-Noy et al., JACM 48(5), 2001), in practice nearly all of it. ``"fixed"``
            keeps one set of samples all the time, those that save most per byte. The others are the classic
            ones, as in cachetools.
            A function is called with the accesses (first those of the samples that are cached already), the sizes
            and the budget. It returns a bool per access: whether the sample stays cached until its next one.
            ``costs``, ``tail`` and ``seed`` do not matter to it.
        sizes: bytes per sample (int64).
        costs: what a hit saves per sample, e.g. seconds (float64).
        resident: whether each sample is cached already (bool).
        tail: at the end, fill the rest of the budget with the samples that were used last.
        seed: for ``"random"``.

    Raises:
        ValueError: the policy is unknown, an array has the wrong length, or a policy function keeps more than
            the budget.
        TypeError: a policy function does not return a bool array.
        IndexError: an access is out of range.

    >>> plan = compile_plan([0, 1, 2, 0, 1, 2], 3, budget=1)
    >>> plan.hits.astype(int).tolist(), plan.keep.astype(int).tolist()
    ([0, 0, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0])
    """
    if not callable(policy) and policy not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, or a function, got {policy!r}")
    accesses = np.ascontiguousarray(accesses, np.int64)
    sizes = None if sizes is None else np.ascontiguousarray(sizes, np.int64)
    costs = None if costs is None else np.ascontiguousarray(costs, np.float64)
    resident = None if resident is None else np.ascontiguousarray(resident, np.bool_)
    if callable(policy):
        return _compile_function(policy, accesses, samples, budget, sizes, resident)
    if policy == "fixed":
        return _compile_fixed(accesses, samples, budget, sizes, costs, resident)
    hits = np.empty(len(accesses), np.bool_)
    keep = np.empty(len(accesses), np.bool_)
    retained = np.empty(samples, np.bool_)
    _native.compile_plan(
        accesses,
        samples,
        sizes,
        costs,
        None if resident is None else resident.view(np.uint8),
        policy,
        budget,
        tail,
        seed,
        hits.view(np.uint8),
        keep.view(np.uint8),
        retained.view(np.uint8),
    )
    plan = Plan(accesses, hits, keep, retained)
    if policy == "opt" and (sizes is not None or costs is not None):
        # The greedy schedule may be worse than one fixed set if all samples are about equally frequent.
        fixed = _compile_fixed(accesses, samples, budget, sizes, costs, resident)
        saved = (one.hits if costs is None else costs[accesses] * one.hits for one in (plan, fixed))
        mine, other = (float(np.sum(part)) for part in saved)
        return plan if mine >= other else fixed
    return plan


def _compile_fixed(
    accesses: Array, samples: int, budget: int, sizes: Array | None, costs: Array | None, resident: Array | None
) -> Plan:
    _check_accesses(accesses, samples)
    seen = np.bincount(accesses, minlength=samples)
    cached = np.zeros(samples, np.bool_) if resident is None else resident
    # The first access to a sample that is not cached is a miss in any case.
    values = (seen - ~cached * (seen > 0)) * (1.0 if costs is None else costs)
    members = fixed_set(values, np.ones(samples, np.int64) if sizes is None else sizes, budget)
    first = np.zeros(len(accesses), np.bool_)
    first[np.unique(accesses, return_index=True)[1]] = True
    keep = members[accesses]
    return Plan(accesses, keep & (~first | cached[accesses]), keep, members & cached)


def _compile_function(
    policy: PolicyFunction,
    accesses: Array,
    samples: int,
    budget: int,
    sizes: Array | None,
    resident: Array | None,
) -> Plan:
    _check_accesses(accesses, samples)
    sizes = np.ones(samples, np.int64) if sizes is None else sizes
    # A sample that is cached already is one that was kept at an access before these.
    cached = np.zeros(0, np.int64) if resident is None else np.flatnonzero(resident)
    trace = np.concatenate([cached, accesses])
    keep = np.asarray(policy(trace.copy(), sizes.copy(), budget))
    name = getattr(policy, "__name__", type(policy).__name__)
    if keep.dtype != np.bool_ or keep.shape != trace.shape:
        raise TypeError(
            f"policy {name} must return a bool for each of {len(trace)} accesses, got {keep.dtype} of shape "
            f"{keep.shape}"
        )
    hits = np.zeros(len(trace), np.bool_)
    by_sample = np.argsort(trace, kind="stable")
    again = np.flatnonzero(np.diff(trace[by_sample]) == 0)
    hits[by_sample[again + 1]] = keep[by_sample[again]]
    held = np.cumsum(sizes[trace] * (keep.astype(np.int64) - hits))
    if (over := np.flatnonzero(held > budget)).size:
        raise ValueError(
            f"policy {name} keeps {held[over[0]]} at access {over[0]}, but the budget is {budget}; "
            "let it keep fewer samples"
        )
    retained = np.zeros(samples, np.bool_)
    retained[cached] = keep[: len(cached)]
    return Plan(accesses, hits[len(cached) :], keep[len(cached) :], retained)


def _check_accesses(accesses: Array, samples: int) -> None:
    if len(accesses) and not 0 <= accesses.min() <= accesses.max() < samples:
        raise IndexError(f"accesses go from {accesses.min()} to {accesses.max()}, but there are {samples} samples")


def fixed_set(values: Array, sizes: Array, budget: int) -> Array:
    """Choose samples that fit into ``budget`` together, by value per byte (bool per sample).

    Their value is the best possible if all sizes are equal, otherwise at least half of it, in practice nearly all.

    >>> fixed_set(np.array([3.0, 1.0, 2.0]), np.array([10, 10, 10]), 20)
    array([ True, False,  True])
    """
    order = np.argsort(-values / np.maximum(sizes, 1), kind="stable")
    order = order[sizes[order] <= budget]
    chosen = np.zeros(len(values), np.bool_)
    left = budget
    while len(order):
        fits = np.cumsum(sizes[order]) <= left
        taken = order[fits]
        if not len(taken):
            break
        chosen[taken] = True
        left -= int(sizes[taken].sum())
        # The next sample is too large; a smaller one after it may fit.
        order = order[~fits]
        order = order[sizes[order] <= left]
    best = int(np.argmax(np.where(sizes <= budget, values, -1))) if len(values) else 0
    if len(values) and sizes[best] <= budget and values[best] > values[chosen].sum():
        chosen[:] = False
        chosen[best] = True
    return chosen
