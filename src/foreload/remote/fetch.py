"""Reading of ranges of remote files, many at a time."""

from __future__ import annotations

import errno
import json
import mmap
import os
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from foreload import _native
from foreload.checks import Array
from foreload.errors import DecodeError
from foreload.machine import round_up
from foreload.record.spans import Stage
from foreload.remote.patience import PATIENCE
from foreload.remote.url import without_secrets

__all__ = ["Fetch", "Range", "Version", "is_refused"]

_LENGTH = struct.Struct("<Q")
_HELPERS = 3  # processes that may end while they are at one request
_GONE = "the process that fetches has ended; what it wrote to stderr says why, or its memory was too little"
_SCRIPT = Path(__file__).with_name("fetch_process.py")


class Version(NamedTuple):
    """A version of a remote file.

    Attributes:
        size: in bytes.
        tag: what the server gives to tell versions apart: an ETag, or a time; empty if it gives nothing.
    """

    size: int
    tag: str

    @property
    def is_strong(self) -> bool:
        """Whether two files of the same tag have the same bytes."""
        return self.tag.startswith('"')


class Range(NamedTuple):
    """A part of a remote file; of this version alone, if there is one."""

    url: str
    start: int
    length: int
    version: Version | None = None


class _Helper:
    """The process that fetches for this one, and the requests that wait for it.

    Attributes:
        gone: whether the process has ended.
        ended: whether it was told to end, because it is not needed any more.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self.gone = self.ended = False
        self._process = os.getpid()
        # Each request's answer, and the memory that it is written to, which must not be reused before.
        self._waiting: dict[int, tuple[Future[dict[str, Any]], _RangeLease | None]] = {}
        self._number = 0
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-P", str(_SCRIPT), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                # A Ctrl-C is meant for the main program.
                start_new_session=True,
            )
        # Options may hold keys, and the arguments of a process are visible to everyone.
        self._send({"options": options, "patience": PATIENCE})
        self._listener = threading.Thread(target=self._listen, name="foreload fetch", daemon=True)
        self._listener.start()

    def ask(self, request: dict[str, Any], lease: _RangeLease | None = None) -> Future[dict[str, Any]]:
        """Send a request; ranges are written to the memory of ``lease``."""
        answer: Future[dict[str, Any]] = Future()
        with self._lock:
            if self.gone:
                raise ConnectionResetError(_GONE)
            self._number += 1
            self._waiting[self._number] = answer, lease
            self._send(request | {"id": self._number}, lease)
        return answer

    def _send(self, message: dict[str, Any], lease: _RangeLease | None = None) -> None:
        body = json.dumps(message).encode()
        head = _LENGTH.pack(len(body))
        with suppress(OSError):  # the listener notices that it has ended
            if lease is None:
                self._socket.sendall(head + body)
            else:
                socket.send_fds(self._socket, [head], [lease.file.descriptor])
                self._socket.sendall(body)

    def _listen(self) -> None:
        with self._socket.makefile("rb") as stream, suppress(OSError):
            while True:
                head = stream.read(_LENGTH.size)
                body = stream.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else b""
                if not body:
                    break
                found = json.loads(body)
                self._waiting.pop(found["id"])[0].set_result(found)
        self._child.kill()
        self._child.wait()
        with self._lock:
            self.gone = True
            self._socket.close()
            waiting, self._waiting = self._waiting, {}
        for answer, _ in waiting.values():
            answer.set_exception(ConnectionResetError(_GONE))

    def close(self) -> None:
        """End the process."""
        if self._process == os.getpid():
            self.ended = True
            self._child.kill()
            # The garbage collector may call this in any thread.
            if threading.current_thread() is not self._listener:
                self._listener.join()

    def leave(self) -> None:
        """Close the socket in a forked child; the process works for the parent."""
        os.close(self._socket.detach())


class _File:
    """Memory that the fetching process can write to."""

    def __init__(self, size: int) -> None:
        self.descriptor = os.memfd_create("foreload fetch", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor).atexit = False  # it may still be needed at exit
        os.ftruncate(self.descriptor, size)
        self.memory = np.frombuffer(mmap.mmap(self.descriptor, size), np.uint8)


class _RangeLease:
    """Holds such memory while anything made from it lives. Memory that is reused takes no page faults."""

    _MOST = 16  # free pieces that are kept

    def __init__(self, free: list[_File], size: int) -> None:
        size = round_up(max(1, size))
        self._free: list[_File] = []
        self.file = _taken(free, size) or _File(size)
        self._free = free
        self.__array_interface__ = self.file.memory.__array_interface__

    def __del__(self) -> None:
        if hasattr(self, "file"):
            # Drop the oldest: sizes change.
            self._free.append(self.file)
            del self._free[: -self._MOST]


def _taken(free: list[_File], size: int) -> _File | None:
    for file in list(free):
        # Another thread may have taken it meanwhile.
        with suppress(ValueError):
            if len(file.memory) == size:
                free.remove(file)
                return file
    return None


# All readers of this process. A forked child resets them: it must not read into memory that it shares with the
# parent, and one of the parent's threads may hold a lock.
_all: weakref.WeakSet[Fetch] = weakref.WeakSet()
os.register_at_fork(after_in_child=lambda: _forked())


def _forked() -> None:
    for fetch in _all:
        fetch.reset()


class Fetch:
    """A reader of object storage (``s3://``, ``gs://``, ``az://``) and web servers (``http://``, ``https://``).

    A separate process fetches (through obstore, or over connections of its own to plain web servers), many
    ranges at a time, and retries with growing pauses if a server is busy (as long as its Retry-After says) or a
    connection is cut. A request may take any time as long as something comes: a server that is silent for 15
    seconds, or sends less than 240 bytes in them, is asked again, and given up after 60 to 75 seconds, all
    tries together. What another try would only repeat is an error at once. A forked or spawned process starts
    one for itself.

    Args:
        options: for obstore: ``endpoint``, ``region``, ``access_key_id``, ``secret_access_key``,
            ``client_options`` (of which ``read_timeout`` is the silence in each try, such as ``"30 seconds"``) and
            so on; the rest comes from where the services' own tools have it.

    Raises:
        ImportError: obstore is not installed.
    """

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        if find_spec("obstore") is None:
            raise ImportError("reading from a URL needs obstore: pip install obstore")
        if options is not None and not isinstance(options, Mapping):  # whose value may be a secret
            raise TypeError(
                "storage must be a dict of options, such as {'region': 'eu-central-1'}, or None, got "
                f"{type(options).__name__}"
            )
        self._options = dict(options or {})
        try:
            json.dumps(self._options)
        except TypeError as error:
            raise TypeError(f"storage: {error}; give numbers and texts, such as '30 seconds'") from error
        self._helper: _Helper | None = None
        self._lock = threading.Lock()
        self._free: list[_File] = []
        _all.add(self)

    def reset(self) -> None:
        """Start without a process and memory, in a forked child."""
        if self._helper is not None:
            self._helper.leave()
        self._helper, self._lock, self._free = None, threading.Lock(), []

    def _helping(self) -> _Helper:
        with self._lock:
            helper = self._helper
            if helper is None or (helper.gone and not helper.ended):
                helper = self._helper = _Helper(self._options)
                weakref.finalize(self, helper.close)
            return helper

    def _ask(self, request: dict[str, Any], lease: _RangeLease | None = None) -> dict[str, Any]:
        for _ in range(_HELPERS - 1):
            with suppress(ConnectionResetError):
                return self._helping().ask(request, lease).result()
        return self._helping().ask(request, lease).result()

    def head(self, url: str) -> Version:
        """Return the present version of a file.

        Raises:
            OSError: FileNotFoundError, PermissionError, or another that names the URL.
        """
        found = self._result(url, self._ask({"do": "head", "url": url}))
        return Version(int(found["size"]), str(found["tag"]))

    def list(self, url: str) -> list[str]:
        """List the files below a URL that ends with ``/``.

        Raises:
            OSError: as :meth:`head`.
        """
        found = self._result(url, self._ask({"do": "list", "url": url}))
        scheme, _, rest = url.partition("://")
        return [f"{scheme}://{rest.split('/', 1)[0]}/{path}" for path in found]

    def read(self, ranges: Sequence[Range]) -> tuple[Array, Array, dict[int, Exception]]:
        """Read several ranges.

        Returns:
            memory (uint8), starts (int64): range i is ``memory[starts[i]:starts[i + 1]]``; and failures by number,
            one of them for each range whose file is not of the version that was asked for.
        """
        starts = np.zeros(len(ranges) + 1, np.int64)
        np.cumsum([each.length for each in ranges], out=starts[1:])
        with self._lock:
            lease = _RangeLease(self._free, int(starts[-1]))
        asked = [[*each[:3], int(start)] for each, start in zip(ranges, starts, strict=False)]
        versions = {each.url: each.version for each in ranges}
        with _native.Measure(Stage.read, len(ranges)) as measure:
            measure.bytes = int(starts[-1])
            answer = self._ask({"do": "ranges", "ranges": asked, "versions": versions}, lease)
        memory = np.asarray(lease)
        if "error" in answer:
            raise _error(ranges[0].url, *answer["error"])
        failures = {number: _error(ranges[number].url, kind, text) for number, kind, text in answer["failures"]}
        return memory, starts, failures

    def _result(self, url: str, answer: dict[str, Any]) -> Any:
        if "error" in answer:
            raise _error(url, *answer["error"])
        return answer["result"]

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the options."""
        return {"_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start with the options alone."""
        self.__init__(state["_options"])  # type: ignore[misc]


def is_refused(error: OSError) -> bool:
    """Whether a server answers, but not with ranges of the file that was asked for."""
    return error.errno == errno.EINVAL


def _error(url: str, kind: str, text: str) -> Exception:
    url = without_secrets(url)
    if kind == "missing":
        return FileNotFoundError(errno.ENOENT, f"there is no such file, or no access to it ({text})", url)
    if kind == "forbidden":
        advice = "check the credentials (storage=), which may have expired; where none are needed, give storage="
        return PermissionError(
            errno.EACCES, f"the server refuses access; {advice}{{'skip_signature': True}} ({text})", url
        )
    if kind == "short":
        return DecodeError(f"{url}: {text}; the file is cut short, or was replaced: make the dataset again")
    if kind == "changed":
        advice = "make the dataset again; if servers with different ETags answer here in turn, name one of them"
        return DecodeError(f"{url}: the file is not the one that was opened, it was replaced ({text}); {advice}")
    if kind == "untrusted":
        advice = "give the one of its authority: storage={'client_options': {'root_certificate': PEM}}"
        return OSError(errno.EACCES, f"the server's certificate is not trusted; {advice} ({text})", url)
    advice = "shards can be read from the beginning, with TarStream"
    if "Content-Length Header missing" in text:
        return OSError(errno.EINVAL, f"the server does not say how long the file is; {advice} ({text})", url)
    if kind == "refused" and "range request" in text.lower():
        return OSError(errno.EINVAL, f"the server does not serve ranges of files; {advice} ({text})", url)
    if kind == "refused":
        advice = "check the address and what is asked of the server (storage=)"
        return OSError(errno.EINVAL, f"the request was refused: {text}; {advice}", url)
    advice = "check that it can be reached; if it is busy, give it fewer requests at a time (num_workers)"
    return OSError(errno.EIO, f"the server fails again and again: {text}; {advice}", url)
