"""Batches of an iterable dataset."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from foreload import _native
from foreload.batch.buffers import Buffers
from foreload.batch.collate import added_functions, collate_into, is_default_collate, lending, pinned
from foreload.batch.failure import SampleError, stop_error
from foreload.batch.unlike import note_unlike
from foreload.batch.worker_progress import BEGUN, WorkerProgress
from foreload.order.mosaic import is_streaming
from foreload.order.own_state import has_state, is_same_state, require_taken, state_of
from foreload.order.shuffle import Shuffled, ShuffledState
from foreload.record.spans import Stage

if TYPE_CHECKING:
    from foreload.batch.spec import BatchSpec

__all__ = ["StreamBatches", "written"]


class StreamBatches(Iterator[Any]):
    """The batches of one iterator over a dataset.

    Args:
        spec: how batches are made.
        dataset: the dataset to iterate over.
        buffers: memory for the batches.
        progress: how far it was read before.
        again: whether its state is of the end of a pass, and this is the next one.
        asks_again: whether single samples are asked for after the end, too, as by torch without workers.
        key: gives the generators the state in which each epoch begins; None: they draw on from epoch to epoch.

    Attributes:
        samples: the number of samples in the latest batch.
        may_change: whether batches may hold memory that the dataset writes again.
    """

    def __init__(
        self,
        spec: BatchSpec,
        dataset: Any,
        buffers: Buffers,
        progress: WorkerProgress = BEGUN,
        *,
        again: bool = False,
        asks_again: bool = False,
        key: Callable[[], None] | None = None,
    ) -> None:
        self._dataset = dataset
        self._key = key
        self._asks_again = asks_again
        self._counts = is_streaming(dataset)
        self._read = self.samples = 0
        self._size = spec.batch_size if spec.auto_collation else None
        self._drop_last = spec.drop_last
        collate = spec.collate_fn
        is_pinned = spec.pin_device is not None
        own = is_default_collate(collate)
        self._is_default = own and self._size is not None
        self._collate = collate_into(buffers, is_required=is_pinned) if own else collate
        self.may_change = self._size is None or not own or bool(added_functions())
        self._buffers = buffers
        self._pin_device = spec.pin_device
        self._on_error = spec.on_error
        self._errors = spec.errors
        state = progress.state or {}
        # Whether the state is that of the end of a pass: of the one before, or of this one.
        self._again = "over" in state and (again or state["again"])
        # Before its first item, it may still have the state in which the pass before this one has left it.
        self._is_new = not state
        self._loaded: dict[str, Any] | None = None  # what it tells of with its next item only
        self._over = not again and state.get("over", False)
        self._ended = not again and (self._over or state.get("ended", False))
        self._items = self._opened(state)
        if self._over and self._loaded is not None:
            self._lead_to_end(self._loaded)
        with self._errors.unrecorded():
            self._pass_over(progress.since)

    def _pass_over(self, batches: int) -> None:
        for _ in range(batches):
            try:
                self._samples()
            except StopIteration:
                return
            except Exception:  # the loop got it at the time, and went on
                continue

    def _opened(self, state: dict[str, Any]) -> Any:
        """Return the iterator over the dataset, with both as they were."""
        state = written(state)
        require_taken(state)
        if state.get("dataset") is not None and has_state(self._dataset):
            self._set(self._dataset, state["dataset"], state)
        items: Any = iter(self._dataset)
        if state.get("iterator") is not None and has_state(items):
            # A dataset that is its own iterator may have begun anew.
            self._set(items, state["iterator"], state)
        return items

    def _set(self, thing: Any, own: Any, state: dict[str, Any]) -> None:
        thing.load_state_dict(copy.deepcopy(own))
        if not isinstance(thing, Shuffled) and not is_same_state(state_of(thing), own):
            self._loaded = state
        self._begin_draws()

    def _lead_to_end(self, state: dict[str, Any]) -> None:
        """Let the dataset take the position that it was set to, which its next pass would begin with otherwise."""
        try:
            next(self._items)
        except StopIteration:
            return
        except Exception:  # of a sample, so it is not at its end; nobody gets that one
            pass
        if state.get("dataset") is not None and has_state(self._dataset):
            self._dataset.load_state_dict(copy.deepcopy(state["dataset"]))

    def _begin_draws(self) -> None:
        """Key the generators, if this epoch begins with a state of the end of the one before.

        That state may be of the generators too, from which the epoch before has drawn.
        """
        if self._again and self._key is not None:
            self._key()

    @property
    def is_stateful(self) -> bool:
        """Whether the dataset or its iterator has a state."""
        return self._counts or has_state(self._items) or has_state(self._dataset)

    def state(self) -> dict[str, Any] | None:
        """Return the state of the dataset and its iterator, as a copy; None if neither has ``state_dict``.

        That of a shuffle buffer is :func:`written` when it is asked for.
        """
        if self._counts:
            return {"samples": self._read}
        if not self.is_stateful:
            return None
        is_own_iterator = self._items is self._dataset
        if self._loaded is not None:
            return {**self._loaded, "ended": self._ended, "over": self._over, "again": self._again}
        return {
            "dataset": None if is_own_iterator else _state_of(self._dataset),
            "iterator": _state_of(self._items),
            "ended": self._ended,
            "over": self._over,
            "again": self._again or self._is_new,
        }

    def __next__(self) -> Any:
        """Return the next batch."""
        with _native.Measure(Stage.sample, 0) as measure:
            samples = self._samples()
            self.samples = measure.samples = 1 if self._size is None else len(samples)
        with _native.Measure(Stage.batch, self.samples), lending(self._buffers):
            try:
                batch = self._collate(samples)
            except StopIteration as error:
                error.add_note("foreload: while collating a batch of the iterable dataset")
                raise stop_error(error) from error
            except Exception as error:
                if self._is_default:
                    note_unlike(error, samples)
                raise
            return pinned(batch, self._pin_device)

    def _item(self) -> Any:
        while True:
            try:
                item = next(self._items)
            except StopIteration:
                self._is_new, self._loaded = False, None
                if not self._again:
                    self._over = True
                    self._ended |= not self._asks_again
                    raise
                # What was restored is at its end, as it was.
                self._begin_draws()
                self._again = False
                self._items = iter(self._dataset)
                continue
            except Exception as error:
                if self._on_error == "raise":
                    raise
                self._errors.append(SampleError.of(None, error, "skip"))
                continue
            self._again = self._is_new = False
            self._loaded = None
            return item

    def _samples(self) -> Any:
        if self._ended:
            raise StopIteration
        if self._size is None:
            item = self._item()
            self._read += 1
            return item
        # Only next() is called: a dataset that is its own iterator may start over if iter() is called again.
        samples: list[Any] = []
        try:
            while len(samples) < self._size:
                samples.append(self._item())
                if type(self._items) is Shuffled:
                    self._take(self._items, samples, self._size)
        except StopIteration:
            pass
        self._read += len(samples)
        self._ended = len(samples) < self._size
        if not samples or (self._ended and self._drop_last):
            raise StopIteration
        return samples

    def _take(self, items: Shuffled, samples: list[Any], size: int) -> None:
        """Do what ``_item`` would for the rest of a batch, many samples at a time."""
        while len(samples) < size:
            found, error = items.take(size - len(samples))
            samples += found
            if isinstance(error, StopIteration):
                self._over = True
            if error is None:
                continue
            if isinstance(error, StopIteration) or self._on_error == "raise":
                raise error
            self._errors.append(SampleError.of(None, error, "skip"))


def written(state: Any) -> Any:
    """Return what :meth:`StreamBatches.state` returned in plain values."""
    lazy = state.get("iterator") if isinstance(state, dict) else None
    return {**state, "iterator": lazy.written()} if isinstance(lazy, ShuffledState) else state


def _state_of(thing: Any) -> Any:
    if type(thing) is Shuffled:
        return thing.present_state()
    return state_of(thing) if has_state(thing) else None
