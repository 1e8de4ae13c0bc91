"""Publishing of running loaders to ``foreload serve``: over a Unix socket, with their history in files beside it.

A process that publishes loaders has a socket in a folder that only its user can enter. Each connection receives
one JSON document about all of them. A thread records their totals every few seconds, so that there is a history
whoever looks, and whenever.
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
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from foreload.epochs.loader.own_options import WithOwnOptions
from foreload.export.document import FORMAT, PublishedLoader, current_document, document

__all__ = ["FORMAT", "current_document", "publish", "renew", "runtime_folder"]

L = TypeVar("L")

# Seconds to wait for a client that does not read.
_CLIENT_TIMEOUT = 1.0

# Seconds between two moments of the history; more if recording one takes longer than this share of them.
_RECORD_SECONDS = 5.0
_RECORD_SHARE = 1 / 200

# Seconds by which a moment may be late; if it is later, the process was stopped, or Python's lock was held.
_LATE_SECONDS = 3.0

# Loaders that have ended, and whose files are kept.
_MAX_ENDED = 6
# Seconds after which a process that has written nothing is taken for ended.
_SILENT_SECONDS = 3600.0


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
    if isinstance(loader, WithOwnOptions):
        WithOwnOptions.mark_published(loader, published)  # is pickled with it; see renew()
    return loader


def renew(loader: Any, name: str) -> None:
    """Publish a loader in this process if the process it was forked or unpickled from had published it.

    Args:
        loader: the loader.
        name: its name there ("": the default), which travels with the loader.
    """
    if _publisher is None or not _publisher.has(loader):
        publish(loader, name=name or None)


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
        self._loaders: dict[int, tuple[PublishedLoader, weakref.ref[Any]]] = {}
        self._numbers = itertools.count(1)
        self._seconds, self._took, self._elapsed = _RECORD_SECONDS, 0.0, 0.0
        self._ending = False
        self._listener, self._path = _listen(runtime_folder())
        _sweep(self._path, ())
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="foreload publish", daemon=True)

    def has(self, loader: Any) -> bool:
        return any(known is loader for _, known in self._alive())

    def add(self, loader: Any, name: str | None) -> None:
        for published, known in self._alive():
            if known is loader:
                published.name = name
                return
        number = next(self._numbers)
        published = PublishedLoader(number, name, self._path.with_name(f"{self._path.stem}.{number}"))
        self._loaders[number] = published, weakref.ref(loader, self._wake)

    def start(self) -> None:
        try:
            # In this thread: it imports modules, and a process forked meanwhile would wait for them for ever.
            self._record()
        finally:
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
            due = time.monotonic() + self._seconds
            while True:
                for key, _ in selector.select(max(0.0, due - time.monotonic())):
                    if key.fileobj is self._listener:
                        self._answer()
                    else:
                        self._woken.recv(4096)
                ending = self._ending  # if only while this records, then once more
                if ending or time.monotonic() >= due:
                    self._record()
                    due = time.monotonic() + self._seconds
                if self._retire(ending=ending):
                    return

    def _record(self) -> None:
        """Add the present moment to the histories."""
        began, begin = time.thread_time(), time.monotonic()
        for published, loader in self._alive():
            published.save(loader, self._longest)
        self._elapsed = time.monotonic() - begin
        before, self._took = self._took, time.thread_time() - began
        # The lesser of two: the first imports modules, and one in hundreds makes the file shorter.
        self._seconds = max(_RECORD_SECONDS, min(before, self._took) / _RECORD_SHARE)

    @property
    def _longest(self) -> float:
        """The seconds between two moments after which this process must have been stopped meanwhile."""
        return self._seconds + self._elapsed + _LATE_SECONDS

    def _alive(self) -> Iterator[tuple[PublishedLoader, Any]]:
        for published, reference in list(self._loaders.values()):
            loader = reference()
            if loader is not None:
                yield published, loader

    def _answer(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # the client has left
            return
        with connection, suppress(OSError):
            connection.settimeout(_CLIENT_TIMEOUT)
            about = document(
                published.describe(loader, longest=self._longest) for published, loader in self._alive()
            )
            connection.sendall(json.dumps(about, default=str).encode())

    def _retire(self, *, ending: bool) -> bool:
        """End if no loader is left, or the program is ending; return whether it did."""
        global _publisher
        with _lock:
            alive = {number: entry for number, entry in self._loaders.items() if entry[1]() is not None}
            ended, self._loaders = len(self._loaders) - len(alive), alive
            if ended:
                _sweep(self._path, alive)
            if self._loaders and not ending:
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


def _sweep(own: Path, numbers: Iterable[int]) -> None:
    """Remove the files of loaders that have ended, but for the last few.

    Args:
        own: the socket of this process.
        numbers: its loaders that are alive.
    """
    alive = {f"{own.stem}.{number}" for number in numbers}
    ended = []
    for path in own.parent.glob("*.json"):
        with suppress(OSError):  # another process has just removed it
            written = path.stat().st_mtime
            process = own.with_name(f"{path.stem.rpartition('.')[0]}.sock")
            is_silent = process != own and written < time.time() - _SILENT_SECONDS
            if path.stem not in alive and (process == own or is_silent or not process.exists()):
                ended.append((written, path))
    for _, path in sorted(ended)[:-_MAX_ENDED]:
        for suffix in (".json", ".history", ".json.new", ".history.new"):
            path.with_suffix(suffix).unlink(missing_ok=True)
