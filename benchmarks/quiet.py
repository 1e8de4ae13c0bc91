"""Measuring how busy other programs keep this machine, and waiting until it is quiet."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import psutil

LEAST = 0.10  # of one core per core: what other processes may take on a machine that is quiet


def busy(seconds: float = 2.0) -> float:
    """The share of all cores that was in use over so many seconds; to be called while nothing of ours runs."""
    share: float = psutil.cpu_percent(seconds)
    return share / 100


def wait(bound: float, measure: Callable[[], float] = busy, clock: Callable[[], float] = time.monotonic) -> bool:
    """Measure until the machine is quiet or ``bound`` seconds are over; say so, and return whether it is quiet."""
    end = clock() + bound
    told = False
    while (share := measure()) > LEAST:
        left = end - clock()
        if left <= 0:
            print(f"not quiet: other processes take {share:.0%} of the cores; measured all the same", flush=True)
            return False
        if not told:
            print(f"other processes take {share:.0%} of the cores; waiting for at most {left:.0f} s", flush=True)
            told = True
    return True


def load() -> float:
    """The load average over the last minute."""
    return os.getloadavg()[0]
