"""Ending a script after a given time: as Ctrl-C would, then harder."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

__all__ = ["Stop", "parse_duration"]

# Signals to the script, and the seconds that it has to end before the next one.
_SIGNALS = ((signal.SIGINT, 10.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, float("inf")))

# Seconds that processes which the script leaves behind have to end.
_LEFT_SECONDS = 3.0

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Return the seconds that ``30``, ``30s``, ``2m`` or ``1.5h`` mean.

    Raises:
        ValueError: it is no such time, or not positive.

    >>> parse_duration("30"), parse_duration("2m"), parse_duration("0.5s")
    (30.0, 120.0, 0.5)
    """
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([smh]?)", text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if seconds <= 0:
        raise ValueError(f"must be a time such as 30, 30s or 2m, got {text!r}")
    return seconds


class Stop:
    """Ends a script after some time.

    Args:
        seconds: the time.
        command: the script's own command; under another program (``nsys``) its process is found by it.

    Attributes:
        begun: whether the script has been told to end.
    """

    def __init__(self, seconds: float, command: Sequence[str]) -> None:
        self.begun = False
        self._command = list(command)
        self._next = time.monotonic() + seconds
        self._signals = list(_SIGNALS)
        self._members: set[psutil.Process] = set()

    def check(self, process: int) -> None:
        """Send the next signal to the script, if it is time; ``process`` is the one that was started for it."""
        if time.monotonic() < self._next or not self._signals:
            return
        script = self._script(process)
        if script is None:  # only the program around it is left, and writes what it has recorded
            return
        number, patience = self._signals.pop(0)
        self._next = time.monotonic() + patience
        self.begun = True
        with suppress(ProcessLookupError):
            os.kill(script, number)

    def _script(self, process: int) -> int | None:
        """Return the id of the script's process, and remember all that it has started."""
        with suppress(psutil.Error):
            root = psutil.Process(process)
            members = root.children(recursive=True)
            self._members |= set(members)
            for member in (root, *members):
                with suppress(psutil.Error):
                    if member.cmdline() == self._command and member.status() != psutil.STATUS_ZOMBIE:
                        return member.pid
        return None

    def clean_up(self) -> None:
        """End the processes that the script, which has ended, has left behind."""
        left = list(self._members)
        for end in (None, psutil.Process.terminate, psutil.Process.kill):
            for member in left:
                with suppress(psutil.Error):
                    if end is not None:
                        end(member)
            left = psutil.wait_procs(left, timeout=_LEFT_SECONDS)[1]
            if not left:
                return
