"""Publishing of running loaders to ``foreload serve``, over a Unix socket.

A process that publishes loaders has a socket in a folder that only its user can enter. Each connection receives
one JSON document about all of them. Nothing is measured or sent without a connection.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import secrets
import selectors
import socket
import stat
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from foreload.record.spans import Stage

__all__ = ["FORMAT", "publish", "renew", "runtime_folder", "snapshot"]

L = TypeVar("L")

# Seconds to wait for a client that does not read.
_CLIENT_TIMEOUT = 1.0


def publish(loader: L, *, name: str | None = None) -> L:
    """Make a loader visible to ``foreload serve`` on this machine, for the user who runs it.

    It stays visible until it is gone, and is not kept alive by this. A copy of it in a forked process, or in one
    that it was pickled to, is published when it is iterated there. If the machine does not allow publishing, a
    RuntimeWarning says why, and the loader runs on unseen.

    Args:
        loader: a :class:`~foreload.DataLoader`, or anything with ``stats()`` like its.
        name: what to call it on the page; the class of its dataset by default.

    Returns:
        The loader.

    Raises:
        TypeError: it has no ``stats()``, or ``name`` is not a str.

    >>> import foreload
    >>> loader = publish(foreload.DataLoader([1, 2, 3]), name="train")
    """
    if not callable(getattr(loader, "stats", None)):
        raise TypeError(f"a loader with stats() can be published, such as foreload.DataLoader; got {loader!r}")
    if not (name is None or isinstance(name, str)):
        raise TypeError(f"name must be a str, got {name!r}")
    published: str | None = name or ""
    try:
        _add(loader, name)
    except OSError as error:
        published = None
        warnings.warn(f"foreload serve cannot see this loader: {error}", RuntimeWarning, stacklevel=2)
    if hasattr(loader, "published"):
        loader.published = published  # is pickled with it; see renew()
    return loader


def renew(loader: Any) -> None:
    """Publish a loader in this process if the process it was forked or unpickled from had published it.

    ``loader.published`` is the name there ("": the default); it travels with the loader.
    """
    if _publisher is None or not _publisher.has(loader):
        publish(loader, name=loader.published or None)


def runtime_folder() -> Path:
    """Return the folder of the sockets, which only this user can enter; make it if needed.

    Raises:
        PermissionError: the folder belongs to another user, or is open to others.
    """
    folder = Path(tempfile.gettempdir()) / f"foreload-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} must be a folder that is yours alone (mode 0700); remove it")
    return folder


class _Publisher:
    """Serves snapshots of this process's published loaders, in a thread that ends with the last of them."""

    def __init__(self) -> None:
        self._loaders: dict[int, tuple[str | None, weakref.ref[Any]]] = {}
        self._numbers = itertools.count(1)
        self._ending = False
        self._listener, self._path = _listen(runtime_folder())
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="foreload publish", daemon=True)

    def has(self, loader: Any) -> bool:
        return any(reference() is loader for _, reference in list(self._loaders.values()))

    def add(self, loader: Any, name: str | None) -> None:
        known = [number for number, (_, reference) in self._loaders.items() if reference() is loader]
        number = known[0] if known else next(self._numbers)
        self._loaders[number] = name, weakref.ref(loader, self._wake)

    def start(self) -> None:
        self._thread.start()
        # A daemon thread must not be in native code when the interpreter exits.
        atexit.register(self.end)

    def end(self) -> None:
        self._ending = True
        self._wake()
        self._thread.join(2 * _CLIENT_TIMEOUT)

    def _wake(self, _: object = None) -> None:
        # A full or closed pipe wakes the thread too.
        with suppress(OSError):
            self._waker.send(b".")

    def _run(self) -> None:
        with selectors.PollSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._listener:
                        self._answer()
                    else:
                        self._woken.recv(4096)
                if self._retire():
                    return

    def _answer(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # the client has left
            return
        with connection, suppress(OSError):
            connection.settimeout(_CLIENT_TIMEOUT)
            connection.sendall(json.dumps(self._document(), default=str).encode())

    def _document(self) -> dict[str, Any]:
        alive = ((number, name, reference()) for number, (name, reference) in list(self._loaders.items()))
        return snapshot(entry for entry in alive if entry[2] is not None)

    def _retire(self) -> bool:
        """End if no loader is left; return whether it did."""
        global _publisher
        with _lock:
            self._loaders = {number: entry for number, entry in self._loaders.items() if entry[1]() is not None}
            if self._loaders and not self._ending:
                return False
            if _publisher is self:
                _publisher = None
        if not self._ending:
            atexit.unregister(self.end)
        self._path.unlink(missing_ok=True)
        self.close()
        return True

    def close(self) -> None:
        for opened in (self._listener, self._woken, self._waker):
            opened.close()


# No weak-reference callback takes this lock, so those may run at any time.
_lock = threading.Lock()
_publisher: _Publisher | None = None


def _add(loader: Any, name: str | None) -> None:
    global _publisher
    with _lock:
        new = _publisher is None
        publisher = _publisher = _publisher or _Publisher()
        publisher.add(loader, name)
    if new:
        publisher.start()


def _forget() -> None:
    """Leave the socket to the process that this one was forked from."""
    global _lock, _publisher
    _lock = threading.Lock()
    if _publisher is not None:
        atexit.unregister(_publisher.end)
        _publisher.close()
        _publisher = None


os.register_at_fork(after_in_child=_forget)


def _listen(folder: Path) -> tuple[socket.socket, Path]:
    path = folder / f"{os.getpid()}-{secrets.token_hex(4)}.sock"
    listener = socket.socket(socket.AF_UNIX)
    try:
        # It must listen before it has its name: readers remove a socket on which nobody listens.
        listener.bind(str(path.with_suffix(".new")))
        path.with_suffix(".new").chmod(0o600)
        listener.listen(16)
        listener.setblocking(False)
        path.with_suffix(".new").rename(path)
    except OSError as error:
        listener.close()
        raise OSError(f"no socket in {folder}: {error}") from error
    return listener, path


# Version of the document; readers must know it.
FORMAT = 1

# Limits of a snapshot: seconds of the latest spans, their number, and the number of failed samples.
_SPAN_SECONDS = 4
_MAX_SPANS = 600
_MAX_ERRORS = 20


def snapshot(loaders: Iterable[tuple[int, str | None, Any]]) -> dict[str, Any]:
    """Return the document about loaders of this process, as plain values.

    Args:
        loaders: of each its number, its name (None: the class of its dataset) and itself.

    >>> snapshot([])["loaders"]
    []
    """
    return {
        "foreload": FORMAT,
        "pid": os.getpid(),
        "script": _script(),
        "rank": _rank(),
        "loaders": [{"number": number, **_describe(loader, name)} for number, name, loader in loaders],
    }


def _describe(loader: Any, name: str | None) -> dict[str, Any]:
    about: dict[str, Any] = {"name": name or type(getattr(loader, "dataset", loader)).__name__}
    try:
        about["stats"] = loader.stats()
        about["errors"] = [_short(error) for error in list(getattr(loader, "errors", ()))[-_MAX_ERRORS:]]
        about["spans"] = _latest(getattr(loader, "spans", None))
    except Exception as error:  # reported, so that the other loaders are still shown
        about["failure"] = f"{type(error).__name__}: {error}"
    return about


def _short(error: Any) -> dict[str, Any]:
    return {key: value for key, value in asdict(error).items() if key != "traceback"}


def _latest(spans: Any) -> dict[str, Any] | None:
    """Return the latest spans, with times in microseconds since the first of them."""
    if spans is None:
        return None
    rows = spans.recent()
    if len(rows):
        rows = rows[rows["end"] > max(0, int(rows["end"].max()) - _SPAN_SECONDS * 10**9)]
        rows = rows[np.sort(np.argsort(rows["end"], kind="stable")[-_MAX_SPANS:])]
    begin = rows["begin"] - (rows["begin"].min() if len(rows) else np.uint64(0))
    length = np.maximum(rows["end"], rows["begin"]) - rows["begin"]
    return {
        "stages": [stage.name for stage in Stage],
        "lanes": [[lane.name, lane.kind] for lane in list(spans.lanes)],
        "begin": (begin // 1000).tolist(),
        "length": (length // 1000).tolist(),
        **{name: rows[name].tolist() for name in ("lane", "stage", "batch", "samples", "bytes")},
    }


def _script() -> str:
    """Name the running program, without its arguments, which may be private."""
    path = Path(sys.argv[0]) if sys.argv and sys.argv[0] else Path("python")
    if path.name == "__main__.py":
        return f"python -m {path.parent.name}"
    return "python -c" if path.name == "-c" else path.name


def _rank() -> list[int] | None:
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        return None
    return [distributed.get_rank(), distributed.get_world_size()]
