"""The consumer's side of worker processes: jobs, answers, and replacement of workers that were killed."""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import sys
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from foreload.machine import open_memory
from foreload.record.spans import Lane, Spans
from foreload.record.usage import queued_seconds
from foreload.workers import blas
from foreload.workers.descriptors import Descriptor, open_process
from foreload.workers.slots import ConsumerSlots, SharedHeader
from foreload.workers.start.template import TemplateProcess, process_class
from foreload.workers.worker import STACKS_SIGNAL, Begin, Result, WorkerTask, work

__all__ = ["ProcessPool", "Restart", "Worker", "death"]

# Seconds for a worker to end by itself, as in torch.
_END_SECONDS = 5.0

# Seconds for a worker to begin writing its stacks, and the pause after which they are taken to be complete.
_STACKS_SECONDS, _STACKS_PAUSE_SECONDS = 2.0, 0.1

# The capacity of a pipe, if the system allows it.
_PIPE_BYTES = 1 << 20


@dataclass(frozen=True)
class Restart:
    """A worker process that ended before its time, and was replaced.

    Attributes:
        worker: its number.
        pid: the id of its process.
        exitcode: minus the signal that killed it, or its exit code.
        indices: the indices of its unfinished batches, which were loaded again.
    """

    worker: int
    pid: int
    exitcode: int | None
    indices: list[Any]


class Worker:
    """The consumer's side of one worker process.

    Attributes:
        process: the process.
        asked: the jobs that it has not answered, in order: number and indices.
        lane: where it records spans.
        ended: a descriptor that can be read from once the process has ended.
        is_last: whether it has been told to end after the jobs that it was asked for.
    """

    def __init__(self, number: int, task: WorkerTask, context: Any, spans: Spans, lane: Lane) -> None:
        self.number = number
        self.lane = lane
        self.asked: OrderedDict[int, Any] = OrderedDict()
        self.is_last = False
        self._owes_state = False  # of its dataset at the beginning of the epoch
        self._spans = spans
        self._has_ended = False
        self._pidfd: int | None = None
        self._file = open_memory(f"worker-{number}")
        self._slots, send_slots = socket.socketpair()
        self._lent = ConsumerSlots(self._slots)
        self._header = SharedHeader(self._file)
        read_jobs, self._jobs = context.Pipe(duplex=False)
        self.results, send_results = context.Pipe(duplex=False)
        self._stacks, send_stacks = context.Pipe(duplex=False)
        for pipe in (self._jobs, self.results):
            _widen(pipe.fileno())
        self.process = process_class(context)(
            target=work,
            args=(
                number,
                task,
                read_jobs,
                send_results,
                send_stacks,
                Descriptor(self._file),
                send_slots,
                (Descriptor(spans.file), lane.offset),
                os.getpid(),
            ),
            daemon=True,
        )
        try:
            self.process.start()
        except BaseException:
            self.close()
            raise
        finally:
            read_jobs.close()
            send_results.close()
            send_stacks.close()
            send_slots.close()
        # A server knows the ends of its children before others do.
        if context.get_start_method() != "forkserver" and not isinstance(self.process, TemplateProcess):
            self._pidfd = open_process(self.process.pid)
        self.ended = self.process.sentinel if self._pidfd is None else self._pidfd

    @property
    def is_done(self) -> bool:
        """Whether it may end, as it has answered all that it will be asked."""
        return self.is_last and not self.asked and not self._owes_state

    def tell(self, message: Begin | None) -> None:
        """Send a message: begin an epoch, or end."""
        self.is_last = message is None
        if message is not None:
            self._owes_state = message.snapshots is not None
        with suppress(OSError):  # if it is gone, the wait for its answers notices
            self._jobs.send_bytes(pickle.dumps(message, protocol=5))

    def ask(self, number: int, indices: Any) -> None:
        """Send a job."""
        self.asked[number] = indices
        with suppress(OSError):  # as above; its replacement does the job again
            self._jobs.send_bytes(pickle.dumps((number, indices, self._lent.returned()), protocol=5))

    def receive(self) -> Result | None:
        """Return its next answer; None if it is gone."""
        try:
            result: Result = pickle.loads(self.results.recv_bytes())
        except (EOFError, OSError):
            return None
        self.asked.pop(result.number, None)
        if result.begun is not None:
            self._owes_state = False
        if result.parts is not None:
            result.parts = self._lent.take(result.parts)
        self._lent.forget(result.dropped or ())
        return result

    def end(self, seconds: float = _END_SECONDS) -> Any:
        """Wait until the process has ended, kill it if that takes longer than ``seconds``, and return it."""
        if self._has_ended:
            return self.process
        poll = select.poll()
        poll.register(self.ended, select.POLLIN)
        poll.poll(max(0.0, seconds) * 1000)
        queued = queued_seconds(self.process.pid)  # before anybody waits for it, which forgets that
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self._has_ended = True
        self._spans.add_queued(queued)
        return self.process

    def skip_to(self, number: int) -> None:
        """Let the worker skip the jobs before this one."""
        self._header.first = number
        self.asked.clear()

    def where(self) -> str:
        """Describe which sample the worker is loading, with its stacks."""
        if not self.asked:
            return f"worker {self.number} (pid {self.process.pid}) is idle"
        indices = next(iter(self.asked.values()))
        text = f"worker {self.number} (pid {self.process.pid}) is at {_sample(indices, self._header.position)}"
        with suppress(OSError):
            os.kill(self.process.pid or 0, STACKS_SIGNAL)
            stacks, seconds = b"", _STACKS_SECONDS
            while self._stacks.poll(seconds):
                part = os.read(self._stacks.fileno(), 1 << 16)
                if not part:
                    break
                stacks, seconds = stacks + part, _STACKS_PAUSE_SECONDS
            text += f"\n{stacks.decode(errors='replace')}"
        return text

    def close(self) -> None:
        """Close the pipes; memory that batches hold stays."""
        for pipe in (self._jobs, self.results, self._stacks, self._slots):
            pipe.close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def _sample(indices: Any, position: int) -> str:
    if isinstance(indices, (list, tuple, np.ndarray)) and position < len(indices):
        index = indices.tolist()[position] if isinstance(indices, np.ndarray) else indices[position]
        return f"sample {index!r} (position {position} of its batch)"
    return "a batch of its stream" if indices is None else f"sample {indices!r}"


def _widen(pipe: int) -> None:
    import fcntl

    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


class ProcessPool:
    """Worker processes, and the wait for their answers.

    Args:
        task: the arguments that they are started with.
        context: the context of ``multiprocessing``.
        spans: where they record spans.

    Attributes:
        next_number: the number of the next job.
        first: the first job of the present epoch.
    """

    def __init__(self, task: WorkerTask, context: Any, spans: Spans) -> None:
        self._task = task
        self._spans = spans
        self._context = context
        self._process = os.getpid()
        self._closed = False
        self.next_number = 0
        self.first = 0
        self.workers: list[Worker] = []
        try:
            if context.get_start_method() == "fork":
                _prepare_forks()
            for number in range(task.count):
                self.workers.append(self._start(number))
        except BaseException:
            self.close()
            raise

    def _start(self, number: int) -> Worker:
        (lane,) = self._spans.take("process")
        try:
            return Worker(number, self._task, self._context, self._spans, lane)
        except BaseException:
            self._spans.give_back([lane])
            raise

    @property
    def closed(self) -> bool:
        """Whether the workers have been ended, or belong to the process that this one was forked from."""
        return self._closed or self._process != os.getpid()

    def replace(self, worker: Worker) -> Worker:
        """Start another process in the place of one that is gone; it has no epoch and no jobs yet."""
        worker.end()
        worker.close()
        other = Worker(worker.number, self._task, self._context, self._spans, worker.lane)
        self.workers[worker.number] = other
        return other

    def wait(self, wanted: Iterable[Worker], timeout: float | None) -> Iterator[tuple[Worker, Result | None]]:
        """Wait for answers of ``wanted``, or the end of any worker; yield the answers, and None for an end.

        Workers that were told to end may do so when they have answered. After ``timeout`` seconds, nothing is
        yielded.
        """
        poll = select.poll()
        found: dict[int, Worker] = {}
        for worker in wanted:
            if not worker.is_done:
                found[worker.results.fileno()] = worker
                poll.register(worker.results.fileno(), select.POLLIN)
        ends: dict[int, Worker] = {}
        for worker in self.workers:
            if not worker.is_done:
                ends[worker.ended] = worker
                poll.register(worker.ended, select.POLLIN)
        events = poll.poll(None if timeout is None else timeout * 1000)
        answered = [found[file] for file, _ in events if file in found]
        for worker in answered:
            yield worker, worker.receive()
        for file, _ in events:
            # Answers that it sent before come first.
            if file in ends and ends[file] not in answered:
                worker = ends[file]
                while worker.results.poll():
                    result = worker.receive()
                    if result is None:
                        break
                    yield worker, result
                if not worker.is_done:
                    yield worker, None

    def close(self, *, wait: bool = True) -> None:
        """End the workers, after their present batches; ``wait=False`` kills them at once."""
        if self.closed:
            return
        self._closed = True
        for worker in self.workers:
            worker.skip_to(sys.maxsize)
            worker.tell(None)
        deadline = time.monotonic() + (_END_SECONDS if wait else 0)
        try:
            for worker in self.workers:
                worker.end(deadline - time.monotonic())
        finally:  # an interrupt leaves none behind
            for worker in self.workers:
                worker.end(0)
                worker.close()
                self._spans.give_back([worker.lane])


def _prepare_forks() -> None:
    """Do here, once, what each forked worker would do for itself in each epoch."""
    import numpy.random  # noqa: F401 (NumPy imports it when it is first used: by a worker, to seed it)

    blas.find_libraries()


def death(process: Any) -> str:
    """Describe how a process ended, in torch's words."""
    code = process.exitcode
    if code is not None and code < 0:
        return f"DataLoader worker (pid {process.pid}) is killed by signal: {signal.strsignal(-code)}. "
    return (
        f"DataLoader worker (pid {process.pid}) exited unexpectedly with exit code {code}. Details are lost due "
        "to multiprocessing. Rerunning with num_workers=0 may give better error trace."
    )
