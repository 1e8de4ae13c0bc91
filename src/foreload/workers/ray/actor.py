"""The actors that make batches on a Ray cluster, and those that hold a node's cache."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import ray
from ray import cloudpickle

from foreload import _native
from foreload.batch.buffers import Buffers
from foreload.batch.failure import PickledError, pickle_error
from foreload.cache.sharing import open_store, store_address
from foreload.cache.store import SampleStore
from foreload.checks import Array
from foreload.workers.messages import Begin, Job, Result
from foreload.workers.processes.slots import Returned
from foreload.workers.ray.shipping import flatten_by_value, unpickle_task
from foreload.workers.start.set_up import become_worker
from foreload.workers.worker import WorkerState, WorkerTask

__all__ = ["ActorAddress", "Answer", "CacheKeeper", "LoadingActor"]

# The address of a node's cache, and the arguments of its store.
CachePlace = tuple[str, tuple[int, int, int, int, bool]]


class ActorAddress(NamedTuple):
    """The place of an actor: its node, the address of that, and its process."""

    node: str
    address: str
    pid: int

    @classmethod
    def here(cls) -> ActorAddress:
        """Return the place of the actor that calls this."""
        return cls(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), os.getpid())


@dataclass
class Answer:
    """An actor's answer.

    Attributes:
        result: the answer to a job, or to the beginning of an epoch.
        totals: what was recorded meanwhile, as :meth:`foreload._native.Lane.totals` returns it.
        spans: the spans, as :meth:`foreload._native.Lane.recent` returns them.
        clock: nanoseconds from the monotonic clock of the actor's machine to the time of day.
    """

    result: Result
    totals: Array
    spans: Array
    clock: int


class _Batches(Buffers):
    """Memory for batches, which Ray copies to its store when they are made."""

    def send(self, parts: list[memoryview]) -> tuple[list[Array], list[int]]:
        """Return the parts of a batch as arrays."""
        return [np.frombuffer(part, np.uint8) for part in parts], []

    def give_back(self, returned: Returned) -> None:
        """Do nothing: no memory is lent to the loop."""


class _State(WorkerState):
    _dumps = staticmethod(cloudpickle.dumps)

    def _flatten(self, holder: list[Any]) -> list[memoryview]:
        return flatten_by_value(holder[0])


@contextmanager
def _ends_as_a_process() -> Iterator[None]:
    """End the actor by what ends a worker process, such as KeyboardInterrupt, which to Ray is a cancelled task."""
    try:
        yield
    except (Exception, SystemExit):
        raise
    except BaseException as error:
        traceback.print_exception(error)
        raise SystemExit(1) from None


class LoadingActor:
    """A worker on a Ray cluster: does what a worker process does, one job after the other.

    Args:
        number: its number.
        packed: its :class:`WorkerTask`, as :func:`~foreload.workers.ray.shipping.pickle_task` returned it.
    """

    def __init__(self, number: int, packed: tuple[Array, list[Any]]) -> None:
        self._number = number
        self._lane = _native.Lane()
        self._failure: PickledError | None = None
        self._task: WorkerTask | None = None
        self._state: _State | None = None
        try:
            self._task = unpickle_task(*packed)
        except Exception as error:  # unpickling may import and run anything
            error.add_note(
                "foreload: while unpickling the dataset on a node of the Ray cluster; what it imports must be "
                "installed there: see runtime_env of ray.init()"
            )
            self._failure = pickle_error(error, number, cloudpickle.dumps)

    def place(self) -> ActorAddress:
        """Return where it is."""
        return ActorAddress.here()

    def begin(self, begin: Begin, cache: CachePlace | None) -> Answer:
        """Begin an epoch.

        Args:
            begin: the epoch.
            cache: where the node's cache is, as :meth:`CacheKeeper.place` returned it; None: there is none.
        """
        result = None
        with _ends_as_a_process():
            if self._task is not None:
                if self._state is None:
                    self._state = self._open(self._task, cache)
                result = self._state.begin(begin)
        return self._answer(result or Result(-1, begun=begin.first))

    def _open(self, task: WorkerTask, cache: CachePlace | None) -> _State:
        if cache is not None:
            task.dataset = task.dataset.with_store(open_store(*cache))
        become_worker(self._number, task)
        header = SimpleNamespace(first=0, position=0)
        return _State(self._number, task, header, _Batches(), self._lane)

    def load(self, number: int, indices: Any) -> Answer:
        """Do a job."""
        with _ends_as_a_process():
            result = None if self._state is None else self._state.load(Job(number, indices))
        return self._answer(result or Result(number, error=self._failure))

    def _answer(self, result: Result) -> Answer:
        totals, spans = self._lane.totals(), self._lane.recent()
        self._lane.clear()
        return Answer(result, totals, spans, time.time_ns() - time.monotonic_ns())


class CacheKeeper:
    """Holds the cache of a node, which outlives the actors that fill it and load from it.

    Args:
        arguments: of :class:`SampleStore`.
        rule: the rule by which it keeps samples.
    """

    def __init__(self, arguments: tuple[int, int, int, int, bool], rule: str) -> None:
        samples, room, accesses, most, hashed = arguments
        self._store = SampleStore(samples, room, accesses=accesses, most=most, hashed=hashed)
        self._store.native.follow_rule(rule)

    def place(self) -> CachePlace:
        """Return where other processes of this node find it."""
        return store_address(self._store), self._store.arguments

    def counts(self) -> dict[str, int]:
        """Return its counters."""
        return dict(self._store.native.counts())
