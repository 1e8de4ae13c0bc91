"""Random numbers for each sample of an epoch: the generators that it draws from, keyed by (seed, epoch, index).

A sample then draws the same numbers whichever worker loads it, and the loop's own numbers are not touched.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch

from foreload._libraries import global_random, global_random_state
from foreload.batch.generators.twisters import Trio, states_of
from foreload.cache.view import transform_key
from foreload.cache.wrappers import root_of
from foreload.order.index import position_of

__all__ = ["KeyedGenerators", "first_index", "global_trio", "keyed_rows", "loading", "row_keys", "take_epoch"]

T = TypeVar("T")

# Samples that take longer are always keyed, which takes about two microseconds.
_LONG_SECONDS = 1e-4

# Distinguishes what a collate function draws from what the first sample of its batch draws.
_BATCH = 1 << 63

# Distinguishes what a loader's transform draws from what loading its sample draws.
_TRANSFORM = 1 << 62

# The largest number that the generators are keyed with.
_LARGEST = (1 << 64) - 1


class _Loading(threading.local):
    """The sample or batch that the calling thread is loading.

    Attributes:
        epoch: (seed, epoch) of the samples, by which a dataset that several loaders share tells them apart; None
            if no foreload loader loads them.
        sample: the number that the generators are keyed with; None for a whole batch, or if they are not keyed.
        turn: how often a dataset that loads ahead has been asked since then; None if the generators are not keyed.
        dataset: the dataset that a loader of ours asks for samples, which may be made of others.
        is_fresh: whether :func:`take_epoch` has not been called since the generators were keyed.
        rows: what keys the generators, and the numbers to key them with for the samples of the whole batch that is
            being loaded; None if they are not keyed by the sample.
        collate_fn: of the loader that loads that batch.
    """

    epoch: tuple[int, int] | None = None
    sample: int | None = None
    turn: int | None = None
    dataset: Any = None
    is_fresh: bool = False
    rows: tuple[Callable[[Any], None], Sequence[Any]] | None = None
    collate_fn: Any = None


loading = _Loading()


def row_keys(load: Callable[..., Any], count: int) -> Callable[[int], None] | None:
    """Return what keys the generators for the sample at a position of a batch that is being loaded as a whole.

    Its transform then draws the same as in a batch of another size, or where samples are loaded one by one.

    Args:
        load: the method of the dataset that loads a batch, as its ``__getitems__`` returns it.
        count: the number of samples.

    Returns:
        None if no loader of ours asks for just this batch: code of the user's may ask for other samples, or for
        the same ones twice.
    """
    # (A dataset around it may have the same method.)
    is_asked = getattr(root_of(loading.dataset), "__getitems__", None) == load
    keys = loading.rows
    if keys is None or len(keys[1]) != count or not is_asked:
        return None
    key, numbers = keys
    loading.rows = None
    return lambda position: key(numbers[position])


def keyed_rows(load: Callable[..., Any], rows: Sequence[T]) -> Iterator[T]:
    """Yield what was read for a whole batch, each with the generators keyed for its sample by :func:`row_keys`."""
    key = row_keys(load, len(rows))
    for position, row in enumerate(rows):
        if key is not None:
            key(position)
        yield row


def take_epoch(dataset: Any) -> tuple[int, int] | None:
    """Return the (seed, epoch) of the samples that a loader of ours asks a dataset for; None if none does.

    It is for native transforms, which make random numbers of their own of (seed, epoch, index). Once for each time
    that the generators are keyed: code of the user's that asks for a sample again wants other numbers. Nor does
    it hold where the dataset is a part of another one, which may ask for anything.
    """
    is_fresh, loading.is_fresh = loading.is_fresh, False
    return loading.epoch if is_fresh and root_of(loading.dataset) is dataset else None


def global_trio() -> Trio:
    """Return the generators that ``random.random()``, ``np.random.rand()`` and ``torch.rand()`` draw from."""
    return Trio(global_random(), global_random_state(), torch.default_generator)


class KeyedGenerators:
    """Gives each sample of an epoch random numbers of its own.

    The generators are keyed before each sample, though most draw nothing: whether one draws is known only when it
    is loaded, and a dataset that reads on, counts or remembers gives another sample if it is loaded again. Only if
    loading is known to change nothing in the dataset are short samples loaded without keys as long as none has
    drawn, and the first run of samples that draws is loaded again.

    Args:
        key: (seed, epoch).
        trio: the generators that samples draw from; by default the global ones.
        is_pure: whether loading changes nothing in the dataset.

    >>> import random
    >>> keyed = KeyedGenerators((7, 0))
    >>> def load(key):
    ...     numbers = []
    ...     for index in (3, 1, 3):
    ...         key(index)
    ...         numbers.append(random.random())
    ...     return numbers
    >>> before = random.getstate()
    >>> first, other, again = keyed.run(load)
    >>> first == again != other, random.getstate() == before
    (True, True)
    """

    def __init__(self, key: tuple[int, int], trio: Trio | None = None, *, is_pure: bool = False) -> None:
        self._of = key
        self._is_pure = is_pure
        self._draws = False  # whether a sample has drawn
        self._has_run = False
        self._is_keyed = False  # whether the last thing that happened to the states was keying
        self._trio = global_trio() if trio is None else trio
        self._states = states_of(self._trio)

    def key(self, index: Any) -> None:
        """Give the generators the state of a sample."""
        self._key(index if type(index) is int and 0 <= index <= _LARGEST else _number(index))

    def key_batch(self, index: Any) -> None:
        """Give the generators the state of what collates the batch whose first sample is ``index``."""
        self._key(_number(index) ^ _BATCH)
        loading.is_fresh = False

    def key_transform(self, index: Any) -> None:
        """Give the generators the state of what a loader's ``transform`` draws for a sample."""
        self._key(_number(index) ^ _TRANSFORM)
        loading.is_fresh = False

    def _key(self, number: int) -> None:
        if self._is_pure:
            self._note_draw()
        self._is_keyed = True
        self._trio.python.gauss_next = None  # type: ignore[attr-defined]
        self._states.key(*self._of, number)
        loading.sample, loading.turn, loading.is_fresh = number, 0, True
        transform_key.give = self.key_transform

    def _note_draw(self) -> None:
        if self._is_keyed and not self._draws:
            self._draws = self._states.changed()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Put the generators back to their present states at the end of the block."""
        outer = self._begin()
        try:
            yield
        finally:
            self._end(outer)

    def _begin(self) -> tuple[Any, ...]:
        """Save the states of the generators, and what the thread is loading, of which there is nothing now."""
        python: Any = self._trio.python
        held, python.gauss_next = python.gauss_next, None
        self._is_keyed = False
        self._states.save()
        now, key = vars(loading), vars(transform_key)
        outer = held, now.copy(), key.copy()
        now.clear()
        key.clear()
        now["epoch"] = self._of
        return outer

    def _end(self, outer: tuple[Any, ...]) -> None:
        held, around, key_around = outer
        for now, before in ((vars(transform_key), key_around), (vars(loading), around)):
            now.clear()
            now.update(before)
        loading.is_fresh = False
        if self._is_pure:
            self._note_draw()
        self._states.restore()
        self._trio.python.gauss_next = held  # type: ignore[attr-defined]

    def run(self, load: Callable[[Any], T], sample_seconds: float | None = None) -> T:
        """Load a run of samples.

        Args:
            load: loads the samples; calls its argument with the index of each, before that is loaded, unless it is
                None, which it is only where a sample takes so short a time that the calls would be noticed.
            sample_seconds: the time that a sample takes; None: not known.
        """
        is_first, self._has_run = not self._has_run, True
        is_short = sample_seconds is not None and sample_seconds < _LONG_SECONDS
        outer = self._begin()
        try:
            if not (self._is_pure and is_short) or is_first or self._draws:
                return load(self.key)
            failure: Exception | None = None
            try:
                samples = load(None)
            except Exception as error:
                failure = error
            if self._states.changed():
                self._draws = True
                return load(self.key)
            if failure is not None:
                raise failure
            return samples
        finally:
            self._end(outer)


def _number(index: Any) -> int:
    number = int(index) if isinstance(index, bool) else position_of(index)  # of a tensor without dimensions too
    if number is not None and -_BATCH <= number <= _LARGEST:
        return number & _LARGEST
    index = index.tolist() if hasattr(index, "tolist") else index  # long ones are shortened by their repr
    digest = hashlib.blake2b(repr(index).encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def first_index(indices: Any) -> Any:
    """Return the index that names a batch, its first; a mask, which has none, names itself.

    >>> first_index([3, 1]), first_index(np.array([True, False]))
    (3, array([ True, False]))
    """
    can_index = isinstance(indices, (list, tuple, range, np.ndarray, torch.Tensor))
    is_list = getattr(indices, "ndim", 1 if can_index else 0) == 1
    if not is_list or not len(indices):
        return indices
    first = indices[0] if can_index else next(iter(indices))  # pandas would take the 0 for a label
    is_mask = isinstance(first, (bool, np.bool_)) or getattr(first, "dtype", None) is torch.bool
    return indices if is_mask else first
