"""The assignment of samples to ranks: the split, swaps within a global batch, even shares of each kind.

The gradient of a step is averaged over all ranks, so it makes no difference which rank computes a sample's part of
it. Every rank computes the same swaps from the same numbers; nothing is sent.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from foreload import _native
from foreload._torch import default_store, is_whole_mesh
from foreload.checks import Array, Indices, check_int

__all__ = [
    "Router",
    "assign_ranks",
    "first_claim",
    "first_value",
    "machine_name",
    "own_process",
    "present_rank",
    "rank_in",
    "rank_store",
]

# How often each name was used in this process.
_num_used: Counter[str] = Counter()


def present_rank() -> tuple[int, int]:
    """Return this process's rank under ``torch.distributed`` and the number of ranks; 0 and 1 without it."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def rank_in(group: Any) -> tuple[int, int]:
    """Return this process's rank in the group between whose ranks data are split, and their number.

    Args:
        group: a ``ProcessGroup``; a ``DeviceMesh`` of one dimension, or of several that were sliced from a larger
            one, whose ranks count row by row; or that rank and number.

    Raises:
        TypeError: ``group`` is none of these.
        ValueError: this process is not in the group, the group does not exist any more, or the mesh may have
            dimensions that do not split the data.

    >>> rank_in((1, 4))
    (1, 4)
    """
    if isinstance(group, (tuple, list)):
        return _rank_of_pair(group)
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError(
            "group: torch.distributed is not initialized in this process: call init_process_group() before, or "
            "give group=(rank, number of ranks)"
        )
    own = dist.get_rank()
    if isinstance(group, DeviceMesh):
        ranks = _ranks_of_mesh(group)
    elif isinstance(group, dist.ProcessGroup):
        try:
            ranks = dist.get_process_group_ranks(group)
        except (KeyError, ValueError) as error:
            raise ValueError(
                "group: this process group does not exist any more; give one that was not destroyed"
            ) from error
    elif type(group) is int and group == dist.GroupMember.NON_GROUP_MEMBER:  # what new_group() returns there
        ranks = []
    else:
        raise TypeError(
            "group must be a ProcessGroup, a DeviceMesh, or a pair (rank, number of ranks), "
            f"got {type(group).__name__}"
        )
    if own not in ranks:
        raise ValueError(f"group: rank {own} is not in this group: give each rank the group that it is in")
    return ranks.index(own), len(ranks)


def _rank_of_pair(pair: Sequence[Any]) -> tuple[int, int]:
    if len(pair) != 2:
        raise ValueError(f"group must be a pair (rank, number of ranks), got {pair!r}")
    rank, ranks = check_int("group: rank", pair[0], 0), check_int("group: number of ranks", pair[1], 1)
    if rank >= ranks:
        raise ValueError(f"group: rank must be from 0 to {ranks - 1}, got {rank}")
    return rank, ranks


def _ranks_of_mesh(mesh: DeviceMesh) -> list[int]:
    if mesh.ndim > 1 and is_whole_mesh(mesh):
        names = mesh.mesh_dim_names or ()
        raise ValueError(
            f"group: this mesh has {mesh.ndim} dimensions {names}: slice out those that split the data, as in "
            "mesh['dp'] or mesh['dp_replicate', 'dp_shard']; if all of them do, leave group= out, or flatten it"
        )
    if mesh.get_coordinate() is None:
        return []
    ranks: list[int] = mesh.mesh.flatten().tolist()
    return ranks


def rank_store() -> Any:
    """Return torch's key-value store, which all ranks reach; None if there is just one."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return None
    return default_store()


def machine_name() -> str:
    """Return a name of what processes that share memory have in common: machine, PID namespace and user."""
    boot, processes = "", ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        processes = os.readlink("/proc/self/ns/pid")
    return f"{boot} {processes} {os.getuid() if hasattr(os, 'getuid') else ''}"


def own_process() -> str:
    """Return a name of this process that no other one on this machine ever has."""
    return f"{os.getpid()}:{_started(os.getpid())}"


def _started(process: int) -> str:
    """Return when a process was started; "" if it has ended, or that is not known."""
    with suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    return ""


def first_claim(store: Any, key: str, value: str = "", gone: Collection[str] = ()) -> tuple[str, str]:
    """Return the process that was the first to claim a key, this one perhaps, and the value that it gave.

    A store may outlive its processes, as that of torchrun does when it restarts them. So claims of processes that
    have ended do not count.

    Args:
        store: the key-value store of the ranks.
        key: only processes of this machine claim it.
        value: of this process.
        gone: processes whose claims do not count either.
    """
    own = f"{own_process()} {value}"
    found = store.compare_set(key, "", own).decode()
    while True:
        process, _, given = found.partition(" ")
        number, _, started = process.partition(":")
        if found == own or (process not in gone and _started(int(number)) == started):
            return process, given
        found = store.compare_set(key, found, own).decode()


def first_value(name: str, value: str) -> str:
    """Return the value of the first rank on this machine to call this; n-th calls with a name belong together.

    No rank waits for another one. If they cannot be asked, that is this rank's own value.
    """
    store = rank_store()
    if store is None:
        return value
    key = f"foreload/first/{machine_name()}/{name}/{_num_used[name]}"
    _num_used[name] += 1
    with suppress(RuntimeError):  # the process that keeps the store may have ended
        return first_claim(store, key, value)[1]
    return value


class Router:
    """Swaps samples between ranks within each global batch, so that each sample goes to the rank that caches it.

    A keyed permutation gives every sample a position; its owner is the rank ``position % ranks``. Each rank
    caches the samples of lowest position that it owns.

    Args:
        samples: the number of samples.
        ranks: the number of ranks.
        seed: of the permutation; the same on every rank.

    >>> router = Router(8, ranks=2)
    >>> swapped = router.route([np.array([0, 1]), np.array([2, 3])])
    >>> sorted(np.concatenate(swapped).tolist()), [len(part) for part in swapped]
    ([0, 1, 2, 3], [2, 2])
    """

    def __init__(self, samples: int, ranks: int, seed: int = 0) -> None:
        self.samples = samples
        self.ranks = ranks
        self.seed = seed

    def owned_by(self, rank: int, most: int | None = None) -> Indices:
        """Return the samples that ``rank`` owns, in the order in which it caches them; the first ``most`` of them.

        >>> Router(10, 3).owned_by(0).tolist() == Router(10, 1).owned_by(0)[::3].tolist()
        True
        """
        count = max(0, -(-(self.samples - rank) // self.ranks))
        owned = np.empty(count if most is None else min(count, most), np.int64)
        if len(owned):
            _native.permute(self.samples, self.seed, 0, rank, owned, self.ranks)
        return owned

    def held(self, rank: int, capacity: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return for each sample whether ``rank`` caches it, given room for ``capacity`` samples (bool)."""
        held = np.zeros(self.samples, np.bool_)
        held[self.owned_by(rank, capacity)] = True
        return held

    def route(self, parts: Sequence[Indices]) -> list[Indices]:
        """Swap the samples of one global batch.

        Args:
            parts: what each rank would load.

        Returns:
            What each rank loads instead: as many samples as before, and together the same ones. Samples go to
            their owners, lowest positions first, until each has its number; the others fill the places left.
        """
        lengths = np.array([len(part) for part in parts], np.int64)
        routed = self._routed(np.concatenate(parts), lengths)
        return np.split(routed, np.cumsum(lengths)[:-1])

    def route_rounds(self, rounds: Indices) -> Indices:
        """Swap the samples of one global batch, in the order that all ranks share.

        Args:
            rounds: of shape (rounds, ranks): rank r would load column r.

        Returns:
            What each rank loads instead, of shape (ranks, rounds).
        """
        lengths = np.full(self.ranks, len(rounds), np.int64)
        return self._routed(np.ascontiguousarray(rounds.T).ravel(), lengths).reshape(self.ranks, len(rounds))

    def _routed(self, batch: Indices, lengths: Indices) -> Indices:
        """Return a global batch after the swaps, rank by rank, given the number of samples of each."""
        if not len(batch):
            return batch
        positions, order = np.empty(len(batch), np.int64), np.empty(len(batch), np.int64)
        _native.positions(self.samples, self.seed, 0, np.ascontiguousarray(batch, np.int64), positions)
        _native.route(positions, lengths, order)
        return batch[order]


def assign_ranks(kinds: Array, ranks: int) -> Array:
    """Return the rank of each position: in each round of ``ranks`` positions, one for every rank.

    After every round, any two ranks have had the same number of samples of each kind, or numbers that differ by
    one. To that end, each run of ``ranks`` samples of one kind is spread over all ranks too. Rounds and runs are
    the two sides of a bipartite graph whose edges are the positions, and ranks are colours: by Koenig's theorem
    (1916), as many colours as a node has edges are enough. An edge that finds no colour free at both ends gets one
    by exchanging two colours along a path.

    Args:
        kinds: the kind of each position; their number is a multiple of ``ranks``.
        ranks: the number of ranks.

    >>> assign_ranks(np.array([0, 1, 0, 1, 0, 1]), 2).tolist()  # taking turns, rank 0 would only ever have kind 0
    [0, 1, 1, 0, 0, 1]
    """
    rounds, runs, labels = len(kinds) // ranks, 0, np.empty(len(kinds), np.int64)
    for kind in np.unique(kinds):
        (positions,) = np.nonzero(kinds == kind)
        labels[positions] = runs + np.arange(len(positions)) // ranks
        runs += -(-len(positions) // ranks)
    colouring = _Colouring(labels.tolist(), rounds, runs, ranks)
    for edge in range(len(kinds)):
        colouring.add(edge)
    return np.array(colouring.colour, np.int64)


class _Colouring:
    """The colours of edges: position ``e`` joins round ``e // ranks`` and run ``run[e]``."""

    def __init__(self, run: list[int], rounds: int, runs: int, ranks: int) -> None:
        self.colour = [-1] * len(run)
        self._run, self._ranks = run, ranks
        # The edge of each colour at each round and run, and the colours that are free there as bits.
        self._of_round, self._of_run = [[-1] * rounds * ranks, [-1] * runs * ranks]
        self._free_of_round, self._free_of_run = [(1 << ranks) - 1] * rounds, [(1 << ranks) - 1] * runs

    def add(self, edge: int) -> None:
        """Colour an edge."""
        at_round, at_run = self._free_of_round[edge // self._ranks], self._free_of_run[self._run[edge]]
        colour = _lowest(at_round & at_run)
        if colour < 0:
            colour = _lowest(at_run)
            self._exchange(edge // self._ranks, colour, _lowest(at_round))
        self._set(edge, colour)

    def _exchange(self, round_: int, taken: int, other: int) -> None:
        """Exchange two colours along the path that leaves a round by ``taken``, so that it becomes free there."""
        path, node, colour, at_run = [], round_, taken, False
        while (edge := (self._of_run if at_run else self._of_round)[node * self._ranks + colour]) >= 0:
            path.append(edge)
            node = edge // self._ranks if at_run else self._run[edge]
            colour, at_run = (other if colour == taken else taken), not at_run
        colours = [self.colour[edge] for edge in path]
        for edge, colour in zip(path, colours, strict=True):
            self._clear(edge, colour)
        for edge, colour in zip(path, colours, strict=True):
            self._set(edge, other if colour == taken else taken)

    def _clear(self, edge: int, colour: int) -> None:
        round_, run, ranks = edge // self._ranks, self._run[edge], self._ranks
        self._of_round[round_ * ranks + colour] = self._of_run[run * ranks + colour] = -1
        self._free_of_round[round_] |= 1 << colour
        self._free_of_run[run] |= 1 << colour

    def _set(self, edge: int, colour: int) -> None:
        round_, run, ranks = edge // self._ranks, self._run[edge], self._ranks
        self.colour[edge] = colour
        self._of_round[round_ * ranks + colour] = self._of_run[run * ranks + colour] = edge
        self._free_of_round[round_] &= ~(1 << colour)
        self._free_of_run[run] &= ~(1 << colour)


def _lowest(bits: int) -> int:
    """Return the number of the lowest bit that is set; -1 if none is."""
    return (bits & -bits).bit_length() - 1
