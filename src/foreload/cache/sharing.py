"""One store shared by the ranks of a machine, which find each other through torch.distributed."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.utils.data import DistributedSampler

from foreload.cache.store import SampleStore
from foreload.errors import warn_user
from foreload.order.mixture import MixtureSampler
from foreload.order.ranks import first_claim, machine_name, own_process, rank_store
from foreload.order.samplers import KeyedSampler

__all__ = ["SharedStore", "open_store", "place_in_order", "store_address"]

_STORE_TIMEOUT = timedelta(seconds=60)

# Other ranks may not use a cache at all, so they are not waited for any longer.
_RANKS_TIMEOUT = timedelta(seconds=5)

# The number of stores of each kind and content in this process.
_num_made: Counter[tuple[str, str]] = Counter()

# Of each kind of store, what other ranks are told: the contents, in the order in which this process first had
# them, each with the rank in the split of the order, and the number of ranks there.
_told: dict[str, list[list[Any]]] = {}


def store_address(store: SampleStore) -> str:
    """Return where other processes of the same user find the memory of a store."""
    file = store.native.file
    return f"{os.getpid()} {file} {_inode(file) if file >= 0 else '-'}"


def open_store(address: str, arguments: tuple[int, int, int, int, bool]) -> SampleStore:
    """Open the store of another process of the same user, which was made with these arguments.

    Raises:
        OSError: it is gone, or belongs to another user.
    """
    process, file, inode = address.split()
    own = os.open(f"/proc/{process}/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
    try:
        if _inode(own) != inode:  # the number is used again
            raise OSError(f"descriptor {file} of process {process} is another file by now")
        return SampleStore.opened(own, arguments)
    finally:
        os.close(own)


def _inode(file: int) -> str:
    about = os.fstat(file)
    return f"{about.st_dev}:{about.st_ino}"


class SharedStore:
    """The store that this rank shares with those others of its machine that have the same dataset.

    Args:
        kind: class and size of the dataset, and the settings of the cache.
        content: a function that returns a hash of the dataset, and what else must be the same; called if there are
            other ranks.
        rank: this process's rank among those that split the order.
        ranks: their number.
    """

    def __init__(self, kind: str, content: Callable[[], str], rank: int, ranks: int) -> None:
        self._kind = kind
        self._rank, self._ranks = rank, ranks
        self._exchange = rank_store()
        self._content = "" if self._exchange is None else content()
        self._known = [rank]

    def open(self, make: Callable[[int], SampleStore]) -> tuple[SampleStore, bool]:
        """Return the store, and whether this rank made it and so plans for it.

        Args:
            make: makes a store, given the number of stores that share the budget.
        """
        exchange = self._exchange
        if exchange is None:
            return make(1), True
        key, gone = self._tell(exchange), set[str]()
        while True:
            maker, _ = first_claim(exchange, f"{key}/maker", gone=gone)
            if maker == own_process():
                with suppress(RuntimeError):
                    ranks = range(dist.get_world_size())
                    exchange.wait([f"foreload/rank/{rank}" for rank in ranks], _RANKS_TIMEOUT)
                store = self._made(make)
                exchange.set(f"{key}/{maker}", store_address(store))
                return store, True
            try:
                exchange.wait([f"{key}/{maker}"], _STORE_TIMEOUT)
                return open_store(exchange.get(f"{key}/{maker}").decode(), make(1).arguments), False
            except OSError:  # that process has closed it, or was killed: the first one to notice makes another one
                gone.add(maker)
            except RuntimeError as error:
                warn_user(
                    f"this rank uses a cache of its own: process {maker} did not make the shared one: {error}"
                )
                return self._made(make), True

    def _tell(self, exchange: Any) -> str:
        """Tell other ranks of this one; return the key of the store: the n-th ones of all ranks are one."""
        own = [self._content, self._rank, self._ranks]
        told = _told.setdefault(self._kind, [])
        contents = [content for content, _, _ in told]
        place = contents.index(self._content) if self._content in contents else len(told)
        told[place : place + 1] = [own]
        exchange.set(f"foreload/rank/{dist.get_rank()}", json.dumps([machine_name(), _told, own]))
        number = _num_made[self._kind, self._content]
        _num_made[self._kind, self._content] += 1
        return f"foreload/store/{machine_name()}/{number}/{self._kind}/{self._content}"

    def _made(self, make: Callable[[int], SampleStore]) -> SampleStore:
        others = {other for other, _, _ in self._neighbours()} - {self._content}
        if others:
            warn_user(
                "the datasets of ranks on this machine differ, or their spill folders do, so they have caches of "
                "their own, each with its part of the budget. If the datasets are the same, leave what differs "
                "out of their pickled state (__getstate__) and out of the globals that their code names, such as "
                "the rank; with Cache(share=False), each rank's cache gets the whole budget"
            )
        return make(1 + len(others))

    def follow(self, rank: int, ranks: int) -> None:
        """Take another place in the split of the order, and no longer ask ranks of a job that has ended.

        Args:
            rank: this process's rank among those that split the order now.
            ranks: their number.
        """
        # After destroy_process_group(), ranks have other numbers in the next group, if there is one.
        if self._exchange is not None and self._exchange is not rank_store():
            self._exchange = None
        if self._exchange is None or (rank, ranks) != (self._rank, self._ranks):
            self._known = [rank]
        self._rank, self._ranks = rank, ranks

    def ranks(self) -> list[int]:
        """Return the ranks, in the split of the order, of all processes that share the store, sorted.

        As far as they have told of it; one that has not is expected to, if it can.
        """
        if self._exchange is not None:
            with suppress(RuntimeError):  # the process that keeps the exchange may have ended
                theirs = [
                    rank
                    for content, rank, ranks in self._neighbours()
                    if content == self._content and ranks == self._ranks
                ]
                self._known = sorted([self._rank, *theirs])
        return self._known

    def _neighbours(self) -> Iterator[tuple[str, int, int]]:
        """Yield, for each other process of this machine, content, rank and number of ranks of its store."""
        number = [content for content, _, _ in _told[self._kind]].index(self._content)
        for rank in range(dist.get_world_size()):
            key = f"foreload/rank/{rank}"
            if rank == dist.get_rank() or not self._exchange.check([key]):
                continue
            machine, told, latest = json.loads(self._exchange.get(key))
            if machine != machine_name():
                continue
            stores = {content: (content, of, ranks) for content, of, ranks in told.get(self._kind, [])}
            if self._content in stores or len(stores) <= number:
                yield stores.get(self._content, (self._content, *latest[1:]))
            else:
                yield [*stores.values()][number]


def place_in_order(sampler: Any) -> tuple[int, int]:
    """Return the rank that a sampler yields the samples of, among those that split its order, and their number."""
    is_split = type(sampler) in (DistributedSampler, KeyedSampler, MixtureSampler)
    return (int(sampler.rank), int(sampler.num_replicas)) if is_split else (0, 1)
