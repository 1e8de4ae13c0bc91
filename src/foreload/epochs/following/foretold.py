"""Batches that a sampler of the user's will probably yield, drawn by a copy of it."""

from __future__ import annotations

import os
import pickle
import sys
import weakref
from collections import deque
from contextlib import suppress
from typing import Any

from foreload.dataset_state.sealed import find_sealed
from foreload.dataset_state.shared import find_shared
from foreload.dataset_state.walk import find_open_file
from foreload.forks.descriptors import cut_connections
from foreload.forks.fork import Fork, end_fork, start_fork
from foreload.forks.unshare import unshare
from foreload.order.epoch_order import EpochOrder
from foreload.workers import compute
from foreload.workers.processes.pipes import Inbox, send

__all__ = ["Foretold", "why_sampler_not_copied"]

# Seconds for the fork to end by itself: it waits for its pipe, unless the sampler computes for long.
_END_SECONDS = 0.2

# The most values of a sampler that are looked at.
_MOST_PARTS = 2_000

# By which ranks wait for each other.
_COLLECTIVES = (
    "_allgather_base _reduce_scatter_base all_gather_single all_to_all_single allgather allgather_coalesced "
    "allgather_into_tensor_coalesced allreduce allreduce_coalesced alltoall alltoall_base barrier broadcast "
    "gather monitored_barrier recv recv_anysource reduce reduce_scatter reduce_scatter_single scatter send"
).split()


class Foretold:
    """The batches that an order will probably yield: a fork of this process draws them.

    The order itself is drawn a batch at a time, when the loop requests it. What the sampler does in the fork is
    not seen here: it has its own generators, and all objects as they were when the first batch was requested.

    Args:
        order: of which no batch has been drawn.

    Attributes:
        is_wrong: whether the order has turned out to be another one.
    """

    def __init__(self, order: EpochOrder) -> None:
        self._order: EpochOrder | None = order
        self._fork: Fork | None = None
        self._inbox: Inbox | None = None
        self._given: deque[bytes] = deque()  # what next() has returned, and the order has not yielded yet
        self._late: deque[bytes] = deque()  # what the order has yielded, and the fork has not sent yet
        self._end: Any = None
        self.is_wrong = False

    def begin(self) -> None:
        """Begin to draw ahead, unless that has been done, or cannot be."""
        order, self._order = self._order, None
        if order is None or why_sampler_not_copied(order.sampler) is not None:
            return
        with suppress(OSError):  # then nothing is drawn ahead
            self._fork = fork = start_fork(lambda into: _send_batches(order, into))
            os.set_blocking(fork.pipe, False)
            self._inbox = Inbox(fork.pipe)
            self._end = weakref.finalize(self, _end, fork, os.getpid())

    @property
    def pipe(self) -> int | None:
        """A descriptor that can be read from when the fork has sent more; None: it will not."""
        return None if self._fork is None else self._fork.pipe

    def next(self) -> Any:
        """Return the next batch of indices beyond those that were drawn or returned before; None: not yet."""
        while (message := self._received()) is not None:
            if not self._late:
                self._given.append(message)
                return pickle.loads(message)
            if message != self._late.popleft():
                self.is_wrong = True
                self.close()
        return None

    def agrees_with(self, indices: Any) -> bool:
        """Return whether a batch that has been drawn is what was foretold, as far as that is known."""
        if self.is_wrong or (self._fork is None and not self._given):
            return not self.is_wrong
        drawn = _packed(indices)
        if self._given:
            self.is_wrong = self._given.popleft() != drawn
        else:
            self._late.append(drawn)
        return not self.is_wrong

    def _received(self) -> bytes | None:
        if self._inbox is None:
            return None
        with suppress(BlockingIOError):
            while not self._inbox.is_ready:
                if not self._inbox.fill():
                    self.close()
                    return None
        return self._inbox.take()

    def close(self) -> None:
        """End the fork; nothing more is foretold."""
        self._order = self._fork = self._inbox = None
        if self._end is not None:
            self._end()


def _end(fork: Fork, process: int) -> None:
    if process == os.getpid():  # a fork of this process has no part in that
        end_fork(fork, _END_SECONDS)


def _packed(indices: Any) -> bytes:
    try:
        return pickle.dumps(indices, protocol=5)
    except Exception:  # pickling a class may raise anything; the fork could not send it either
        return b""


def _send_batches(order: EpochOrder, into: int) -> None:
    compute.use_one_thread()  # the threads that torch computes with did not survive the fork
    _forbid_collectives()
    cut_connections(into)
    unshare(with_locks=True)
    with suppress(Exception):  # whatever the sampler raises, it will raise again where it belongs
        for indices in order.foretell():
            send(into, pickle.dumps(indices, protocol=5))


def _refuse(*_: Any, **__: Any) -> Any:
    raise RuntimeError("a copy of a sampler does not take part in what ranks do together")


def _forbid_collectives() -> None:
    group = getattr(sys.modules.get("torch.distributed"), "ProcessGroup", None)
    for name in _COLLECTIVES if group is not None else ():
        setattr(group, name, _refuse)


def why_sampler_not_copied(sampler: Any) -> str | None:
    """Return why what a copy of a sampler does might be seen by the sampler; None if it cannot."""
    held = find_open_file(sampler, _MOST_PARTS)
    if isinstance(sampler, type(iter(()))) or hasattr(sampler, "__next__"):
        held = "itself"
    if held is not None:
        return f"it holds {held!r} open, or has begun to iterate over it"
    if (name := find_sealed(sampler)) is not None:
        return f"it holds {name!r}, whose state a copy may not have"
    if (name := find_shared(sampler, _MOST_PARTS)) is not None:
        return f"it shares {name!r} with other processes or threads"
    return None
