"""Use of cores, memory and GPUs by a tree of processes, sampled from outside while it runs."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

import numpy as np
import psutil

from foreload.record.usage import tree_bytes

__all__ = ["Gpus", "Tree"]

# To sample memory, the kernel walks through all of it: at most this share of the time is spent on that.
_MAX_MEMORY_SHARE = 0.01


class Tree:
    """Samples a process and its children.

    Attributes:
        memory: the largest memory of the tree seen so far, in bytes (PSS).
        gpus: the GPUs of this machine; None: there are none.
    """

    def __init__(self) -> None:
        self.memory = 0
        self.gpus = Gpus.find()
        self._cpu: list[tuple[int, float]] = [(time.monotonic_ns(), 0.0)]
        self._gpu: list[tuple[int, float]] = []
        self._next = 0.0

    def sample(self, process: int) -> None:
        """Take one sample of a process, by its id."""
        try:
            root = psutil.Process(process)
            members = [root, *root.children(recursive=True)]
        except psutil.Error:  # it has just ended
            return
        seconds = 0.0
        for member in members:
            try:
                spent = member.cpu_times()
            except psutil.Error:
                continue
            # This includes ended children that it has waited for.
            seconds += spent.user + spent.system + spent.children_user + spent.children_system
        self._cpu.append((time.monotonic_ns(), max(seconds, self._cpu[-1][1])))
        if self.gpus is not None:
            self._gpu.append((time.monotonic_ns(), self.gpus.busy()))
        if time.monotonic() >= self._next:
            began = time.monotonic()
            with suppress(psutil.Error):
                self.memory = max(self.memory, tree_bytes(process))
            self._next = time.monotonic() + (time.monotonic() - began) / _MAX_MEMORY_SHARE

    def cpu_seconds(self, windows: Iterable[tuple[int, int]]) -> float:
        """Return the CPU time spent in windows of time (begin and end in ns), interpolated between samples."""
        times, seconds = (np.array(column, float) for column in zip(*self._cpu, strict=True))
        ends = np.array(list(windows), float).reshape(-1, 2)
        return float(np.diff(np.interp(ends, times, seconds), axis=1).sum())

    def gpu_idle(self, windows: Sequence[tuple[int, int]]) -> float | None:
        """Return the share of these windows in which the GPUs were idle; None without a GPU or a sample."""
        busy = [share for at, share in self._gpu if any(begin <= at <= end for begin, end in windows)]
        return 1 - float(np.mean(busy)) if busy else None


class Gpus:
    """NVIDIA GPUs of this machine, through the driver's library (NVML).

    Args:
        library: ``libnvidia-ml``, initialised.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        count = ctypes.c_uint()
        library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        self._devices = []
        for number in range(count.value):
            device = ctypes.c_void_p()
            if library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(device)) == 0:
                self._devices.append(device)
        self._used: set[int] = set()

    @classmethod
    def find(cls) -> Gpus | None:
        """Return the GPUs of this machine; None if there are none."""
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return None
        if library.nvmlInit_v2() != 0:
            return None
        found = cls(library)
        return found if found._devices else None

    def busy(self) -> float:
        """Return the share of the last moments in which kernels ran, 0 to 1: the mean over GPUs used so far."""
        shares = []
        for number, device in enumerate(self._devices):
            rates = (ctypes.c_uint * 2)()  # of the processor and of its memory, in percent
            if self._library.nvmlDeviceGetUtilizationRates(device, rates) != 0:
                continue
            if rates[0]:
                self._used.add(number)
            if number in self._used:
                shares.append(rates[0] / 100)
        return sum(shares) / len(shares) if shares else 0.0
