"""Stage ``fetch``: ranges of remote files, many under way at a time."""

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
from collections.abc import Sequence
from concurrent.futures import Future
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from foreload.errors import DecodeError
from foreload.stages.buffers import round_up

__all__ = ["Fetch", "Range", "is_remote"]

Array = np.ndarray[Any, Any]

_LENGTH = struct.Struct("<Q")
_KEPT = 16  # pieces of memory that nobody uses
_SCRIPT = Path(__file__).parent.parent / "fetcher.py"


def is_remote(path: Any) -> bool:
    """Whether a path is a URL.

    >>> is_remote("s3://bucket/train.tar"), is_remote("/data/train.tar")
    (True, False)
    """
    return isinstance(path, str) and "://" in path and not path.startswith("file://")


class Range(NamedTuple):
    """A part of a remote file."""

    url: str
    start: int
    length: int


class _Helper:
    """The process that fetches for this one, and who waits for what."""

    def __init__(self, options: dict[str, Any]) -> None:
        ours, theirs = socket.socketpair()
        self.process = os.getpid()
        self._socket = ours
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._number = 0
        self._lock = threading.Lock()
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-I", str(_SCRIPT), str(theirs.fileno()), json.dumps(options)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # A Ctrl-C is for the program that reads.
                start_new_session=True,
            )
        threading.Thread(target=self._listen, name="foreload fetch", daemon=True).start()

    def ask(self, request: dict[str, Any], memory: int | None = None) -> Future[dict[str, Any]]:
        """Send a request; ``memory`` is a descriptor of what the ranges go to."""
        answer: Future[dict[str, Any]] = Future()
        with self._lock:
            self._number += 1
            self._waiting[self._number] = answer
            body = json.dumps(request | {"id": self._number}).encode()
            head = _LENGTH.pack(len(body))
            try:
                if memory is None:
                    self._socket.sendall(head + body)
                else:
                    socket.send_fds(self._socket, [head], [memory])
                    self._socket.sendall(body)
            except OSError:
                self._fail()
        return answer

    @property
    def gone(self) -> bool:
        return self.process != os.getpid() or self._socket.fileno() < 0

    def _listen(self) -> None:
        with self._socket.makefile("rb") as stream:
            while True:
                head = stream.read(_LENGTH.size)
                body = stream.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else b""
                if not body:
                    break
                answer = json.loads(body)
                self._waiting.pop(answer["id"]).set_result(answer)
        with self._lock:
            self._fail()

    def _fail(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer.set_exception(ConnectionResetError("the process that fetches is gone"))
        self.close()

    def close(self) -> None:
        if self.process == os.getpid():
            self._socket.close()
            self._child.kill()
            self._child.wait()


class _File:
    """Memory that the helper can write to."""

    def __init__(self, size: int) -> None:
        self.descriptor = os.memfd_create("foreload fetch", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, size)
        self.memory = np.frombuffer(mmap.mmap(self.descriptor, size), np.uint8)

    def __del__(self) -> None:
        os.close(self.descriptor)


class _Lease:
    """Holds such memory for as long as anything made from it lives. Used again, it takes no page faults."""

    def __init__(self, free: list[_File], size: int) -> None:
        size = round_up(max(1, size))
        self.file = next((file for file in free if len(file.memory) == size), None) or _File(size)
        if self.file in free:
            free.remove(self.file)
        self._free = free
        self.__array_interface__ = self.file.memory.__array_interface__

    def __del__(self) -> None:
        # Sizes change: what has been free for long is of one that was.
        self._free.append(self.file)
        del self._free[:-_KEPT]


class Fetch:
    """Reads from object storage (``s3://``, ``gs://``, ``az://``) and web servers (``http://``, ``https://``).

    A process of its own fetches (through obstore), many ranges at a time, and tries again, later and later, where
    a server is busy or a connection is cut. A forked or spawned process starts one for itself.

    Args:
        options: for obstore: ``endpoint``, ``region``, ``access_key_id``, ``secret_access_key``,
            ``client_options`` and so on; what is not given comes from where the services' own tools have it.

    Raises:
        ImportError: obstore is not installed.
    """

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        if find_spec("obstore") is None:
            raise ImportError("reading from a URL needs obstore: pip install 'foreload[remote]'")
        self._options = dict(options or {})
        self._helper: _Helper | None = None
        self._lock = threading.Lock()
        self._free: list[_File] = []

    def _ask(self, request: dict[str, Any], memory: int | None = None) -> dict[str, Any]:
        for attempt in range(2):
            with self._lock:
                if self._helper is None or self._helper.gone:
                    self._helper = _Helper(self._options)
                    weakref.finalize(self, self._helper.close)
                helper = self._helper
            try:
                return helper.ask(request, memory).result()
            except ConnectionResetError:
                if attempt:
                    raise
        raise AssertionError("unreachable")

    def head(self, url: str) -> tuple[int, str]:
        """Give a file's size in bytes, and a tag that changes with its content.

        Raises:
            OSError: FileNotFoundError, PermissionError, or another that names the URL.
        """
        found = self._result(url, self._ask({"do": "head", "url": url}))
        return int(found["size"]), str(found["tag"])

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
            memory (uint8), starts (int64): range i is ``memory[starts[i]:starts[i + 1]]``; and what failed.
        """
        starts = np.zeros(len(ranges) + 1, np.int64)
        np.cumsum([each.length for each in ranges], out=starts[1:])
        with self._lock:
            lease = _Lease(self._free, int(starts[-1]))
        asked = [[*each, int(start)] for each, start in zip(ranges, starts, strict=False)]
        answer = self._ask({"do": "ranges", "ranges": asked}, lease.file.descriptor)
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
        """Begin anew."""
        self.__init__(state["_options"])  # type: ignore[misc]


def _error(url: str, kind: str, text: str) -> Exception:
    if kind == "missing":
        return FileNotFoundError(errno.ENOENT, "there is no such file, or no access to it", url)
    if kind == "forbidden":
        return PermissionError(errno.EACCES, "the server refuses access; check the credentials", url)
    if kind == "short":
        return DecodeError(f"{url}: {text}")
    return OSError(errno.EIO, f"the server fails again and again: {text}", url)
