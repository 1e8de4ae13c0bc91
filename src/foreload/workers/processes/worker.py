"""One worker process as the loop sees it: its jobs, its answers and its end."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections import deque
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np

from foreload.forks.fork import forking
from foreload.forks.generator import free_generator
from foreload.machine import open_memory, open_process
from foreload.record.spans import Lane, Spans
from foreload.record.usage import queued_seconds
from foreload.workers.messages import Begin, Job, Result, encode
from foreload.workers.pool import Answers, Worker
from foreload.workers.processes.header import SharedHeader
from foreload.workers.processes.pipes import Channel, Descriptor
from foreload.workers.processes.slots import ConsumerSlots
from foreload.workers.start.set_up import postponed_signals
from foreload.workers.start.template import TemplateProcess, process_class
from foreload.workers.worker import STACKS_SIGNAL, WorkerTask, work

__all__ = ["END_SECONDS", "ProcessWorker"]

# Seconds for a worker to end by itself, as in torch.
END_SECONDS = 5.0

# Seconds for a worker to begin writing its stacks, and the pause after which they are taken to be complete.
_STACKS_SECONDS, _STACKS_PAUSE_SECONDS = 2.0, 0.1


class ProcessWorker(Worker):
    """The consumer's side of one worker process, which ends after its last job.

    Attributes:
        ended: a descriptor that can be read from once the process has ended.
    """

    def __init__(self, number: int, task: WorkerTask, context: Any, spans: Spans, lane: Lane) -> None:
        super().__init__(number, lane)
        self._num_owed = 0  # states of its dataset, each at the beginning of an epoch
        self._spans = spans
        self._has_ended = self._has_answered = False
        self._pidfd: int | None = None
        self._slots, send_slots = socket.socketpair()
        self._lent = ConsumerSlots(self._slots)
        read_jobs, jobs = context.Pipe(duplex=False)
        results, send_results = context.Pipe(duplex=False)
        self._stacks, send_stacks = context.Pipe(duplex=False)
        self._channel = Channel(jobs, results)
        self._file = open_memory(f"worker-{number}")  # last, since nothing closes it if another one is refused
        files = Descriptor(self._file), send_slots, (Descriptor(spans.file), lane.offset)
        arguments = (number, task, read_jobs, send_results, send_stacks, *files, os.getpid())
        try:
            self._header = SharedHeader(self._file)
            self.process = process_class(context)(target=work, args=arguments, daemon=True)
            is_fork = context.get_start_method() == "fork"  # a program would inherit which signals are postponed
            with (
                forking() if task.is_chosen else free_generator(),
                postponed_signals() if is_fork else nullcontext(),
            ):
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
        self._channel.ended = self.ended = self.process.sentinel if self._pidfd is None else self._pidfd

    @property
    def is_done(self) -> bool:
        """Whether it may end, as it has answered all that it will be asked."""
        return self.is_last and not self.asked and not self._num_owed

    def tell(self, message: Begin | None, seconds: float | None = None) -> None:
        """Send a message: begin an epoch, or end. One that takes longer than ``seconds`` is given up."""
        self.is_last = message is None
        encoded = encode(message)  # which may fail, at states of the user's classes
        if message is not None and message.snapshots is not None:
            self._num_owed += 1
        self._channel.send(encoded, seconds)

    def ask(self, number: int, indices: Any, seconds: float | None) -> bool:
        """Send a job; return whether it took no longer than ``seconds``.

        If the worker has ended, its replacement does the job.
        """
        self.asked[number] = indices
        return self._channel.send(encode(Job(number, indices, self._lent.returned())), seconds)

    def idle_seconds(self) -> float:
        """Return how long it has had nothing to do; 0 if it has something, or has not answered yet."""
        answered = self._header.answered
        return 0.0 if self.asked or not answered else (time.monotonic_ns() - answered) * 1e-9

    def fileno(self) -> int:
        """Return a descriptor that can be read from when :meth:`receive` may find answers."""
        return self._channel.fileno()

    @property
    def has_answered(self) -> bool:
        """Whether there is an answer that has been read already."""
        return self._channel.is_ready

    @property
    def is_silent(self) -> bool:
        """Whether it will not answer any more: its end of the pipe is closed, or an interrupt has cut it off."""
        return self._channel.has_ended

    def receive(self, found: Answers[ProcessWorker], *, has_ended: bool = False) -> None:
        """Add the answers that are there to ``found``, all that there will be if the process has ended."""
        self._channel.drain() if has_ended else self._channel.fill()
        try:
            while (message := self._channel.take()) is not None:
                result = self._answer(message)
                found.append((self, result))
                self.asked.pop(result.number, None)
        except Exception:
            raise
        except BaseException:  # an interrupt has lost one
            self._channel.cut_off()
            raise

    def _answer(self, message: bytes) -> Result:
        result = Result.decode(message)
        if not self._has_answered:
            self._has_answered = True
            self._spans.add_started(self._header.started * 1e-9)
        if result.begun is not None:
            self._num_owed -= 1
        if result.parts is not None:
            result.parts = self._lent.take(result.parts)
        self._lent.forget(result.dropped or ())
        return result

    def last_begun(self) -> list[Result]:
        """Return the states at the beginning of an epoch that it has told and nobody has heard; it has ended."""
        if not self._num_owed:
            return []
        found: Answers[ProcessWorker] = deque()
        with suppress(Exception):  # of classes of the user's, or of a message that was cut off
            self.receive(found, has_ended=True)
        return [result for _, result in found if result is not None and result.begun is not None]

    def end(self, seconds: float = END_SECONDS) -> Any:
        """Wait until the process has ended, kill it if that takes longer than ``seconds``, and return it."""
        if self._has_ended:
            return self.process
        poll = select.poll()
        poll.register(self.ended, select.POLLIN)
        has_ended = poll.poll(0 if self._channel.is_cut_off else max(0.0, seconds) * 1000)
        queued = queued_seconds(self.process.pid)  # before anybody waits for it, which forgets that
        if not has_ended and self.process.is_alive():
            self.process.kill()
        self.process.join()
        self._has_ended = True
        self._spans.add_queued(queued)
        return self.process

    @property
    def has_failed_to_start(self) -> bool:
        """Whether it ended by an exception while it imported modules or unpickled what it was given."""
        return self.process.exitcode == 1 and not self._header.started

    def death(self) -> str:
        """Describe how the process ended, in torch's words."""
        code = self.process.exitcode
        if self.has_failed_to_start:
            return (
                f"DataLoader worker (pid {self.process.pid}) exited unexpectedly with exit code {code} before its "
                "first job; an error that it has printed says why: the script, which it imports, or the dataset, "
                "which it unpickles, cannot be loaded in another process. If the script starts the epoch when it "
                "is imported, put that under `if __name__ == '__main__':`"
            )
        if self._channel.is_cut_off:
            return f"DataLoader worker (pid {self.process.pid}) was ended: an interrupt has cut off a message. "
        if code is not None and code < 0:
            return f"DataLoader worker (pid {self.process.pid}) is killed by signal: {signal.strsignal(-code)}. "
        return (
            f"DataLoader worker (pid {self.process.pid}) exited unexpectedly with exit code {code}. Details are "
            "lost due to multiprocessing. Rerunning with num_workers=0 may give better error trace."
        )

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
        for pipe in (self._channel, self._stacks, self._slots):
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
