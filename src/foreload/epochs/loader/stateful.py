"""The base class of ``DataLoader`` that saves and loads states, and knows what is left out and what comes when."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

from torch.utils.data import DistributedSampler, IterableDataset

from foreload._torch import begins_again, index_sampler, item_sampler
from foreload.checks import check_int, optional
from foreload.epochs.base import Epoch
from foreload.epochs.loader.own_options import is_own
from foreload.epochs.loader.source import EpochSource
from foreload.epochs.state import resume, save
from foreload.errors import warn_user
from foreload.order.lookahead import step_indices
from foreload.order.mixture import MixtureSampler
from foreload.order.own_state import has_state
from foreload.order.ranks import Router
from foreload.order.resume import read_whole
from foreload.order.samplers import KeyedSampler, num_ranks
from foreload.order.skip import Skip, check_skip, left_out_of
from foreload.record.recorder import Watch

__all__ = ["StatefulSource"]

T_co = TypeVar("T_co", covariant=True)


class StatefulSource(EpochSource[T_co]):
    """An :class:`~foreload.epochs.loader.source.EpochSource` whose position can be saved, and gone on from.

    :class:`foreload.DataLoader` is derived from it.
    """

    device_transform: Any  # called with each batch on the device
    _fl_begun: Any = None  # an epoch that was begun for its state, before the loop asked for it
    _fl_set_to: int | None = None  # the sampler's epoch when that was done
    _fl_moving: weakref.ref[Any] | None  # the epoch that copies batches to a device
    _fl_place: Any  # of the loop in it, or in the one that it was in last

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batches that the loop has taken.

        :meth:`foreload.DataLoader.load_state_dict` goes on from it. It has plain values and what the dataset and
        samplers tell of theirs, for ``torch.save``, checkpoints, and ``json`` if theirs are plain too: under 1 KiB
        with ``seed=``, 4 KB more with a generator of torch's.

        >>> import torch; from foreload import DataLoader
        >>> loader = DataLoader(list(range(10)), batch_size=4, shuffle=True, seed=0)
        >>> batches = iter(loader); first = next(batches); state = loader.state_dict()
        >>> again = DataLoader(list(range(10)), batch_size=3, shuffle=True, seed=0)
        >>> again.load_state_dict(state)
        >>> sorted(torch.cat([first, *again]).tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]

        Raises:
            RuntimeError: the ``state_dict`` of the dataset or a sampler raises, or its state cannot be copied.
        """
        if self._fl_is_left_to_torch:
            warn_user(
                "state_dict() is empty: torch's own code loads here (data pipes, for instance); put a pipe into "
                "a Dataset or IterableDataset of your own to save states"
            )
            return {}
        if self._fl_resumed is not None:
            return copy.deepcopy(self._fl_resumed)
        self._fl_drop_outdated()
        # The loop may have left its epoch, with batches that it never got.
        if self._fl_place is not None and self._fl_place.state is not None:
            return dict(self._fl_place.taken())
        if self._fl_cursor is None and (isinstance(self.dataset, IterableDataset) or has_state(self.dataset)):
            self._fl_begun = self._fl_next_epoch()  # only workers know the state with which they begin
            self._fl_set_to = self._fl_order_spec().sampler_epoch  # which may have counted it
        return self._fl_state()

    def _fl_state(self) -> dict[str, Any]:
        return save(self._fl_order_spec(), self._fl_cursor, self._fl_epoch)

    def _fl_load_state(self, state_dict: dict[str, Any]) -> None:
        """Do what :meth:`foreload.DataLoader.load_state_dict` says."""
        if isinstance(state_dict, dict) and not state_dict:  # of a checkpoint from before the loader had a state
            self._fl_cursor = self._fl_moving = self._fl_place = None
            return
        if not self._fl_auto_workers:
            self.choose_workers()  # nothing is measured, and workers with a copy each have states of their own
        spec = self._fl_order_spec()
        resumption = resume(spec, state_dict, chooses=self._fl_auto_workers)
        self._fl_begun = self._fl_moving = self._fl_place = None
        if self.persistent_workers:
            self._iterator = None
            self._fl_crew.close()  # their copies of the dataset have gone on
            self._fl_open.base_seed = None
        self._fl_resumed, self._fl_epoch = resumption.state, resumption.epoch
        if resumption.workers not in (None, spec.num_streams):
            self.num_workers = resumption.workers
        epoch = resumption.state["sampler_epoch"]
        if epoch is not None:
            self._fl_set_sampler_epoch(epoch)
            set_epoch = optional(self.dataset, "set_epoch")
            if set_epoch is not None and not resumption.state["finished"]:
                set_epoch(epoch)  # a map-style dataset may choose its samples by epoch

    def _fl_begun_or_next(self) -> Any:
        """Begin the next epoch, unless that was done for its state."""
        self._fl_drop_outdated()
        begun, self._fl_begun = self._fl_begun, None
        return self._fl_next_epoch() if begun is None else begun

    def _fl_drop_outdated(self) -> None:
        """Drop an epoch that was begun for its state if samplers have been set to another one since."""
        if self._fl_begun is not None and self._fl_set_to != self._fl_order_spec().sampler_epoch:
            self._fl_drop_begun()

    def _fl_drop_begun(self) -> None:
        """Drop an epoch that was begun for its state; the next one has its number."""
        begun, cursor = self._fl_begun, self._fl_cursor
        if begun is not None and cursor is not None:
            self._fl_epoch, self._fl_begun, self._fl_cursor = cursor.epoch, None, None
            begun.close()

    def _fl_next_epoch(self) -> Any:
        """Begin the next epoch, with the workers of the one before if they persist."""
        latest: Any = self.__dict__.get("_iterator") if self.persistent_workers else None
        if isinstance(latest, Epoch):
            return self.begin_again(latest)
        if begins_again(latest):  # of a derived class with a _get_iterator() of its own
            return super().__iter__()  # which begins it again
        return self._get_iterator()

    def begin_again(self, latest: Epoch, *, is_asked: bool = False) -> Epoch:
        """Begin the next epoch with the workers of the latest one.

        Torch has one iterator for both: whoever still asks the latest one gets batches of the next one. Not so
        with workers that torch does not have (``workers="threads"``), nor with batches that are copied to a
        device: they are asked for ahead of the loop, so that only the next epoch's loop may have them.

        Args:
            latest: the latest epoch.
            is_asked: whether that is asked to begin again, and so goes on as the next one in any case.
        """
        options = self._foreload
        has_torchs = self._fl_count > 0 and not self._fl_auto_workers and options.workers in ("auto", "processes")
        is_one = is_asked or (has_torchs and options.device is None and options.device_transform is None)
        with self._fl_turn.lock:  # so that of several threads, the one that comes last has the latest epoch
            if is_asked and self._fl_cursor is not None:
                self._fl_open.base_seed = self._fl_cursor.base_seed  # torch draws no other one
            try:
                epoch = self._fl_open_next()
            finally:
                if not self.persistent_workers:
                    self._fl_open.base_seed = None
            if is_one:
                latest.go_on_with(epoch)
                latest.close()
            return epoch

    def _fl_begin_epoch(self, watch: Watch) -> Epoch:
        sampler = item_sampler(index_sampler(self))
        if self._foreload.seed is None and isinstance(sampler, (DistributedSampler, KeyedSampler, MixtureSampler)):
            self._fl_leave_interrupted(sampler.epoch)  # to which the loop may have set it since
        return super()._fl_begin_epoch(watch)

    def count_from(self, epoch: int) -> None:
        """Number the next epoch, and count on from there; samplers are left as they are."""
        self._fl_leave_interrupted(epoch)
        self._fl_epoch, self._fl_begun, self._fl_counted = epoch, None, 0

    def _fl_leave_interrupted(self, epoch: int) -> None:
        """Forget a loaded state if it is of the middle of another epoch: it has other samples at each position."""
        state = self._fl_resumed
        if state is None or not state["begun"] or isinstance(self.dataset, IterableDataset):
            return
        drawn = read_whole(state["drawn"])
        if isinstance(drawn, dict) and drawn.get("own") is not None:
            return  # a sampler of the user's own, which goes on with that epoch
        number = state["sampler_epoch"] if self._foreload.seed is None else state["epoch"]
        if number not in (None, epoch):
            self._fl_resumed = None
            warn_user(
                f"set_epoch({epoch}): the state that was loaded is of the middle of epoch {number}, whose rest is "
                f"left out; set_epoch({number}) goes on with it"
            )

    @property
    def skip(self) -> tuple[Skip, ...]:
        """The steps and samples that epochs leave out, from the next iteration on."""
        skips: tuple[Skip, ...] = self.__dict__["skip"]
        return skips

    @skip.setter
    def skip(self, skip: Skip | Sequence[Skip] | None) -> None:
        is_own_class = is_own(type(self))
        # Else it is a derived class's own: before the constructor, or nothing like what the loader takes.
        is_option = "_fl_skip" in vars(self) and isinstance(skip, (Skip, list, tuple, type(None)))
        if is_own_class or is_option:
            self._fl_skip = check_skip(skip, self.dataset)
            self._fl_drop_begun()
        self.__dict__["skip"] = self._fl_skip if is_own_class else skip

    def _fl_take_skip(self, skip: tuple[Skip, ...]) -> None:
        """Take the constructor's argument."""
        self._fl_skip = skip
        # Under its own name too: frameworks that build a loader like this one copy attributes that are arguments.
        if type(self).skip is StatefulSource.skip:  # which is no method or property of a derived class
            self.__dict__.setdefault("skip", skip)

    def indices(self, epoch: int, step: int) -> list[int]:
        """Return the samples of a batch of any epoch, past or future, without iterating: which were in step 1207?

        Steps are numbered from 0, as the loop gets them; what :attr:`skip` leaves out is not counted. Nothing is
        changed. With several ranks, these are this rank's samples.

        Args:
            epoch: the number of the epoch: with ``seed=`` as in :meth:`foreload.DataLoader.set_epoch`; under a
                ``DistributedSampler``, the sampler's.
            step: the number of the batch.

        Raises:
            ValueError: the order is not a function of the epoch (as it is with ``seed=``).
            IndexError: the epoch has fewer batches.

        >>> from foreload import DataLoader
        >>> loader = DataLoader(list(range(10)), batch_size=4, shuffle=True, seed=0)
        >>> [loader.indices(0, step) for step in range(3)] == [batch.tolist() for batch in loader]
        True
        """
        epoch, step = check_int("epoch", epoch, 0), check_int("step", step, 0)
        if isinstance(self.dataset, IterableDataset):
            raise ValueError(f"the samples of {type(self.dataset).__name__} have no indices: it is iterable")
        sampler, router = index_sampler(self), None
        ranks = num_ranks(item_sampler(sampler))
        if self._foreload.cache is not None and self._foreload.cache.route and ranks > 1:
            router = Router(len(self.dataset), ranks)  # type: ignore[arg-type]
        skip = partial(left_out_of, self._fl_skip) if self._fl_skip else None
        return step_indices(sampler, epoch, step, router=router, skip=skip)
