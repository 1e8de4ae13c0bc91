"""foreload's own DataLoader, which measures itself: what it tells is written down while the script runs."""

from __future__ import annotations

import atexit
import functools
import json
import os
import threading
import weakref
from typing import Any

from .stock import Session, where_of
from .timed import hide

__all__ = ["patch_foreload"]

# Seconds between two notes of a loader that is being iterated: whoever is killed leaves the last one.
_EVERY = 0.5


def patch_foreload(session: Session, module: Any) -> None:
    """Note what is told by each ``foreload.DataLoader`` that is iterated."""
    kind = module.DataLoader
    iterate = kind.__iter__
    notes = _Notes(session)

    @functools.wraps(iterate)
    def __iter__(self: Any) -> Any:
        where = where_of(2)
        try:
            epoch = iterate(self)
        except BaseException as error:
            hide(error)
            raise
        notes.begin(self, epoch, where)
        return epoch

    kind.__iter__ = __iter__


class _Notes:
    """Writes down what loaders tell, from time to time and when an epoch is over."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: list[tuple[weakref.ref[Any], str, str]] = []  # loader, file, where
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self._end)

    def _forked(self) -> None:
        self._known = []
        self._thread = None
        self._over = threading.Event()

    def begin(self, loader: Any, epoch: Any, where: str) -> None:
        """Take note of an epoch."""
        if all(known() is not loader for known, _, _ in self._known):
            path = os.path.join(self._session.folder, f"{os.getpid()}-{len(self._known)}.ours")
            self._known.append((weakref.ref(loader), path, where))
        weakref.finalize(epoch, self._note, weakref.ref(loader)).atexit = False
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="profile", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(_EVERY):
            for loader, _, _ in list(self._known):
                self._note(loader)

    def _note(self, wanted: Any) -> None:
        loader = wanted()
        if loader is None:
            return
        for known, path, where in list(self._known):
            if known() is loader:
                about = {"title": _title(loader, where), "where": where, "stats": loader.stats()}
                # Nobody reads half a note.
                with open(f"{path}.new", "w") as file:
                    json.dump(about, file)
                os.replace(f"{path}.new", path)

    def _end(self) -> None:
        self._over.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        for loader, _, _ in list(self._known):
            self._note(loader)


def _title(loader: Any, where: str) -> str:
    about = f"{type(loader.dataset).__name__}, batch_size={loader.batch_size}, {loader.num_workers} workers"
    return f"foreload.{type(loader).__name__}({about}) iterated at {where}"
