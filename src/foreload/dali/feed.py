"""A DALI pipeline that runs batches of samples, one after the other or alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from foreload.dali.samples import Sample

__all__ = ["FedPipeline"]

_CPU, _CUDA = 1, 2  # in DLPack's numbering

Inputs = Callable[[], Sequence[Sample]]


class _Source:
    """The callable that the pipeline's ``external_source`` calls for each batch."""

    def __init__(self) -> None:
        self.draw: Inputs | None = None

    def __call__(self) -> Any:
        if self.draw is None:
            raise StopIteration
        samples = self.draw()
        fields = [list(field) for field in zip(*(sample.fields for sample in samples), strict=True)]
        return fields[0] if len(fields) == 1 else tuple(fields)


class FedPipeline:
    """A DALI pipeline whose batches are those that a function draws.

    After an error it is made anew, for DALI's own do not go on.

    Args:
        make: returns a pipeline whose ``external_source`` calls its argument.
    """

    def __init__(self, make: Callable[[Callable[[], Any]], Any]) -> None:
        self._make = make
        self._source = _Source()
        self._pipeline: Any = None
        self._process = os.getpid()
        self._is_running = False
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def begin(self, draw: Inputs) -> None:
        """Run what ``draw`` returns, as far ahead as the pipeline's queue is long, until it raises StopIteration.

        It is called in this thread, by this method and by :meth:`go_on`.
        """
        self._stop()
        if self._pipeline is None or self._process != os.getpid():
            if self._pipeline is not None:
                _of_parents.append(self._pipeline)  # its threads are not here to be ended
            self._pipeline, self._process = self._make(self._source), os.getpid()
            if not hasattr(self._pipeline, "schedule_run"):
                kind = type(self._pipeline).__name__
                self._pipeline = None
                raise TypeError(
                    f"pipeline must return a DALI pipeline, as a pipeline_def function does, got {kind}"
                )
        self._source.draw = draw
        self._is_running = True
        self._pipeline.schedule_run()

    def take(self) -> list[Any]:
        """Wait for the oldest batch, and return its outputs: tensors, or lists of them where shapes differ.

        Raises:
            StopIteration: there is none.
        """
        try:
            outputs = self._pipeline.share_outputs()
        except StopIteration:
            self._end()
            raise
        found = [self._to_torch(output) for output in outputs]
        del outputs
        self._pipeline.release_outputs()
        return found

    def go_on(self) -> None:
        """Draw another batch, in place of the one that was taken."""
        self._pipeline.schedule_run()

    def run_alone(self, samples: Sequence[Sample]) -> list[Any]:
        """Return the outputs of one batch."""
        batches = [samples]

        def draw() -> Sequence[Sample]:
            if not batches:
                raise StopIteration
            return batches.pop()

        try:
            self.begin(draw)
            return self.take()
        except RuntimeError:
            self.give_up()
            raise

    def give_up(self) -> None:
        """Let go of the pipeline after an error."""
        self._source.draw = None
        self._is_running = False
        self._pipeline = None

    def _stop(self) -> None:
        """Drop what is under way of an epoch that was left."""
        if not self._is_running:
            return
        self._source.draw = None
        try:
            while not self._pipeline.empty():
                self._pipeline.share_outputs()
                self._pipeline.release_outputs()
            self._pipeline.schedule_run()  # which learns of the end
            self._end()
        except RuntimeError:
            self.give_up()

    def _end(self) -> None:
        self._source.draw = None
        self._is_running = False
        self._pipeline.reset()

    def _to_torch(self, output: Any) -> Any:
        if output.is_dense_tensor():
            return self._copied(output.as_tensor())
        return [self._copied(tensor) for tensor in output]

    def _copied(self, tensor: Any) -> torch.Tensor:
        """Return a copy in torch's own memory, since DALI uses its memory again."""
        kind, number = tensor.__dlpack_device__()
        if kind == _CPU:
            return from_dlpack(tensor).clone()
        if kind != _CUDA:  # page-locked memory of the CPU, which torch does not take
            return torch.from_numpy(np.array(tensor))
        # On a stream of its own, which the caller waits for: a short copy, behind none of the loop's work.
        device = torch.device("cuda", number)
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side, loop = self._streams[device], torch.cuda.current_stream(device)
        with torch.cuda.stream(side):
            copied = from_dlpack(tensor).clone()
        side.synchronize()
        loop.wait_stream(side)
        copied.record_stream(loop)
        return copied


_of_parents: list[Any] = []
