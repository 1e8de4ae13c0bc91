"""One pass over a DALI loader: batches drawn in order, run ahead by DALI, and one by one after an error."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from foreload import _native
from foreload.batch.failure import EmptyBatch, SampleError, remaining_positions, replacement_positions
from foreload.dali.feed import FedPipeline
from foreload.dali.samples import Sample
from foreload.device.ahead import LoopPosition
from foreload.epochs.base import Epoch
from foreload.epochs.turn import Turn
from foreload.options import OnError
from foreload.record.spans import Stage

__all__ = ["DALIEpoch"]


class _Drawn(NamedTuple):
    samples: Sequence[Sample]
    state: Any  # of the loader before this batch was requested
    size: int


class _Failure(NamedTuple):
    error: Exception
    state: Any  # of the loader before this batch was requested


class _Ready(NamedTuple):
    drawn: _Drawn
    batch: Any  # or the exception in its place


class DALIEpoch(Iterator[Any]):
    """An epoch whose batches a DALI pipeline makes.

    An exception of the dataset, or of the pipeline, is raised in place of its batch; then :func:`next` may be
    called again.

    Args:
        batches: the samples of each batch.
        pipeline: what makes batches of them.
        state: returns the state of the loader.
        present: returns what is delivered of the pipeline's outputs.
        on_error, errors: what to do about samples that the pipeline fails with, and where they are recorded.
        source_of: returns the file of a sample.

    Attributes:
        place: where the loop is in the loader, which keeps it.
    """

    def __init__(
        self,
        batches: Epoch,
        pipeline: FedPipeline,
        state: Callable[[], Any],
        present: Callable[[list[Any]], Any],
        on_error: OnError,
        errors: list[SampleError],
        source_of: Callable[[int], str],
    ) -> None:
        self._batches = batches
        self._pipeline: FedPipeline | None = pipeline
        self._state_of_loader = state
        self.place = LoopPosition(state())
        self._present = present
        self._on_error = on_error
        self._errors = errors
        self._source_of = source_of
        self._watch = batches.count_at_consumer()
        self._turn = Turn()
        self._under_way: deque[_Drawn] = deque()
        self._ready: deque[_Ready] = deque()  # batches that were tried again
        self._failure: _Failure | None = None  # of the dataset, after what is under way
        self._is_begun = self._is_over = False

    def __len__(self) -> int:
        """Return the number of batches of the whole epoch."""
        return len(self._batches)

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            RuntimeError: another epoch of the same loader has begun, or the pipeline failed.
        """
        with self._turn.lock:
            self._turn.begin()
            if self._pipeline is None:
                raise RuntimeError(
                    "another epoch of this DALILoader has begun, and took its one pipeline; "
                    "make a DALILoader for each of them"
                )
            self._watch.loop.mark_requested()
            began = _native.now_ns()
            drawn, batch = self._next(self._pipeline)
            coming = [*(ready.drawn for ready in self._ready), *self._under_way, self._failure]
            self.place.state = self._state_of_loader() if coming[0] is None else coming[0].state
            if isinstance(batch, Exception):
                raise batch
            size = sum(field.nbytes for sample in drawn.samples for field in sample.fields)
            self._watch.lane.native.add(Stage.device, began, _native.now_ns(), drawn.size, size)
            self._watch.loop.mark_delivered(drawn.size)
            return self._present(batch)

    def _next(self, pipeline: FedPipeline) -> _Ready:
        while not self._ready:
            try:
                if not self._is_begun:
                    self._is_begun = True
                    pipeline.begin(self._draw)
                batch = pipeline.take()
            except StopIteration:
                self._is_begun = False
                self._raise_end()
                continue
            except RuntimeError as error:
                self._try_again(pipeline, error)
                continue
            ready = _Ready(self._under_way.popleft(), batch)
            try:
                pipeline.go_on()
            except RuntimeError as error:
                self._try_again(pipeline, error)
            return ready
        return self._ready.popleft()

    def _draw(self) -> Sequence[Sample]:
        if self._failure is not None or self._is_over:
            raise StopIteration
        state = self._state_of_loader()
        try:
            samples: Sequence[Sample] = next(self._batches)
        except StopIteration:
            self._is_over = True
            raise
        except Exception as error:
            self._failure = _Failure(error, state)
            raise StopIteration from None
        self._under_way.append(_Drawn(samples, state, self._watch.passed()))
        return samples

    def _raise_end(self) -> None:
        """Raise what ended the drawing of batches."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self.place.state = self._state_of_loader()
            raise failure.error
        if self._is_over:
            self.place.state = None  # nothing is ahead any more: it is the loader's own
            self._watch.end()
            raise StopIteration

    def _try_again(self, pipeline: FedPipeline, error: Exception) -> None:
        """Run what is under way batch by batch, to find those that the pipeline fails with."""
        pipeline.give_up()
        self._is_begun = False
        if not self._under_way:
            raise error
        while self._under_way:
            drawn = self._under_way.popleft()
            try:
                self._ready.append(self._run_alone(pipeline, drawn))
            except EmptyBatch:
                continue
            except Exception as failure:
                self._ready.append(_Ready(drawn, failure))

    def _run_alone(self, pipeline: FedPipeline, drawn: _Drawn) -> _Ready:
        try:
            return _Ready(drawn, pipeline.run_alone(drawn.samples))
        except RuntimeError as error:
            failures = _find_failures(pipeline, drawn.samples)
            if not failures:
                raise error  # of the batch as a whole
            numbers = np.array([sample.number for sample in drawn.samples])
            remaining_positions(list(failures.values()), numbers, self._on_error, self._errors, self._source_of)
            chosen = replacement_positions([number in failures for number in numbers.tolist()], self._on_error)
            if not chosen:
                raise EmptyBatch from None
            samples = [drawn.samples[position] for position in chosen]
            return _Ready(_Drawn(samples, drawn.state, len(samples)), pipeline.run_alone(samples))

    def close(self) -> None:
        """End the epoch early."""
        self._pipeline = None
        self._under_way.clear()
        self._ready.clear()
        self._watch.end()
        self._batches.close()


def _find_failures(pipeline: FedPipeline, samples: Sequence[Sample]) -> dict[int, tuple[int, BaseException]]:
    """Run each sample by itself; return the first position and the error of those that fail, by their numbers.

    One that also takes the place of another, which could not be read, is run once.
    """
    failures: dict[int, tuple[int, BaseException]] = {}
    first = {sample.number: position for position, sample in reversed(list(enumerate(samples)))}
    for number, position in sorted(first.items(), key=lambda item: item[1]):
        try:
            pipeline.run_alone([samples[position]])
        except RuntimeError as error:
            failures[number] = position, error
    return failures
