"""Real ranks of ``torch.distributed`` for tests: processes that meet by a file and talk by gloo."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import Dataset

__all__ = ["Numbers", "flat", "run_ranks"]

# Seconds until ranks are killed, and in which they must have met, on a machine with much else to do.
_MOST_SECONDS, _MEETING = 500.0, timedelta(seconds=300)


class Numbers(Dataset[int]):
    """Its samples are their indices."""

    thread_safe = True

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


def run_ranks(work: Callable[..., Any], world: int, folder: Path, *arguments: Any, deaths: int = 0) -> list[Any]:
    """Run ``work(rank, world, *arguments)`` on each rank, and return what each returned.

    Args:
        work: a function of a module, so that it can be pickled.
        world: the number of ranks.
        folder: to meet in, an empty one.
        arguments: for ``work``.
        deaths: the number of ranks that kill themselves; None is returned for them.

    Raises:
        Exception: that of the first rank that failed.
        TimeoutError: they took too long.
    """
    folder.mkdir(parents=True, exist_ok=True)
    given = (work, world, str(folder), arguments, deaths > 0)
    context = mp.start_processes(_rank, given, nprocs=world, join=False, start_method="forkserver")
    deadline = time.monotonic() + _MOST_SECONDS
    try:
        while not (deaths or context.join(timeout=1.0)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{world} ranks took longer than {_MOST_SECONDS} s")
        for process in context.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        codes = [process.exitcode for process in context.processes]
        assert sorted(codes) == [-signal.SIGKILL] * deaths + [0] * (world - deaths), codes
    finally:
        for process in context.processes:
            process.kill()
            process.join()
        for path in context.error_files:
            Path(path).unlink(missing_ok=True)
    return [torch.load(folder / f"{rank}.pt") if code == 0 else None for rank, code in enumerate(codes)]


def flat(parts: Iterable[Iterable[Any]]) -> list[Any]:
    """Return the elements of all parts."""
    return [element for part in parts for element in part]


def _rank(
    rank: int, work: Callable[..., Any], world: int, folder: str, arguments: tuple[Any, ...], some_die: bool
) -> None:
    torch.set_num_threads(1)
    # As in ranks that torchrun starts. Those of a fork server would start their workers by another one each, which
    # imports torch.
    mp.set_start_method("fork", force=True)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world, timeout=_MEETING
    )
    torch.save(work(rank, world, *arguments), f"{folder}/{rank}.pt")
    if not some_die:
        dist.barrier()  # so that none ends while another one still needs it
    dist.destroy_process_group()
