"""One store shared by the ranks of a machine, which find each other through torch.distributed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from foreload._torch import default_store
from foreload.cache.store import SampleStore
from foreload.errors import warn_user

__all__ = ["local_ranks", "shared_store"]

_STORE_TIMEOUT = timedelta(seconds=60)

# Other ranks may not use a cache at all, so they are not waited for any longer.
_RANKS_TIMEOUT = timedelta(seconds=5)

# The number of stores of each name in this process.
_num_made: Counter[str] = Counter()


def _exchange() -> Any:
    """Return torch's key-value store, which all ranks reach; None outside of a distributed run."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return None
    return default_store()


def _machine() -> str:
    """Return a name of what processes that share memory have in common: machine, PID namespace and user."""
    boot, processes = "", ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        processes = os.readlink("/proc/self/ns/pid")
    return f"{boot} {processes} {os.getuid() if hasattr(os, 'getuid') else ''}"


def shared_store(make: Callable[[], SampleStore], name: str) -> tuple[SampleStore, bool]:
    """Return the one store of this machine's ranks, and whether this rank made it and so plans for it.

    Args:
        make: creates the store.
        name: of the store; the ranks' first stores of a name are one, and so are their second ones.
    """
    exchange = _exchange()
    if exchange is None:
        return make(), True
    rank, machine = str(dist.get_rank()), _machine()
    exchange.set(f"foreload/machine/{rank}", machine)
    key = f"foreload/store/{machine}/{_num_made[name]}/{name}"
    _num_made[name] += 1
    if exchange.compare_set(f"{key}/maker", "", rank).decode() == rank:
        with suppress(RuntimeError):
            exchange.wait([f"foreload/machine/{rank}" for rank in range(dist.get_world_size())], _RANKS_TIMEOUT)
        store = make()  # which depends on the ranks that share it
        exchange.set(key, f"{os.getpid()} {store.native.file}")
        return store, True
    exchange.wait([key], _STORE_TIMEOUT)
    process, file = map(int, exchange.get(key).split())
    mine = make()
    try:
        return SampleStore.of_process(process, file, mine.arguments), False
    except OSError as error:
        warn_user(f"this rank uses a cache of its own, as that of process {process} is closed: {error}")
        return mine, True


def local_ranks() -> list[int]:
    """Return the ranks that share this machine's memory, as far as they have announced themselves."""
    exchange = _exchange()
    if exchange is None:
        return [0]
    own = _machine().encode()
    keys = [f"foreload/machine/{rank}" for rank in range(dist.get_world_size())]
    there = [exchange.check([key]) and exchange.get(key) == own for key in keys]
    return [rank for rank, here in enumerate(there) if here or rank == dist.get_rank()]
