"""The messages between the loop and its workers, and how they become bytes.

There is one of each kind for every batch, so they travel as plain tuples: pickle names the class of anything else,
which takes longer than the rest.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from foreload.batch.failure import EmptyBatch, PickledError, SampleError, unpickle_error
from foreload.batch.worker_progress import BEGUN, WorkerProgress
from foreload.cache.serialize import restore
from foreload.order.own_state import UntakenState
from foreload.workers.processes.slots import NOTHING_RETURNED, Returned

__all__ = ["Begin", "Job", "Result", "decode", "encode"]


@dataclass
class Begin:
    """The start of an epoch.

    Attributes:
        key: the key of random numbers in native transforms.
        arrays: whether indices come as arrays.
        first: the number of the epoch's first job.
        progress: how far the worker's dataset had come before.
        again: whether that was the end of an epoch, and this is the next one.
        snapshots: the number of batches of all workers between two states of the dataset; None: it has no state.
        batch_size: of a stream, which may have changed since the worker was started.
    """

    key: tuple[int, int]
    arrays: bool
    first: int = 0
    progress: WorkerProgress = BEGUN
    again: bool = False
    snapshots: int | None = None
    batch_size: int | None = None


@dataclass
class Result:
    """A worker's answer to a job.

    Attributes:
        number: the number of the job.
        parts: the parts of the batch, if it could be made: their places in slots; for the consumer, their memory.
        error: the exception that it raised.
        dropped: slots that are not used any more.
        begun: the first job of an epoch that has begun, if this is no answer to a job.
        state: the state of the dataset after this batch, or when the epoch begins, if it was taken.
        samples: the number of samples in a batch of a stream.
        failures: samples that failed and were left out or replaced.
        is_empty: whether no sample of the batch was left.
        unfit: why the calling thread must load this batch and those after it instead, or, if workers are to load
            anyway, what they lack; "": it need not.
        makes: whether loading this batch has made something in the worker's copy of the dataset.
    """

    number: int
    parts: list[Any] | None = None
    error: PickledError | None = None
    dropped: list[int] | None = None
    begun: int | None = None
    state: Any = None
    samples: int = 0
    failures: list[SampleError] | None = None
    is_empty: bool = False
    unfit: str = ""
    makes: bool = False

    def encode(self) -> bytes:
        """Return the message, without the state of the dataset if that cannot be pickled; see :meth:`decode`."""
        self.state = _packed(self.state)
        return pickle.dumps(self._fields, protocol=5)

    @classmethod
    def decode(cls, message: bytes) -> Result:
        """Return the result that a message has, without the state of the dataset if that cannot be unpickled."""
        result = cls(*pickle.loads(message))
        result.state = _unpacked(result.state)
        return result

    @property
    def _fields(self) -> tuple[Any, ...]:
        return tuple(vars(self).values())

    @property
    def is_end(self) -> bool:
        """Whether the stream is over."""
        return self.parts is None and self.error is None and not self.is_empty

    def batch(self) -> Any:
        """Put the batch together; its tensors are views of the worker's slots.

        Raises:
            BaseException: the one that the worker caught; EmptyBatch if no sample was left.
        """
        if self.is_empty:
            raise EmptyBatch
        if self.error is not None:
            raise unpickle_error(self.error)
        assert self.parts is not None
        return restore(self.parts)


def _packed(state: Any) -> Any:
    """Return a state whose parts of the user's classes are pickled alone: batches outlive their errors."""
    if not isinstance(state, dict) or "dataset" not in state:
        return state
    try:
        parts = pickle.dumps((state["dataset"], state["iterator"]), protocol=5)
    except Exception as error:
        parts = pickle.dumps((_untaken("pickled", error), None), protocol=5)
    return {**state, "dataset": parts, "iterator": None}


def _unpacked(state: Any) -> Any:
    if not isinstance(state, dict) or "dataset" not in state:
        return state
    try:
        dataset, iterator = pickle.loads(state["dataset"])
    except Exception as error:
        dataset, iterator = _untaken("unpickled", error), None
    return {**state, "dataset": dataset, "iterator": iterator}


def _untaken(what: str, error: Exception) -> UntakenState:
    return UntakenState(f"the state of the dataset cannot be {what}: {type(error).__name__}: {error}")


class Job(NamedTuple):
    """A batch that a worker is to make.

    Attributes:
        number: its number.
        indices: of its samples; None: those that come next in a stream.
        returned: the slots that no batch of the loop holds any more.
    """

    number: int
    indices: Any
    returned: Returned = NOTHING_RETURNED


def encode(message: Begin | Job | None) -> bytes:
    """Return a message to a worker as bytes; None: there are no more jobs.

    >>> decode(encode(Job(3, np.arange(2), ([1], []))))
    Job(number=3, indices=array([0, 1]), returned=([1], []))
    >>> decode(encode(None)) is None
    True
    """
    if isinstance(message, Job):
        indices, returned = message.indices, message.returned
        if type(indices) is np.ndarray and indices.dtype == np.int64 and indices.ndim == 1:
            return pickle.dumps((message.number, None, indices.tobytes(), returned), protocol=5)
        return pickle.dumps((message.number, indices, None, returned), protocol=5)
    return pickle.dumps(message, protocol=5)


def decode(message: bytes) -> Begin | Job | None:
    """Return the message of :func:`encode`'s bytes."""
    decoded: Any = pickle.loads(message)
    if type(decoded) is not tuple:
        begin: Begin | None = decoded
        return begin
    number, indices, packed, returned = decoded
    return Job(number, indices if packed is None else np.frombuffer(bytearray(packed), np.int64), returned)
