"""Records of foreload's own DataLoader, which measures itself: its statistics, written while the script runs."""

from __future__ import annotations

import functools
import json
import multiprocessing.util
import os
import sys
import threading
import time
import weakref
from typing import Any

from .session import Session, where_of
from .timed import hide, unseen

__all__ = ["patch_foreload"]

# Seconds to the first record of a loader that is being iterated, and the most between two: a killed process leaves
# its last one.
_FIRST_PAUSE, _MAX_PAUSE = 0.05, 0.5

# A record includes a sample of memory, which may take long: at most this share of the time.
_MAX_RECORDING_SHARE = 0.01


# The module that iterates loaders of its own to measure workers.
_TRYING = "foreload.epochs.loader.source"


def patch_foreload(session: Session, module: Any) -> None:
    """Record the statistics of each ``foreload.DataLoader`` that is iterated."""
    kind = module.DataLoader
    iterate = kind.__iter__
    notes = _Notes(session)
    marked: set[type] = set()

    @unseen
    @functools.wraps(iterate)
    def __iter__(self: Any) -> Any:
        where = where_of(2)
        try:
            epoch = iterate(self)
        except BaseException as error:
            hide(error)
            raise
        # Loaders that foreload makes to measure workers are not the script's.
        if sys._getframe(1).f_globals.get("__name__") != _TRYING:
            notes.begin(self, epoch, where)
        if session.mark is not None and type(epoch) not in marked:
            marked.add(type(epoch))
            _mark_waits(session.mark, type(epoch))
        return epoch

    kind.__iter__ = __iter__


def _mark_waits(mark: Any, kind: Any) -> None:
    """Mark for NVIDIA's tools when a loop waits for an epoch of this class."""
    following = kind.__next__

    @functools.wraps(following)
    def __next__(self: Any) -> Any:
        mark("wait")
        try:
            return following(self)
        except BaseException as error:
            hide(error)
            raise
        finally:
            mark(None)

    kind.__next__ = __next__


class _Notes:
    """Writes the statistics of loaders, at intervals and when an epoch is over."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._forked()
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self._known: list[tuple[weakref.ref[Any], str, str]] = []  # loader, file, where
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._lock = threading.RLock()  # an epoch may be collected while another one is written

    def begin(self, loader: Any, epoch: Any, where: str) -> None:
        """Start recording an epoch."""
        if all(known() is not loader for known, _, _ in self._known):
            path = os.path.join(self._session.folder, f"{os.getpid()}-{len(self._known)}")
            self._known.append((weakref.ref(loader), path, where))
        # Keeps the loader until its epoch ends, as the loop may hold the epoch only. But a loader with persistent
        # workers holds its epoch, and the two would keep each other.
        held = weakref.ref(loader) if loader.persistent_workers else lambda: loader
        weakref.finalize(epoch, self._note, held).atexit = False
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="profile", daemon=True)
            self._thread.start()
            # Also runs at the end of a process that multiprocessing has started, which ``atexit`` does not.
            multiprocessing.util.Finalize(None, self._end, exitpriority=0)

    def _watch(self) -> None:
        pause = _FIRST_PAUSE
        while not self._over.wait(pause):
            began = time.monotonic()
            self._note_all()
            pause = max(min(_MAX_PAUSE, 2 * pause), (time.monotonic() - began) / _MAX_RECORDING_SHARE)

    def _end(self) -> None:
        self._over.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        self._note_all()

    def _note_all(self) -> None:
        for loader, _, _ in list(self._known):
            self._note(loader)

    def _note(self, wanted: Any) -> None:
        loader = wanted()
        if loader is None:
            return
        for known, path, where in list(self._known):
            if known() is loader:
                with self._lock:
                    self._write(loader, path, where)

    def _write(self, loader: Any, path: str, where: str) -> None:
        recorded = vars(loader)["_fl_recorder"].spans  # a derived class may have spans of its own
        lanes = [(lane.name, lane.kind) for lane in recorded.lanes]
        about = {"title": _title(loader, where), "where": where, "lanes": lanes, "stats": loader.stats()}
        # Renamed when it is complete, so that no half-written file is read.
        if self._session.spans:
            with open(f"{path}.new", "wb") as spans:
                sys.modules["numpy"].save(spans, recorded.recent())
            os.replace(f"{path}.new", f"{path}.npy")
        with open(f"{path}.new", "w") as file:
            json.dump(about, file)
        os.replace(f"{path}.new", f"{path}.ours")


def _title(loader: Any, where: str) -> str:
    about = f"{type(loader.dataset).__name__}, batch_size={loader.batch_size}, {loader.num_workers} workers"
    return f"foreload.{type(loader).__name__}({about}) iterated at {where}"
