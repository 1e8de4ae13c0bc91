"""The main function of a worker process: it makes batches, one job after the other, until it is told to end."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from foreload import _native
from foreload.batch.failure import EmptyBatch, PickledError, pickle_error
from foreload.batch.generators.keyed import KeyedGenerators
from foreload.batch.samples import SampleAssembly
from foreload.batch.spec import BatchSpec
from foreload.batch.stream import StreamBatches
from foreload.batch.worker_progress import StatefulSamples, is_due
from foreload.cache.serialize import flatten, flatten_exactly
from foreload.dataset_state.digest import CHANGES
from foreload.dataset_state.given import find_held
from foreload.datasets.native import native_assembly
from foreload.forks.descriptors import READS_ON, Positions
from foreload.forks.read_only import CHANGES_FILE, ReadOnlyFiles
from foreload.nested.picklers import TorchPickler
from foreload.protocol import EpochListener
from foreload.workers.messages import Begin, Job, Result, decode
from foreload.workers.processes.header import SharedHeader
from foreload.workers.processes.pipes import Inbox, send
from foreload.workers.processes.slots import Slots
from foreload.workers.spec import CopyWatch
from foreload.workers.start.set_up import set_up_process
from foreload.workers.surroundings import ProcessSurroundings

if TYPE_CHECKING:
    from foreload.dataset_state.program.settings import LoopSettings
    from foreload.dataset_state.program.state import ProgramState

__all__ = ["STACKS_SIGNAL", "WorkerState", "WorkerTask", "work"]

# Why only the loop's own process may load.
_IS_LOCKED = "a thread held a lock that samples use when worker processes were started"

# Makes a worker write the stacks of its threads, even while it holds the interpreter's lock.
STACKS_SIGNAL = int(signal.SIGRTMAX) - 3 if hasattr(signal, "SIGRTMAX") else int(signal.SIGUSR2)


@dataclass
class WorkerTask:
    """The arguments that a worker process is started with.

    Attributes:
        spec: how batches are made.
        dataset: the dataset as workers see it.
        init: ``worker_init_fn``.
        count: the number of workers.
        seed: the base seed.
        reuses: whether memory that samples free is kept for later samples.
        is_chosen: whether the loader chose worker processes; if the user did, arrays come as torch sends them.
        is_hidden: whether samples must not see that a worker loads them: its number was left to the loader, and
            the calling thread might have been chosen.
        held: notices what loading changes in the worker's copy of the dataset, if nothing may.
        settings: those of the loop, which the worker takes over; None: it has them, or is as torch's workers are.
        program: what the program has set, with which the worker compares what it has, if nothing else does.
    """

    spec: BatchSpec
    dataset: Any
    init: Any
    count: int
    seed: int
    reuses: bool = False
    is_chosen: bool = False
    is_hidden: bool = False
    held: CopyWatch | None = None
    settings: LoopSettings | None = None
    program: ProgramState | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Whatever unpickles the dataset has the settings already.
        return {"settings": self.settings, **vars(self)}


def work(
    worker: int,
    task: WorkerTask,
    jobs: Any,
    results: Any,
    stacks: Any,
    memory: Any,
    slots: socket.socket,
    lane: tuple[Any, int],
    parent: int,
) -> None:
    """Run worker number ``worker`` in this process until it is told to end.

    Args:
        worker: its number.
        task: what it is started with.
        jobs: the pipe that messages come from: a :class:`Begin`, a job, or None to end.
        results: the pipe for each :class:`Result`.
        stacks: the pipe for stack traces, after :data:`STACKS_SIGNAL`.
        memory: the descriptor of the file with its :class:`~foreload.workers.processes.header.SharedHeader`.
        slots: the socket for them.
        lane: where it records spans: the descriptor of the file, and the offset.
        parent: the process that started it, with which it ends.
    """
    _native.end_with(parent, jobs.fileno())
    faulthandler.register(STACKS_SIGNAL, file=stacks.fileno(), all_threads=True)
    _native.widen_signal_stack()  # that of faulthandler, on which all handlers run from then on
    file = memory.detach()
    header = SharedHeader(file)
    header.started = time.process_time_ns()  # so far
    os.close(file)
    spans = lane[0].detach()
    own_lane = _native.Lane(spans, lane[1])
    os.close(spans)
    set_up_process(worker, task)
    state = WorkerState(worker, task, header, Slots(slots), own_lane)
    inbox = Inbox(jobs.fileno())
    header.started = time.process_time_ns()
    while True:
        try:
            message = decode(inbox.receive())
        except EOFError:
            return
        if message is None:
            return
        result = state.begin(message) if isinstance(message, Begin) else state.load(message)
        if result is not None:
            send(results.fileno(), result.encode())
            header.answered = time.monotonic_ns()


class WorkerState:
    """A worker between two messages; ``slots`` are the memory of batches, which the header's owner sees."""

    _dumps: Callable[[Any], bytes] = staticmethod(pickle.dumps)

    def __init__(self, worker: int, task: WorkerTask, header: Any, slots: Any, lane: _native.Lane) -> None:
        self._worker = worker
        self._task = task
        self._header = header
        self._lane = lane
        self._failure: PickledError | None = None  # the answer to every job
        self._batches: Any = None  # makes a batch of indices, or the next batch of a stream
        self._unsent: str | None = None  # why a batch was not
        self._source: StreamBatches | StatefulSamples | None = None  # has a state
        self._snapshots = 0
        self._positions = Positions()  # of files that the loop has open too
        self._made = self._first = 0  # batches in this epoch, and its first job
        self._differs = None if task.program is None else task.program.differs()
        self._files = None if task.held is None else ReadOnlyFiles()
        if task.held is not None:
            task.held.begin()
        # Nobody would ever let go of it here, nor finish what it guards.
        self._is_locked = task.held is not None and task.held.has_held_lock()
        try:
            if task.init is not None:
                task.init(worker)
        except Exception as error:
            self._failure = self._pickled(error)
        self._slots = slots

    def _flatten(self, holder: list[Any]) -> list[memoryview]:
        """Return the parts of the batch that a list holds."""
        task = self._task
        if task.held is None:
            return flatten(holder[0]) if task.is_chosen else flatten(holder[0], TorchPickler)
        # The calling thread takes over what cannot be sent as it is.
        if (held := find_held(holder, (), self._slots.holds)) is not None:
            raise pickle.PicklingError(held)
        return flatten_exactly(holder[0])

    def _pickled(self, error: Exception) -> PickledError:
        return pickle_error(error, self._worker, self._dumps)

    def begin(self, begin: Begin) -> Result | None:
        """Begin an epoch; return the state of the dataset then, if it may have one."""
        self._first = begin.first
        self._snapshots = begin.snapshots or 0
        self._made, self._source = 0, None
        result = Result(-1, begun=begin.first)
        if self._failure is None:
            try:
                self._open(begin)
                result.state = None if self._source is None else self._source.state()
            except Exception as error:
                self._failure = self._pickled(error)
        return None if begin.snapshots is None else result

    def _open(self, begin: Begin) -> None:
        task, slots = self._task, self._slots
        if isinstance(task.dataset, IterableDataset):
            key = partial(KeyedGenerators(begin.key).key, self._worker) if task.spec.is_keyed else None
            if key is not None:
                key()
            spec = replace(task.spec, batch_size=begin.batch_size)
            stream = StreamBatches(spec, task.dataset, slots, begin.progress, again=begin.again, key=key)
            self._source = stream
            self._batches = lambda _: (next(stream), stream.samples)
            return
        if task.spec.is_keyed and isinstance(task.dataset, EpochListener):
            task.dataset.epoch_begins(None, begin.key)  # threads of its own draw random numbers too
        assembly = native_assembly(task.spec, task.dataset, begin.key, slots)
        if assembly is None:
            is_keyed, is_pure = task.spec.is_keyed, task.spec.is_pure
            surroundings = ProcessSurroundings(begin.key, is_pure=is_pure) if is_keyed else None
            assembly = SampleAssembly(
                task.spec, task.dataset, 1, slots, arrays=begin.arrays, surroundings=surroundings
            )
            assembly.now = _Position(self._header)

        def make(indices: Any) -> tuple[Any, int]:
            batch = assembly.start(indices)
            batch.job.run_here()
            return batch.take(), 0

        self._batches = make
        if begin.snapshots is not None:
            self._source = StatefulSamples.of(
                task.dataset, begin.progress, make, arrays=begin.arrays, errors=task.spec.errors
            )

    def _state(self) -> Any:
        """Return the state of the dataset if it is due after this batch."""
        self._made += 1
        if self._source is None or not is_due(self._made, self._task.count, self._snapshots):
            return None
        return self._source.state()

    def load(self, job: Job) -> Result | None:
        """Do a job, after taking back the slots that were returned; None if its answer is not wanted any more."""
        self._slots.give_back(job.returned)
        if job.number < self._header.first:
            return None
        result = Result(job.number, error=self._failure)
        if self._files is not None:
            self._files.begin()
        if self._failure is None and not self._is_locked:
            self._load(result, job.indices)
        if self._task.held is not None and self._files is not None:
            self._check_unseen(result, self._task.held, self._files)
        elif self._differs is not None:
            result.unfit, self._differs = self._differs, None
        if errors := self._task.spec.errors:
            result.failures = list(errors)
            errors.clear()
        return result

    def _check_unseen(self, result: Result, held: CopyWatch, files: ReadOnlyFiles) -> None:
        """Note if the loop would see in this batch that a copy of the dataset has loaded it."""
        moved = self._positions.moved()
        name = held.changed_by_loading()
        result.makes = held.makes
        if self._is_locked:
            result.unfit = _IS_LOCKED
        elif held.differs is not None:
            result.unfit = held.differs
        elif files.refused is not None:
            result.unfit = CHANGES_FILE.format(files.refused)
        elif name is not None:
            result.unfit = CHANGES.format(name)
        elif moved is not None:
            result.unfit = READS_ON.format(moved)
        elif result.error is not None:
            result.unfit = self._unsent or result.error[1]  # whose traceback refers to objects of this process
        files.end(keeps=not result.unfit)

    def _load(self, result: Result, indices: Any) -> None:
        try:
            with _native.Work(self._lane, result.number - self._first):
                holder = list(self._batches(indices))
            result.samples = holder.pop()
            result.state = self._state()
            parts = self._flatten(holder)
            holder.clear()  # what is then still held, code of the user's holds
            result.parts, result.dropped = self._slots.send(parts)
        except StopIteration as error:
            # The stream is over: there are no parts. A map-style dataset has no end.
            if isinstance(self._task.dataset, IterableDataset):
                result.state = None if self._source is None else self._source.state()
            else:
                result.error = self._pickled(error)
        except EmptyBatch:
            result.is_empty = True
            result.state = self._state()
        except Exception as error:
            result.error = self._pickled(error)
            if isinstance(error, pickle.PicklingError):
                self._unsent = f"a batch cannot be sent as it is: {error}"
            with suppress(Exception):  # the error may be that of the state
                result.state = self._state()
        except BaseException as error:  # of sys.exit() or the like
            if self._task.held is None:
                raise
            result.unfit = f"a sample raises {type(error).__name__}"


class _Position:
    """Shows the consumer which sample of its batch the worker is loading."""

    def __init__(self, header: SharedHeader) -> None:
        self._header = header

    def __setitem__(self, thread: int, place: tuple[Any, int]) -> None:
        self._header.position = place[1]
