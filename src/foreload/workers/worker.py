"""What runs in a worker process, and what it is told and answers."""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import signal
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from threadpoolctl import threadpool_limits
from torch.utils.data import IterableDataset

from foreload import _native
from foreload._torch import seed_worker, set_process_worker_info, set_worker_signal_handlers, worker_info
from foreload.batch.failure import EmptyBatch, SampleError
from foreload.batch.samples import SampleAssembly
from foreload.batch.spec import BatchSpec
from foreload.batch.stream import StreamBatches
from foreload.cache.budget import reuse_freed
from foreload.cache.serialize import flatten, restore
from foreload.datasets.native import native_assembly
from foreload.workers.slots import SharedHeader, Slots

__all__ = ["WHERE", "Begin", "Result", "WorkerTask", "work"]

# Makes a worker say where it is, also where it holds the interpreter's lock.
WHERE = int(signal.SIGRTMAX) - 3 if hasattr(signal, "SIGRTMAX") else int(signal.SIGUSR2)


@dataclass
class WorkerTask:
    """What a worker process is started with.

    Attributes:
        spec: how batches are made.
        dataset: as the loader prepares it.
        init: ``worker_init_fn``.
        count: how many workers there are.
        seed: the base seed.
        reuses: whether memory that samples free is kept for those to come.
    """

    spec: BatchSpec
    dataset: Any
    init: Any
    count: int
    seed: int
    reuses: bool = False


@dataclass
class Begin:
    """The start of an epoch.

    Attributes:
        key: of what is random in native transforms.
        arrays: whether indices come as arrays.
        first: the number of the epoch's first job.
        skip: batches of a stream that were given before.
        state: of the stream after them, if it can tell it.
    """

    key: tuple[int, int]
    arrays: bool
    first: int = 0
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
        samples: of a stream, that the batch is made of.
        failures: samples that failed and were left out or replaced.
        nothing: whether none was left.
    """

    number: int
    parts: list[Any] | None = None
    error: tuple[bytes | None, str, str] | None = None
    dropped: list[int] | None = None
    state: Any = None
    samples: int = 0
    failures: list[SampleError] | None = None
    nothing: bool = False

    @property
    def is_end(self) -> bool:
        """Whether the stream is over."""
        return self.parts is None and self.error is None and not self.nothing

    def batch(self) -> Any:
        """Put the batch together; its tensors are views of the worker's slots.

        Raises:
            BaseException: the one that the worker caught; EmptyBatch where no sample was left.
        """
        if self.nothing:
            raise EmptyBatch
        if self.error is not None:
            raise raised(self.error)
        assert self.parts is not None
        return restore(self.parts)


def work(
    worker: int,
    task: WorkerTask,
    jobs: Any,
    results: Any,
    stacks: Any,
    memory: Any,
    lane: tuple[Any, int],
    parent: int,
) -> None:
    """Run a worker until it is told to end."""
    _native.end_with(parent, jobs.fileno())
    faulthandler.register(WHERE, file=stacks.fileno(), all_threads=True)
    file = memory.detach()
    words = SharedHeader(file)
    spans = lane[0].detach()
    own = _native.Lane(spans, lane[1])
    os.close(spans)
    # What was there before stays shared with the parent as long as nobody writes to it; the collector would.
    gc.freeze()
    if task.reuses:
        reuse_freed()
    set_worker_signal_handlers()
    with suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the loop, which ends the workers
    torch.multiprocessing._set_thread_name("pt_data_worker")
    torch.set_num_threads(1)
    threadpool_limits(1, "blas")  # NumPy's threads would take the cores of other workers, and wait for each other
    seed_worker(task.seed, worker)
    set_process_worker_info(
        worker_info(id=worker, num_workers=task.count, seed=task.seed + worker, dataset=task.dataset)
    )
    failure: tuple[bytes | None, str, str] | None = None
    try:
        if task.init is not None:
            task.init(worker)
    except Exception as error:
        failure = _described(error, worker)
    slots = Slots(file)
    batches: Any = None
    first = 0
    while True:
        try:
            message = pickle.loads(jobs.recv_bytes())
        except EOFError:
            return
        if message is None:
            return
        if isinstance(message, Begin):
            first = message.first
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
                with _native.Work(own, number - first):
                    batch, result.state, result.samples = batches(indices)
                result.parts, result.dropped = slots.send(flatten(batch))
                del batch
            except StopIteration:
                pass  # none of these: the stream is over
            except EmptyBatch:
                result.nothing = True
                slots.send([])
            except Exception as error:
                result.error = _described(error, worker)
                slots.send([])
        if task.spec.errors:
            result.failures = list(task.spec.errors)
            task.spec.errors.clear()
        results.send_bytes(pickle.dumps(result, protocol=5))


def _batches(task: WorkerTask, begin: Begin, slots: Slots, words: SharedHeader) -> Any:
    """Give what makes a batch of indices, or the next batch of a stream."""
    if isinstance(task.dataset, IterableDataset):
        stream = StreamBatches(task.spec, task.dataset, slots, begin.skip, begin.state)
        return lambda _: (next(stream), stream.state(), stream.samples)
    assembly = native_assembly(task.spec, task.dataset, begin.key, slots)
    if assembly is None:
        assembly = SampleAssembly(task.spec, task.dataset, 1, slots, arrays=begin.arrays)
        assembly.now = _Now(words)

    def make(indices: Any) -> Any:
        batch = assembly.start(indices)
        batch.job.run_here()
        return batch.take(), None, 0

    return make


class _Now:
    """Where the consumer looks up which sample a worker is at."""

    def __init__(self, words: SharedHeader) -> None:
        self._header = words

    def __setitem__(self, thread: int, place: tuple[Any, int]) -> None:
        self._header.position = place[1]


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
