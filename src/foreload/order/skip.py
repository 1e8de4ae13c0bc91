"""Steps and samples to leave out of what is still to come."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from foreload.checks import Array, Indices, check_int, known_length
from foreload.errors import warn_user
from foreload.order.resume import Ranges, Start, merged
from foreload.protocol import OrderBlocks

__all__ = ["LeftOut", "Skip", "check_skip", "left_out_of", "remaining_blocks"]


@dataclass(frozen=True)
class Skip:
    """Steps and samples that a loader leaves out of what is still to come.

    Steps are numbered from 0 in each epoch, as it is without anything left out: a step stands for the samples that
    its batch would have. If samples are left out, those behind them move up, so that all batches but the last are
    full. Whatever was delivered before a state was saved stays delivered.

    Args:
        steps: numbers of steps and ranges of them: ``[1207]``, ``range(1200, 1300)``, ``[7, range(20, 30)]``.
        samples: indices of samples in the dataset. The loader warns of those that it does not have.
        epoch: the epoch in which they are left out; None: every epoch.

    Raises:
        TypeError, ValueError: a step or sample is not an integer of 0 or more.

    >>> import foreload
    >>> loader = foreload.DataLoader(list(range(10)), batch_size=2, skip=Skip(steps=[1], samples=[8]))
    >>> [batch.tolist() for batch in loader]
    [[0, 1], [4, 5], [6, 7], [9]]
    """

    steps: int | range | Sequence[int | range] = ()
    samples: int | range | Iterable[int] = ()
    epoch: int | None = None

    def __post_init__(self) -> None:
        """Check the arguments, and hold them as tuples."""
        object.__setattr__(self, "steps", tuple(_checked_steps(self.steps)))
        object.__setattr__(self, "samples", _checked_samples(self.samples))
        if self.epoch is not None:
            object.__setattr__(self, "epoch", check_int("Skip: epoch", self.epoch, 0))


def _checked_steps(steps: Any) -> list[int | range]:
    if isinstance(steps, str) or not (isinstance(steps, Iterable) or hasattr(steps, "__index__")):
        raise TypeError(f"Skip: steps must be ints and ranges, got {steps!r}")
    checked: list[int | range] = []
    for part in [steps] if isinstance(steps, range) or not isinstance(steps, Iterable) else steps:
        if not isinstance(part, range):
            checked.append(check_int("Skip: steps", part, 0))
        elif len(part):
            check_int("Skip: steps", min(part), 0)
            checked.append(part)
    return checked


def _checked_samples(samples: Any) -> tuple[int, ...]:
    if isinstance(samples, range):
        return tuple(samples) if not len(samples) or check_int("Skip: samples", min(samples), 0) >= 0 else ()
    if isinstance(samples, str) or not (isinstance(samples, Iterable) or hasattr(samples, "__index__")):
        raise TypeError(f"Skip: samples must be the indices of samples, got {samples!r}")
    is_one = not isinstance(samples, Iterable) or getattr(samples, "ndim", 1) == 0
    parts: Any = [samples] if is_one else samples
    return tuple(check_int("Skip: samples", part, 0) for part in parts)


def check_skip(skip: Any, dataset: Any) -> tuple[Skip, ...]:
    """Return the ``skip`` argument of a loader as a tuple.

    Raises:
        TypeError: it is no :class:`Skip`, nor a list of them.
        ValueError: samples of an iterable dataset are to be left out.
    """
    parts: Any = () if skip is None else (skip,) if isinstance(skip, Skip) else skip
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, Skip) for part in parts):
        raise TypeError(f"skip must be a foreload.Skip or a list of them, got {skip!r}")
    if isinstance(dataset, IterableDataset) and any(part.samples for part in parts):
        raise ValueError("skip: samples of an iterable dataset have no indices; leave out steps")
    last = max((sample for part in parts for sample in part.samples), default=-1)
    length = known_length(dataset) if last >= 0 else None
    if length is not None and last >= length:
        # (No error: a dataset of keys may have it, and one may have another length by the time it is loaded.)
        warn_user(f"skip: there is no sample {last} to leave out: the dataset has samples 0 to {length - 1}")
    return tuple(parts)


class LeftOut:
    """The steps and samples that one epoch leaves out.

    Attributes:
        steps: ranges of steps, sorted.
        samples: indices of samples (int64), sorted.
        batched: whether a user's own sampler, in place of torch's batch sampler, yields whole batches.
    """

    def __init__(self, steps: Ranges, samples: Indices, *, batched: bool = True) -> None:
        self.steps = merged(steps)
        self.samples = samples
        self.batched = batched
        self._known = frozenset(samples.tolist())

    @property
    def has_samples(self) -> bool:
        """Whether single samples are left out."""
        return bool(self._known)

    def positions(self, size: int) -> Ranges:
        """Return the positions of the steps in an order of ``size`` positions per step."""
        return [(begin * size, end * size) for begin, end in self.steps]

    def has_step(self, step: int) -> bool:
        """Whether a step is left out."""
        return any(begin <= step < end for begin, end in self.steps)

    def original(self, step: int) -> int:
        """Return the number that a step has if none is left out."""
        for begin, end in self.steps:
            if begin > step:
                break
            step += end - begin
        return step

    def left_of(self, item: Any, *, is_batch: bool) -> Any:
        """Return what is left of an index, or of a batch of indices; None: nothing."""
        if not is_batch:
            return None if self.has_sample(item) else item
        left = [index for index in item if not self.has_sample(index)]
        return left or None

    def has_sample(self, index: Any) -> bool:
        """Whether a sample is left out."""
        try:
            return operator.index(index) in self._known
        except TypeError:  # a user's own kind of index
            return False

    def mask(self, indices: Array) -> Array:
        """Return which of these samples are left out (bool)."""
        return np.isin(indices, self.samples)

    def remaining(self, indices: Indices, size: int) -> Indices:
        """Return what is left of the order of a whole epoch, of ``size`` positions per step."""
        keep = ~self.mask(indices)
        for begin, end in self.positions(size):
            keep[begin:end] = False
        return indices[keep]


def left_out_of(skip: Sequence[Skip], epoch: int, *, batched: bool = True) -> LeftOut | None:
    """Return what is left out of an epoch; None: nothing.

    >>> left_out_of([Skip(steps=[3, range(5, 7)]), Skip(epoch=2, steps=4)], epoch=2).steps
    [(3, 7)]
    """
    here = [part for part in skip if part.epoch is None or part.epoch == epoch]
    steps: Ranges = []
    for part in here:
        for step in part.steps:  # type: ignore[union-attr]
            if not isinstance(step, range):
                steps.append((step, step + 1))
            elif abs(step.step) == 1:
                steps.append((min(step), max(step) + 1))
            else:
                steps += [(number, number + 1) for number in step]
    samples = np.array(sorted({index for part in here for index in part.samples}), np.int64)  # type: ignore[union-attr]
    return LeftOut(steps, samples, batched=batched) if steps or len(samples) else None


def remaining_blocks(blocks: OrderBlocks, start: Start, skip: LeftOut | None, left_out: Ranges) -> OrderBlocks:
    """Return blocks that begin where ``start`` says without what was delivered after that, or is left out."""
    samples = None if skip is None or not skip.has_samples else skip
    if samples is not None and blocks.each > 1:
        raise ValueError(
            "skip: samples cannot be left out of an order that ranks share evenly by dataset (MixtureSampler); "
            "leave out steps"
        )
    begin, each = start.prefix, blocks.each
    gaps = [span for span in [*start.given, *left_out] if span[1] > begin]
    if any((place - begin) % each for first, end in gaps for place in (max(first, begin), end)):
        raise ValueError(
            f"what was delivered, or is left out, is not the same for each of the {each} ranks, which share the "
            "order evenly by dataset (MixtureSampler): go on with as many ranks as before, and in_order=True"
        )
    # Counted in this rank's positions: all ranks have delivered, or leave out, the same rounds.
    later = [
        ((max(first, begin) - begin) // each, (end - begin) // each)
        for first, end in [*start.given, *left_out]
        if end > begin
    ]
    return _Remaining(blocks, later, samples, begin, left_out) if later or samples is not None else blocks


class _Remaining:
    """Blocks without some positions and samples.

    Args:
        blocks: the blocks.
        given: the positions, counted from the beginning of the first block.
        skip: the samples; None: no samples.
        begin: the place of the first block in the whole order.
        left_out: the list for the places of these samples, as far as blocks have been drawn.
    """

    def __init__(
        self, blocks: OrderBlocks, given: Ranges, skip: LeftOut | None, begin: int, left_out: Ranges
    ) -> None:
        self.each = blocks.each
        self._blocks = blocks
        self._given = given
        self._skip = skip
        self._begin = begin
        self._left_out = left_out
        self._at = 0

    @property
    def drawn(self) -> Any:
        """See :class:`~foreload.protocol.OrderBlocks`."""
        return self._blocks.drawn

    def __iter__(self) -> Iterator[Indices]:
        return self

    def __next__(self) -> Indices:
        block = next(self._blocks)
        keep = self._keep(len(block))
        if self._skip is not None:
            found = keep & self._skip.mask(block)
            places = self._begin + self._at + np.flatnonzero(found)
            self._left_out += [(place, place + 1) for place in places.tolist()]
            keep &= ~found
        self._at += len(block)
        return block[keep]

    def peek(self) -> Indices:
        """Return all indices that are still to come, without consuming them."""
        block = self._blocks.peek()
        keep = self._keep(len(block))
        return block[keep if self._skip is None else keep & ~self._skip.mask(block)]

    def _keep(self, count: int) -> Array:
        keep = np.ones(count, np.bool_)
        for begin, end in self._given:
            keep[max(0, begin - self._at) : max(0, end - self._at)] = False
        return keep
