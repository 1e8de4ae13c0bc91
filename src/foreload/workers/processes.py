"""Worker processes: what torch's do, with batches in slots, and replaced when they are killed."""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing.reduction
import os
import pickle
import random
import select
import signal
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset
from torch.utils.data._utils import signal_handling
from torch.utils.data._utils import worker as torch_worker

from foreload import _native
from foreload.stages.assemble import WorkersMaking, native_assembly
from foreload.stages.batch import SampleAssembly
from foreload.stages.failure import NothingLeft, SampleError
from foreload.stages.samples import flatten, restore
from foreload.stream import StreamBatches
from foreload.workers.slots import Lent, Slots, Words, open_memory

__all__ = ["Begin", "ProcessPool", "Result", "WorkerTask", "death"]

# Seconds that torch, too, gives a worker to end by itself.
_PATIENCE = 5.0

# Makes a worker say where it is, also where it holds the interpreter's lock.
_WHERE = int(signal.SIGRTMAX) - 3 if hasattr(signal, "SIGRTMAX") else int(signal.SIGUSR2)

# Seconds that it has for that, and the silence after which it has said all.
_ANSWER, _SILENCE = 2.0, 0.1

# Bytes that a pipe takes without waiting for its reader, where the system allows that.
_PIPE = 1 << 20


@dataclass
class WorkerTask:
    """What a worker process is started with.

    Attributes:
        making: how batches are made.
        dataset: as the loader prepares it.
        init: ``worker_init_fn``.
        count: how many workers there are.
        seed: the base seed.
    """

    making: WorkersMaking
    dataset: Any
    init: Any
    count: int
    seed: int


@dataclass
class Begin:
    """The start of an epoch.

    Attributes:
        key: of what is random in native transforms.
        arrays: whether indices come as arrays.
        skip: batches of a stream that were given before.
        state: of the stream after them, if it can tell it.
    """

    key: tuple[int, int]
    arrays: bool
    skip: int = 0
    state: Any = None


@dataclass
class Result:
    """What a worker answers.

    Attributes:
        number: of the job.
        parts: what the batch is made of, if it could be made; where that lies, and then the memory itself.
        error: the exception, pickled, and its traceback as text.
        dropped: slots that are not used any more.
        state: of the stream, after this batch.
        failures: samples that failed and were left out or replaced.
        nothing: whether none was left.
    """

    number: int
    parts: list[Any] | None = None
    error: tuple[bytes | None, str, str] | None = None
    dropped: list[int] | None = None
    state: Any = None
    failures: list[SampleError] | None = None
    nothing: bool = False

    @property
    def is_end(self) -> bool:
        """Whether the stream is over."""
        return self.parts is None and self.error is None and not self.nothing

    def batch(self) -> Any:
        """Put the batch together; its tensors are views of the worker's slots.

        Raises:
            BaseException: the one that the worker caught; NothingLeft where no sample was left.
        """
        if self.nothing:
            raise NothingLeft
        if self.error is not None:
            raise raised(self.error)
        assert self.parts is not None
        return restore(self.parts)


# The worker's side.


def work(worker: int, task: WorkerTask, jobs: Any, results: Any, stacks: Any, memory: Any, parent: int) -> None:
    """Run a worker until it is told to end."""
    _native.end_with(parent, jobs.fileno())
    faulthandler.register(_WHERE, file=stacks.fileno(), all_threads=True)
    file = memory.detach()
    words = Words(file)
    # What was there before stays shared with the parent as long as nobody writes to it; the collector would.
    gc.freeze()
    signal_handling._set_worker_signal_handlers()  # type: ignore[attr-defined]
    with suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the loop, which ends the workers
    torch.multiprocessing._set_thread_name("pt_data_worker")
    torch.set_num_threads(1)
    _seed(task.seed, worker)
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=worker, num_workers=task.count, seed=task.seed + worker, dataset=task.dataset
    )
    failure: tuple[bytes | None, str, str] | None = None
    try:
        if task.init is not None:
            task.init(worker)
    except Exception as error:
        failure = _described(error, worker)
    slots = Slots(file)
    batches: Any = None
    while True:
        try:
            message = pickle.loads(jobs.recv_bytes())
        except EOFError:
            return
        if message is None:
            return
        if isinstance(message, Begin):
            if failure is None:
                try:
                    batches = _batches(task, message, slots, words)
                except Exception as error:
                    failure = _described(error, worker)
            continue
        number, indices, freed = message
        slots.give_back(freed)
        if number < words.first:
            continue
        result = Result(number)
        if failure is not None:
            result.error = failure
        else:
            try:
                batch, result.state = batches(indices)
                result.parts, result.dropped = slots.send(flatten(batch))
                del batch
            except StopIteration:
                pass  # none of these: the stream is over
            except NothingLeft:
                result.nothing = True
                slots.send([])
            except Exception as error:
                result.error = _described(error, worker)
                slots.send([])
        if task.making.errors:
            result.failures = list(task.making.errors)
            task.making.errors.clear()
        results.send_bytes(pickle.dumps(result, protocol=5))


def _seed(base: int, worker: int) -> None:
    random.seed(base + worker)
    torch.manual_seed(base + worker)
    np.random.seed(torch_worker._generate_state(base, worker))  # type: ignore[no-untyped-call]


def _batches(task: WorkerTask, begin: Begin, slots: Slots, words: Words) -> Any:
    """Give what makes a batch of indices, or the next batch of a stream."""
    if isinstance(task.dataset, IterableDataset):
        stream = StreamBatches(task.making, task.dataset, slots, begin.skip, begin.state)
        return lambda _: (next(stream), stream.state())
    assembly = native_assembly(task.making, task.dataset, begin.key, slots)
    if assembly is None:
        assembly = SampleAssembly(task.making, task.dataset, 1, slots, arrays=begin.arrays)
        assembly.now = _Now(words)

    def make(indices: Any) -> Any:
        batch = assembly.start(indices)
        batch.job.run_here()
        return batch.take(), None

    return make


class _Now:
    """Where the consumer looks up which sample a worker is at."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def __setitem__(self, thread: int, place: tuple[Any, int]) -> None:
        self._words.position = place[1]


def _described(error: Exception, worker: int) -> tuple[bytes | None, str, str]:
    text = "".join(traceback.format_exception(error))
    summary = f"Caught {type(error).__name__} in DataLoader worker process {worker}."
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:  # anything may be raised by what a class does when it is pickled
        return None, summary, text
    return pickled, summary, text


def raised(error: tuple[bytes | None, str, str]) -> BaseException:
    """Make the exception that a worker caught: its own, with the worker's traceback as a note."""
    pickled, summary, text = error
    try:
        if pickled is None:
            raise RuntimeError
        caught: BaseException = pickle.loads(pickled)
    except Exception:  # as above
        return RuntimeError(f"{summary}\nOriginal {text}")
    caught.add_note(f"{summary}\nOriginal {text}")
    return caught


# The consumer's side.


class Worker:
    """One worker process as its consumer sees it.

    Attributes:
        process: the process.
        asked: the jobs that it has not answered, in order: number and indices.
    """

    def __init__(self, number: int, task: WorkerTask, context: Any) -> None:
        self.number = number
        self.asked: OrderedDict[int, Any] = OrderedDict()
        self._file = open_memory(f"worker-{number}")
        self._lent = Lent(self._file)
        self._words = Words(self._file)
        read_jobs, self._jobs = context.Pipe(duplex=False)
        self.results, send_results = context.Pipe(duplex=False)
        self._stacks, send_stacks = context.Pipe(duplex=False)
        for pipe in (self._jobs, self.results):
            _widen(pipe.fileno())
        self.process = context.Process(
            target=work,
            args=(number, task, read_jobs, send_results, send_stacks, _Descriptor(self._file), os.getpid()),
            daemon=True,
        )
        try:
            self.process.start()
        finally:
            read_jobs.close()
            send_results.close()
            send_stacks.close()

    def tell(self, message: Begin | None) -> None:
        """Begin an epoch, or end."""
        with suppress(OSError):  # it is gone, which is seen elsewhere
            self._jobs.send_bytes(pickle.dumps(message, protocol=5))

    def ask(self, number: int, indices: Any) -> None:
        """Give it a job."""
        self.asked[number] = indices
        freed = []
        while self._lent.freed:
            freed.append(self._lent.freed.popleft())
        with suppress(OSError):  # as above; the job is done again by who comes after it
            self._jobs.send_bytes(pickle.dumps((number, indices, freed), protocol=5))

    def receive(self) -> Result | None:
        """Take its next answer; None where it is gone."""
        try:
            result: Result = pickle.loads(self.results.recv_bytes())
        except (EOFError, OSError):
            return None
        self.asked.pop(result.number, None)
        if result.parts is not None:
            result.parts = self._lent.take(result.parts)
        self._lent.forget(result.dropped or ())
        return result

    def skip_to(self, number: int) -> None:
        """Leave alone the jobs before this one."""
        self._words.first = number
        self.asked.clear()

    def where(self) -> str:
        """Say which sample it is at, and how it came there."""
        if not self.asked:
            return f"worker {self.number} (pid {self.process.pid}) has nothing to do"
        indices = next(iter(self.asked.values()))
        said = f"worker {self.number} (pid {self.process.pid}) is at {_sample(indices, self._words.position)}"
        with suppress(OSError):
            os.kill(self.process.pid or 0, _WHERE)
            text, patience = b"", _ANSWER
            while select.select([self._stacks.fileno()], [], [], patience)[0]:
                said_more = os.read(self._stacks.fileno(), 1 << 16)
                if not said_more:
                    break
                text, patience = text + said_more, _SILENCE
            said += f"\n{text.decode(errors='replace')}"
        return said

    def close(self) -> None:
        """Let go of the pipes and of the memory that no batch holds."""
        for pipe in (self._jobs, self.results, self._stacks):
            pipe.close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _sample(indices: Any, position: int) -> str:
    if isinstance(indices, (list, tuple, np.ndarray)) and position < len(indices):
        index = indices.tolist()[position] if isinstance(indices, np.ndarray) else indices[position]
        return f"sample {index!r} (position {position} of its batch)"
    return "a batch of its stream" if indices is None else f"sample {indices!r}"


class _Descriptor:
    """A descriptor on its way to a worker, which finds it under the same number or gets a copy."""

    def __init__(self, file: int) -> None:
        self._file = file

    def detach(self) -> int:
        return self._file

    def __reduce__(self) -> Any:
        if get_spawning_popen() is None:
            raise TypeError("a descriptor can be given to a process that is being started only")
        return _received, (multiprocessing.reduction.DupFd(self._file),)


def _received(descriptor: Any) -> Any:
    return descriptor


def _widen(pipe: int) -> None:
    import fcntl

    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE)


class ProcessPool:
    """Worker processes, and the wait for what they answer.

    Args:
        task: what they are started with.
        context: of ``multiprocessing``.

    Attributes:
        next_number: of the next job.
        first: the first job of the present epoch.
        restarts: how many workers have been replaced.
    """

    def __init__(self, task: WorkerTask, context: Any) -> None:
        self._task = task
        self._context = context
        self._process = os.getpid()
        self._closed = False
        self.next_number = 0
        self.first = 0
        self.restarts = 0
        self.workers: list[Worker] = []
        try:
            for number in range(task.count):
                self.workers.append(Worker(number, task, context))
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        """Whether they have been ended, or belong to the process that this one was forked from."""
        return self._closed or self._process != os.getpid()

    def replace(self, worker: Worker) -> Worker:
        """Start another process in the place of one that is gone; it has yet to be told what to do."""
        worker.process.join()
        worker.close()
        self.restarts += 1
        other = self.workers[worker.number] = Worker(worker.number, self._task, self._context)
        return other

    def wait(self, wanted: Iterable[Worker], timeout: float | None) -> Iterator[tuple[Worker, Result | None]]:
        """Wait for answers of ``wanted``, or the end of any worker; give what has come, None for an end.

        Nothing is given after ``timeout`` seconds.
        """
        poll = select.poll()
        found: dict[int, Worker] = {}
        for worker in wanted:
            found[worker.results.fileno()] = worker
            poll.register(worker.results.fileno(), select.POLLIN)
        ends: dict[int, Worker] = {}
        for worker in self.workers:
            ends[worker.process.sentinel] = worker
            poll.register(worker.process.sentinel, select.POLLIN)
        events = poll.poll(None if timeout is None else timeout * 1000)
        answered = [found[file] for file, _ in events if file in found]
        for worker in answered:
            yield worker, worker.receive()
        for file, _ in events:
            # What it had answered before comes first.
            if file in ends and ends[file] not in answered:
                worker = ends[file]
                while worker.results.poll():
                    result = worker.receive()
                    if result is None:
                        break
                    yield worker, result
                yield worker, None

    def close(self, *, patient: bool = True) -> None:
        """End them all, after the batches that they are at; otherwise at once."""
        if self.closed:
            return
        self._closed = True
        for worker in self.workers:
            worker.skip_to(sys.maxsize)
            worker.tell(None)
        deadline = time.monotonic() + (_PATIENCE if patient else 0)
        for worker in self.workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.close()


def death(process: Any) -> str:
    """Say how a process ended, in torch's words."""
    code = process.exitcode
    if code is not None and code < 0:
        return f"DataLoader worker (pid {process.pid}) is killed by signal: {signal.strsignal(-code)}. "
    return (
        f"DataLoader worker (pid {process.pid}) exited unexpectedly with exit code {code}. Details are lost due "
        "to multiprocessing. Rerunning with num_workers=0 may give better error trace."
    )
