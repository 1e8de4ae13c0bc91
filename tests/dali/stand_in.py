"""A stand-in for DALI's pipelines, with their queue, their source and their end after an error."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch


class Output:
    """A list of the samples' tensors, in memory that is written again with the next batch but ``depth``."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors

    def is_dense_tensor(self) -> bool:
        return len({tensor.shape for tensor in self._tensors}) == 1

    def as_tensor(self) -> torch.Tensor:
        return torch.stack(self._tensors)

    def __iter__(self) -> Any:
        return iter(self._tensors)


class Pipeline:
    """Runs ``work`` over what ``source`` returns, as far ahead as its queue is long.

    Attributes:
        made: the number of pipelines.
    """

    made = 0

    def __init__(
        self, source: Callable[[], Any], work: Callable[..., Any], batch_size: int, prefetch_queue_depth: int
    ) -> None:
        type(self).made += 1
        self._source, self._work = source, work
        self._size, self._depth = batch_size, prefetch_queue_depth
        self._queue: deque[Any] = deque()
        self._shared: list[torch.Tensor] = []
        self._is_first, self._is_last, self._is_dead = True, False, False

    def _run_once(self) -> None:
        assert not self._is_dead, "a pipeline does not go on after an error"
        if self._is_last:
            return
        try:
            fields = self._source()
        except StopIteration:
            self._is_last = True
            return
        fields = fields if isinstance(fields, tuple) else (fields,)
        assert {len(field) for field in fields} <= set(range(1, self._size + 1))
        assert all(isinstance(value, np.ndarray) for field in fields for value in field)
        # The source's memory is copied, as DALI does it.
        self._queue.append([[value.copy() for value in field] for field in fields])

    def schedule_run(self) -> None:
        for _ in range(self._depth if self._is_first else 1):
            self._run_once()
        self._is_first = False

    def share_outputs(self) -> tuple[Output, ...]:
        assert not self._is_dead, "a pipeline does not go on after an error"
        if not self._queue:
            raise StopIteration
        fields = self._queue.popleft()
        try:
            outputs = [self._work(*sample) for sample in zip(*fields, strict=True)]
        except ValueError as error:
            self._is_dead = True
            raise RuntimeError(f"Error in a pipeline's operator: {error}") from None
        self._shared = [torch.as_tensor(value) for sample in outputs for value in sample]
        return tuple(Output([torch.as_tensor(value) for value in field]) for field in zip(*outputs, strict=True))

    def release_outputs(self) -> None:
        for tensor in self._shared:
            tensor.fill_(99)
        self._shared = []

    def empty(self) -> bool:
        return not self._queue

    def reset(self) -> None:
        if self._is_last:
            self._is_first, self._is_last = True, False
