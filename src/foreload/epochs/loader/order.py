"""The samplers of a loader: which part of their order is this rank's, in which epoch they are, and their specs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, Sampler, SequentialSampler

from foreload._torch import index_sampler, item_sampler
from foreload.checks import is_instance
from foreload.epochs.loader.own_options import WithOwnOptions
from foreload.errors import warn_user
from foreload.order.known import KNOWN_SAMPLERS
from foreload.order.mixture import MixtureSampler
from foreload.order.own_sampler.ahead import Lookahead
from foreload.order.ranks import first_value, present_rank, rank_in
from foreload.order.resume import BEGINNING, Start
from foreload.order.samplers import KeyedSampler, nested_samplers, num_ranks, rank_share
from foreload.order.skip import Skip
from foreload.protocol import LoaderDefaults

__all__ = ["LoaderOrder", "OrderSpec", "batch_size_of", "seeded_order", "share_of"]

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


@dataclass(frozen=True)
class OrderSpec:
    """The sources of the order and the random numbers of a loader's epochs.

    Attributes:
        dataset: the user's dataset.
        sampler: the source of indices: a batch sampler, or a sampler without batching.
        generator: the user's torch generator.
        seed: foreload's own seed, if there is one.
        num_streams: the number of parts in which an iterable dataset is read.
        base_seed: the seed of persistent workers, which keep the one that they were started with.
        batch_size: samples per batch; None without batches, or if the user's own batch sampler decides.
        batched: whether samples are put together in batches.
        skip: what is left out.
        keeps: whether workers, or the calling thread, go on in the next epoch with the same copy of the dataset.
        lookahead: finds out whether a sampler of the user's may be asked ahead of the loop; None: it may.
        in_order: whether batches come in this order.
        beginning: how the epoch after the latest one begins.
        asks_twice: whether a sampler is asked for its iterator before the base seed is drawn and after it, as by
            torch when it starts workers.
    """

    dataset: Any
    sampler: Any
    generator: torch.Generator | None
    seed: int | None
    num_streams: int
    base_seed: int | None = None
    batch_size: int | None = None
    batched: bool = True
    skip: tuple[Skip, ...] = ()
    keeps: bool = False
    lookahead: Lookahead | None = None
    in_order: bool = True
    beginning: Start = BEGINNING
    asks_twice: bool = False

    @property
    def is_stream(self) -> bool:
        """Whether the dataset is iterable, so that samples have no indices."""
        return is_instance(self.dataset, IterableDataset)

    @property
    def sampler_epoch(self) -> int | None:
        """The number of the epoch that samplers, or an iterable dataset, are set to."""
        numbered = self.dataset if self.is_stream else self.sampler
        epoch = getattr(getattr(numbered, "sampler", numbered), "epoch", None)
        return epoch if isinstance(epoch, int) else None

    @property
    def positions(self) -> int | None:
        """The number of positions in an epoch's order; None if it is not known."""
        inner = item_sampler(self.sampler)
        if self.is_stream or type(inner) not in KNOWN_SAMPLERS:
            return None
        if type(inner) is DistributedSampler or num_ranks(inner) > 1:
            source: Any = inner.dataset if type(inner) is DistributedSampler else inner.data_source
            return max(len(source), len(inner) * int(inner.num_replicas))
        return len(inner) * getattr(inner, "num_replicas", 1)


class LoaderOrder(WithOwnOptions[T_co]):
    """A torch DataLoader whose samplers take account of ranks and epochs."""

    _fl_draws_itself: bool  # whether the sampler is the loader's own
    _fl_warned_of_ranks = False
    _fl_epoch = 0  # the number of the next epoch
    _fl_counted = 0  # how far the epochs of this loader are ahead of those that samplers are set to
    _fl_resumed: dict[str, Any] | None = None

    @property
    def _index_sampler(self) -> Any:
        # Where torch looks for what batches are drawn from.
        own, options = super()._index_sampler, self._foreload
        if options.seed is None or not (self._fl_draws_itself and options.distributed):
            return own
        rank, ranks = present_rank() if options.group is None else options.group
        if ranks == 1:
            return own
        share = rank_share(self.sampler, rank, ranks, drop_last=self.drop_last, epoch=self._fl_epoch)
        if share is None or self.batch_size is None:
            return own if share is None else share
        return BatchSampler(share, self.batch_size, self.drop_last)

    def _fl_describe_order(self) -> list[str]:
        """Return the arguments that say which samples make up which batch, where they are not the default ones."""
        batches: Any = self.batch_sampler
        if batches is not None and type(batches) is not BatchSampler:
            return [f"batch_sampler={type(batches).__name__}"]
        size = [f"batch_size={self.batch_size if batches is None else batches.batch_size}"]
        drops = ["drop_last=True"] if batches is not None and batches.drop_last else []
        sampler = self.sampler if batches is None else batches.sampler
        if self._fl_draws_itself:
            return [*size, *([] if type(sampler) is SequentialSampler else ["shuffle=True"]), *drops]
        is_stream = isinstance(self.dataset, IterableDataset)
        return [*size, *([] if is_stream else [f"sampler={type(sampler).__name__}"]), *drops]

    def _fl_warn_of_ranks(self) -> None:
        """Warn, once, if every rank loads all samples in a random order, and nobody has asked for that."""
        options = self._foreload
        is_asked_for = options.group is not None or not (self._fl_draws_itself and options.distributed)
        if self._fl_warned_of_ranks or is_asked_for or present_rank()[1] == 1:
            return
        if item_sampler(index_sampler(self)) is self.sampler and type(self.sampler) is not SequentialSampler:
            self._fl_warned_of_ranks = True
            warn_user(
                f"each of the {present_rank()[1]} ranks of torch.distributed loads all samples: give each its "
                "part by seed= or sampler=DistributedSampler(dataset), or pass distributed=False if that is meant"
            )

    def _fl_check_resumed(self) -> None:
        """Check that the ranks that share an order go on from one place in it, as far as they have begun to.

        Raises:
            ValueError: another rank, on this machine, goes on from another place.
        """
        state = self._fl_resumed
        ranks = 1 if state is None else getattr(item_sampler(index_sampler(self)), "num_replicas", 1)
        if state is None or ranks == 1:
            return
        given = [list(span) for span in state["given"]] if state["begun"] and not state["finished"] else []
        if state["ranks"] == ranks:
            # Each may have its own state, which with in_order=False may have others of the batches.
            given = [[0, sum(end - begin for begin, end in given)]]
        own = f"epoch {state['epoch'] + state['finished']}, positions {given}"
        name = " ".join(str(state[field]) for field in ("seed", "samples", "sampler"))
        first = first_value(f"resumed {name} {ranks}", own)
        if own != first:
            raise ValueError(
                f"this rank goes on from another place than the first rank to do so: {own} were delivered, not "
                f"{first}. Load one state on all ranks, that of rank 0 for instance"
            )

    def _fl_set_keyed_epoch(self) -> None:
        """Agree with foreload's samplers, also within a framework's, and other ranks on the epoch that begins."""
        self._fl_check_resumed()
        if self._foreload.seed is None:
            return
        keyed = self.keyed_samplers()
        chosen = next((sampler.epoch for sampler in keyed if sampler.chosen), None)
        if chosen is not None:
            self._fl_epoch = self._fl_number_of(chosen)
        for sampler in keyed:
            sampler.set_epoch(self._fl_epoch)
            sampler.chosen = False

    def _fl_number_of(self, chosen: int) -> int:
        """Return the number of the epoch that begins, given the one that a sampler was set to.

        A framework may count from 0 in each run (Accelerate). A loader that goes on from a state counts on.
        """
        if self._fl_resumed is not None:
            self._fl_counted = self._fl_epoch - chosen
            if self._fl_counted:
                warn_user(
                    f"the sampler was set to epoch {chosen}, but the state that was loaded goes on in epoch "
                    f"{self._fl_epoch}: so does the loader, and it counts on from there until loader.set_epoch()"
                )
        return chosen + self._fl_counted

    def keyed_samplers(self) -> list[Any]:
        """Return foreload's samplers among the loader's, also within a framework's."""
        nested = nested_samplers(self.sampler, self.batch_sampler)
        return [sampler for sampler in nested if isinstance(sampler, (KeyedSampler, MixtureSampler))]

    def _fl_set_sampler_epoch(self, epoch: int) -> None:
        stream = self.dataset if isinstance(self.dataset, IterableDataset) else None
        samplers = (self.sampler, self.batch_sampler, getattr(self.batch_sampler, "sampler", None), stream)
        for sampler in {id(sampler): sampler for sampler in samplers}.values():
            set_epoch = getattr(sampler, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)


def seeded_order(dataset: Any, shuffle: bool | None, seed: int | None) -> tuple[Sampler[Any] | None, bool | None]:
    """Return the sampler of ``shuffle=True, seed=seed`` if that is asked for, and what ``shuffle`` torch is given.

    A dataset with an order of its own is told if it is not to be loaded in that.
    """
    defaults = dataset if isinstance(dataset, LoaderDefaults) else LoaderDefaults()
    if seed is None or not shuffle:
        defaults.check_order()
        return None, shuffle
    own = defaults.seeded_sampler(seed)
    return KeyedSampler(dataset, seed) if own is None else own, None


def share_of(
    group: Any, seed: int | None, distributed: bool, in_order: bool, *, draws: bool
) -> tuple[int, int] | None:
    """Return the rank in a group and the number of its ranks, if they can share the order of the loader."""
    if group is None:
        return None
    if not draws:
        raise ValueError(
            "group is for the order that seed= makes, but a sampler or an iterable dataset has its own: leave "
            "group= out, and give DistributedSampler, or the dataset, num_replicas= and rank="
        )
    if seed is None:
        raise ValueError("group needs seed=, the same on all ranks, so that they know each other's order")
    if not distributed:
        raise ValueError("group= and distributed=False contradict each other: leave one of them out")
    if not in_order:
        raise ValueError(
            "group= needs in_order=True: ranks that are to get the same batches would get them in different orders"
        )
    return rank_in(group)


def batch_size_of(sampler: Any, *, is_batched: bool) -> int | None:
    """Return the samples of a batch; None without batches, or if the user's own batch sampler decides."""
    size = getattr(sampler, "batch_size", None) if is_batched else None
    return size if isinstance(size, int) else None
