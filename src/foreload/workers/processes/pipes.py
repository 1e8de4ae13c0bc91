"""Messages between the loop and a worker process, through pipes whose ends others may hold too.

The children of a worker, and workers that another thread starts at that moment, inherit the ends of its pipes. So
its pipes need not end with it: whoever waits for a worker here watches the process too.
"""

from __future__ import annotations

import errno
import multiprocessing.reduction
import os
import select
import socket
import struct
import threading
import time
from contextlib import suppress
from multiprocessing.context import get_spawning_popen
from typing import Any

__all__ = ["Alarm", "Channel", "Descriptor", "Inbox", "check_not_within", "receive_files", "send", "send_files"]

_LENGTH = struct.Struct("<Q")

# The bytes that are read at once: a few short messages, or a part of one that is known to be long.
_SHORT_BYTES, _LONG_BYTES = 1 << 16, 1 << 20

# Descriptors in one message; the system allows 253.
_MOST_FILES = 128

# The capacity of a pipe, if the system allows it.
_PIPE_BYTES = 1 << 20


def _framed(message: bytes) -> memoryview:
    return memoryview(_LENGTH.pack(len(message)) + message)


def send(file: int, message: bytes) -> None:
    """Write a message to a pipe, as fast as the other side reads."""
    left = _framed(message)
    while left:
        left = left[os.write(file, left) :]


def send_files(channel: socket.socket, files: dict[int, int]) -> None:
    """Send descriptors, by number.

    Not one by one: a socket holds a few hundred messages, and the other side may wait for something else first.

    >>> near, far = socket.socketpair()
    >>> send_files(near, {4: 0, 7: 1})
    >>> [(number, os.close(file)) for number, file in receive_files(far).items()]
    [(4, None), (7, None)]
    """
    numbers = list(files)
    for start in range(0, len(numbers), _MOST_FILES):
        some = numbers[start : start + _MOST_FILES]
        socket.send_fds(channel, [struct.pack(f"<{len(some)}q", *some)], [files[number] for number in some])


def receive_files(channel: socket.socket) -> dict[int, int]:
    """Return the descriptors of one message that :func:`send_files` has sent, by number."""
    flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0) | socket.MSG_DONTWAIT
    numbers, files, _, _ = socket.recv_fds(channel, 8 * _MOST_FILES, _MOST_FILES, flags)
    if not files:
        raise EOFError("a worker has named memory whose descriptor it has not sent")
    if len(numbers) != 8 * len(files):
        for file in files:
            os.close(file)
        raise OSError(errno.EMFILE, "too many open files to take the memory of a batch: raise 'ulimit -n'")
    return dict(zip(struct.unpack(f"<{len(files)}q", numbers), files, strict=True))


def check_not_within(lock: Any) -> None:
    """Check that the calling thread does not have a lock, in the midst of whose work a signal's handler may run.

    Raises:
        RuntimeError: it has it. The handler would wait for ever, or mix the bytes of messages up.
    """
    if lock._is_owned():
        raise RuntimeError(
            "a signal's handler runs while the loop receives from its workers, or sends to them, and cannot do so "
            "too: let it set a flag, and take the state, or begin an epoch, in the loop after the batch"
        )


class Inbox:
    """The messages that come through a pipe.

    Args:
        file: the end of the pipe to read.

    >>> read, write = os.pipe()
    >>> send(write, b"one"); send(write, b"two")
    >>> inbox = Inbox(read)
    >>> inbox.receive(), inbox.is_ready, inbox.take(), inbox.take()
    (b'one', True, b'two', None)
    >>> os.close(read); os.close(write)
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._read = bytearray()
        self._end: int | None = None  # of the next message, if its length has been read

    @property
    def is_empty(self) -> bool:
        """Whether no byte of a message has been read."""
        return not self._read

    @property
    def is_ready(self) -> bool:
        """Whether a whole message has been read."""
        if self._end is None and len(self._read) >= _LENGTH.size:
            self._end = _LENGTH.size + _LENGTH.unpack_from(self._read)[0]
        return self._end is not None and len(self._read) >= self._end

    def fill(self) -> bool:
        """Read once; return whether the pipe goes on."""
        left = 0 if self._end is None else self._end - len(self._read)
        part = os.read(self._file, min(max(left, _SHORT_BYTES), _LONG_BYTES))
        self._read += part
        return bool(part)

    def take(self) -> bytes | None:
        """Return the next message if all of it has been read."""
        if not self.is_ready:
            return None
        message = bytes(memoryview(self._read)[_LENGTH.size : self._end])
        del self._read[: self._end]
        self._end = None
        return message

    def receive(self) -> bytes:
        """Wait for the next message.

        Raises:
            EOFError: the pipe has ended.
        """
        while (message := self.take()) is None:
            if not self.fill():
                raise EOFError
        return message


class Channel:
    """The loop's ends of the pipes to and from a worker process; nothing here waits for one that has ended.

    Args:
        jobs: the pipe to the worker.
        results: the pipe from the worker.

    Attributes:
        ended: a descriptor that can be read from once the process has ended; to be set before the first message.
        has_ended: whether the worker will send nothing more than what has been read.
        is_cut_off: whether an interrupt (Ctrl-C) has lost a part of a message, so that nothing more can be sent or
            understood; the worker is as good as lost.
    """

    def __init__(self, jobs: Any, results: Any) -> None:
        self._jobs, self._results = jobs, results
        self._inbox = Inbox(results.fileno())
        self._sending = threading.RLock()
        self._reading = threading.RLock()  # one thread may read to send, another one for an answer
        self.ended = -1
        self.has_ended = self.is_cut_off = False
        for pipe in (jobs, results):
            os.set_blocking(pipe.fileno(), False)
            _widen(pipe.fileno())

    def fileno(self) -> int:
        """Return a descriptor that can be read from when there is something to :meth:`fill`."""
        file: int = self._results.fileno()
        return file

    @property
    def is_ready(self) -> bool:
        """Whether :meth:`take` returns a message."""
        check_not_within(self._reading)
        if self._inbox.is_empty:  # which takes longer to see with the lock
            return False
        with self._reading:
            return not self.is_cut_off and self._inbox.is_ready

    def fill(self) -> bool:
        """Read what there is; return whether there was anything."""
        check_not_within(self._reading)
        with self._reading:
            if self.is_cut_off:
                return False
            try:
                self.has_ended = not self._inbox.fill()
            except BlockingIOError:
                return False
            except OSError:
                self.has_ended = True
            except BaseException:
                self.cut_off()
                raise
            return not self.has_ended

    def cut_off(self) -> None:
        """Give the worker up, since an interrupt has lost a part of a message."""
        self.has_ended = self.is_cut_off = True

    def drain(self) -> None:
        """Read all that a process that has ended has sent."""
        while self.fill():
            pass
        self.has_ended = True

    def take(self) -> bytes | None:
        """Return the next message if all of it has been read."""
        check_not_within(self._reading)
        if self._inbox.is_empty:
            return None
        with self._reading:
            return None if self.is_cut_off else self._inbox.take()

    def send(self, message: bytes, seconds: float | None = None) -> bool:
        """Send a message, unless the worker has ended; return whether it took no longer than ``seconds``.

        What the worker sends meanwhile is read: it may have to get rid of that first. After part of a message
        nothing else can be sent.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        check_not_within(self._sending)
        if not self._sending.acquire(timeout=-1 if seconds is None else seconds):
            return False
        try:
            return self._send(_framed(message), deadline)
        except BaseException:
            self.cut_off()
            raise
        finally:
            self._sending.release()

    def _send(self, left: memoryview, deadline: float | None) -> bool:
        while left and not self.has_ended:
            try:
                left = left[os.write(self._jobs.fileno(), left) :]
            except BlockingIOError:
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                if self._has_ended_waiting(deadline):
                    return True
            except OSError:  # the pipe is broken; the wait for answers notices
                return True
        return True

    def _has_ended_waiting(self, deadline: float | None) -> bool:
        """Wait until more can be sent, or time is up; return whether the worker has ended."""
        poll = select.poll()
        poll.register(self._jobs.fileno(), select.POLLOUT)
        poll.register(self._results.fileno(), select.POLLIN)
        poll.register(self.ended, select.POLLIN)
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        files = [file for file, _ in poll.poll(left)]
        if self._results.fileno() in files:
            self.fill()
        return self.ended in files

    def close(self) -> None:
        """Close the pipes."""
        self._jobs.close()
        self._results.close()


class Alarm:
    """Wakes a thread that polls; any thread may ring.

    >>> alarm = Alarm()
    >>> alarm.ring(); alarm.has_rung(), alarm.has_rung()
    (True, False)
    >>> alarm.close(); alarm.ring()
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._lock = threading.RLock()

    def fileno(self) -> int:
        """Return a descriptor that can be read from once it has rung."""
        return self._read

    def ring(self) -> None:
        """Wake the thread that polls, or the next one that will."""
        with self._lock, suppress(BlockingIOError):
            if self._write >= 0:
                os.write(self._write, b"!")

    def has_rung(self) -> bool:
        """Whether it has rung since the last call."""
        with suppress(BlockingIOError):
            return bool(os.read(self._read, 4096))
        return False

    def close(self) -> None:
        """Close it; it does not ring any more."""
        with self._lock:
            os.close(self._read)
            os.close(self._write)
            self._read = self._write = -1


def _widen(pipe: int) -> None:
    import fcntl

    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


class Descriptor:
    """A file descriptor for a worker: the same number after a fork, a duplicate otherwise."""

    def __init__(self, file: int) -> None:
        self._file = file

    def detach(self) -> int:
        return self._file

    def __reduce__(self) -> Any:
        if get_spawning_popen() is None:
            raise TypeError("a descriptor can only be sent to a process while it is started")
        return _received, (multiprocessing.reduction.DupFd(self._file),)


def _received(descriptor: Any) -> Any:
    return descriptor
