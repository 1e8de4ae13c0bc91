"""The order of one epoch: which samples make up which batch, drawn once for delivery and for planning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DistributedSampler

from foreload._torch import item_sampler
from foreload.checks import Indices
from foreload.order.batches import ArrayBatches, batches
from foreload.order.known import KNOWN_SAMPLERS, draws_at_once
from foreload.order.own_sampler.ahead import Lookahead
from foreload.order.own_sampler.batches import SamplerBatches
from foreload.order.ranks import Router
from foreload.order.resume import BEGINNING, BatchBounds, Ranges, Start
from foreload.order.skip import LeftOut

__all__ = ["EpochOrder"]


class EpochOrder(Iterator[Any]):
    """The indices of an epoch's batches, drawn exactly as and when torch draws them.

    Args:
        sampler: the batch sampler of a DataLoader, or its sampler without batching.
        generator: of the loader, from which base seeds are drawn between epochs.
        router: swaps samples between the ranks of a ``DistributedSampler``.
        start: where an interrupted epoch goes on.
        skip: returns what to leave out of an epoch.
        number: the number of the epoch, for samplers that have none of their own.
        lookahead: finds out whether a sampler of the user's may be asked ahead of the loop; None: it may.

    Attributes:
        sampler: as given.
        item_sampler: the sampler of single samples within it.
        generator: as given.
        epoch: the sampler's epoch when this order was made, or was first drawn from; None if it has none.
        bounds: where batches begin.
        each: positions of the order of all ranks per position of this rank's.
        is_array: whether batches of indices are arrays drawn by foreload, not by code of the user's.
        num_drawn: the batches drawn so far.
        skip: as given.
        present_skip: what is left out of this epoch.
        left_out: the positions that are left out, as far as the order has been drawn.
        may_follow: whether it is drawn by a sampler of the user's, which may look at what the loop does meanwhile.

    >>> from torch.utils.data import BatchSampler, SequentialSampler
    >>> order = EpochOrder(BatchSampler(SequentialSampler(range(5)), 2, drop_last=False))
    >>> order.peek().tolist(), [batch.tolist() for batch in order]
    ([0, 1, 2, 3, 4], [[0, 1], [2, 3], [4]])
    """

    def __init__(
        self,
        sampler: Any,
        *,
        generator: torch.Generator | None = None,
        router: Router | None = None,
        start: Start = BEGINNING,
        skip: Callable[[int], LeftOut | None] | None = None,
        number: int = 0,
        lookahead: Lookahead | None = None,
    ) -> None:
        self.sampler = sampler
        self.item_sampler = item_sampler(sampler)
        self.generator = generator
        self.epoch: int | None = getattr(self.item_sampler, "epoch", None)
        self.num_drawn = 0
        self.is_resumed = start.begun and not start.is_fresh
        self.skip = skip
        self.left_out: Ranges = []
        present = number if self.epoch is None else self.epoch
        self.present_skip = None if skip is None else skip(present)
        self._batches: Any = batches(sampler, router, start, self.present_skip, self.left_out)
        self._draw = self._batches.draw
        # Torch's is asked for its order with the first batch. (An order that goes on has the epoch of its state.)
        is_asked_late = type(sampler) is BatchSampler and type(self.item_sampler) is DistributedSampler
        self._renewal = (router, start) if is_asked_late and not self.is_resumed else None
        self.bounds: BatchBounds = self._batches.bounds
        self.each: int = getattr(self._batches, "each", 1)
        self.is_array = type(self._batches) is ArrayBatches
        self._plan: Callable[[EpochOrder], None] | None = None
        self._delivered: Callable[[], int] = int
        is_known = type(self.item_sampler) in KNOWN_SAMPLERS and draws_at_once(self.item_sampler)
        self._lookahead = None if is_known or not isinstance(self._batches, SamplerBatches) else lookahead
        if self._lookahead is not None:
            self._lookahead.begin(self.item_sampler)
        self.may_follow = self._lookahead is not None

    def look_again(self) -> None:
        """Begin with another epoch of the sampler if it has been set to one since, and nothing has been drawn."""
        if self._renewal is None or self.num_drawn or self.item_sampler.epoch == self.epoch:
            return
        router, start = self._renewal
        epoch: int = self.item_sampler.epoch
        self.epoch = epoch
        self.present_skip = None if self.skip is None else self.skip(epoch)
        self.left_out.clear()
        self._batches = batches(self.sampler, router, start, self.present_skip, self.left_out)
        self._draw = self._batches.draw
        self.bounds.share(self._batches.bounds)

    def before_drawing(self, plan: Callable[[EpochOrder], None]) -> None:
        """Call ``plan`` right before the first indices are drawn; it may :meth:`peek`."""
        self._plan = plan

    def plan(self) -> None:
        """Call what :meth:`before_drawing` was given, unless that has been done."""
        if self._plan is not None:
            self.look_again()
            plan, self._plan = self._plan, None
            plan(self)

    def __next__(self) -> Any:
        """Return the indices of the next batch."""
        if self._renewal is not None:
            self.look_again()
            self._renewal = None
        if self._plan is not None:
            self.plan()
        if self._lookahead is None or (self._lookahead.is_allowed and self._batches.draws_nothing):
            indices = self._draw()
        else:
            with self._lookahead.watched(ahead=self.num_drawn > self._delivered()):
                indices = next(self._batches)
        self.num_drawn += 1
        return indices

    def ask_again(self) -> None:
        """Ask a sampler of the user's for its iterator once more."""
        if isinstance(self._batches, SamplerBatches):
            self._batches.ask_again()

    def foretell(self) -> Iterator[Any]:
        """Yield all batches to come; for a fork of the process, where nothing is planned with them."""
        self._plan = None
        self.look_again()
        yield from self._batches

    def peek(self) -> Indices | None:
        """Return the samples of the whole epoch in order, before its first batch is drawn.

        The batches are then cut from these very indices. If torch would draw them block by block from a generator
        of the user's, they are drawn from a copy of its state instead, and again for delivery.

        Returns:
            The indices; None for samplers of the user's own, whose order is not known before it is drawn.
        """
        samples: Indices | None = self._batches.peek()
        return samples

    @property
    def drew_at_once(self) -> bool:
        """Whether peeking drew the whole epoch, so that generators are now as they are after it."""
        return draws_at_once(self.item_sampler)

    @property
    def drew_seed(self) -> bool:
        """Whether the user's generator is past the base seed of the workers, because the order is drawn again."""
        return isinstance(self._batches, SamplerBatches) and self._batches.drew_seed

    def next_beginning(self, *, left: bool) -> Start:
        """Return how the epoch after this one begins.

        Args:
            left: whether the loop has left this one in its middle.
        """
        if isinstance(self._batches, SamplerBatches):
            return self._batches.next_beginning(left=left)
        return Start(is_fresh=True, left=left) if left else BEGINNING

    def follow(self, delivered: Callable[[], int]) -> None:
        """Hold the states of batches only until they are delivered; ``delivered`` returns how many have been."""
        self._delivered = delivered
        if isinstance(self._batches, SamplerBatches):
            self._batches.delivered = delivered

    def drawn_from(self, first: int) -> Any:
        """Return what the order after the first ``first`` batches can be drawn from again."""
        return self._batches.state(first)

    @property
    def ready(self) -> int:
        """The number of batches that can be drawn ahead without any effect that the user could notice."""
        ready: int = self._batches.ready
        return ready

    @property
    def may_draw_ahead(self) -> bool:
        """Whether the next batch may be drawn before the loop requests it.

        Not if that would draw from a generator of the user's, which is then as torch leaves it without workers,
        also after a loop that was left early.
        """
        if self._lookahead is not None:
            return self._lookahead.is_allowed
        return self.ready > 0 or not self.is_users_draw

    @property
    def is_users_draw(self) -> bool:
        """Whether the order is drawn from a generator of the user's, who may read it or draw from it too."""
        return isinstance(self._batches, ArrayBatches) and self._batches.shared

    def __len__(self) -> int:
        """Return the number of batches, if the sampler knows it."""
        return len(self.sampler)
