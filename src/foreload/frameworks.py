"""Loaders that frameworks build from the attributes of a foreload loader, and that are foreload loaders too.

To put a sampler of its own into a loader, a framework builds another one: Lightning of the same class, Accelerate
and Ray Train of torch's. All of them pass on the number of workers, so that leads back to the first loader.
"""

from __future__ import annotations

import copy
import inspect
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch
from torch.utils.data import BatchSampler, IterableDataset

from foreload._libraries import is_accelerate
from foreload._torch import TorchDataLoader, index_sampler
from foreload.epochs.loader.accelerate import keep_states, pass_on_epochs
from foreload.epochs.loader.own_options import set_group
from foreload.epochs.loader.stateful import StatefulSource
from foreload.errors import warn_user
from foreload.machine import granted_cores
from foreload.order.shuffle import ShuffledStream
from foreload.order.skip import Skip
from foreload.workers.crew import Crew
from foreload.workers.spec import is_left_to_torch

if TYPE_CHECKING:
    from foreload.device.ahead import LoopPosition, MovedAhead
    from foreload.epochs.base import Epoch
    from foreload.record.recorder import Watch

__all__ = ["AdaptableLoader", "WorkerCount", "given_workers", "origin_of"]

T_co = TypeVar("T_co", covariant=True)

# The modules that build a loader of torch's from another one, and the function there that does it.
_BUILDERS = {
    "accelerate.data_loader": "prepare_data_loader",
    "ray.train.torch.train_loop_utils": "prepare_data_loader",
    "ray.train.v2.torch.train_loop_utils": "prepare_data_loader",
}

# The modules that load the states of all loaders with the checkpoint of a training, and reset their iterators.
_LIGHTNING = ("lightning.pytorch.utilities.combined_loader", "pytorch_lightning.utilities.combined_loader")

# The method of torch's that derived classes may replace by one that makes iterators of torch's.
_MAKES = "_get_iterator"

# How many batches are over by a checkpoint of SpeechBrain; its patch of torch's iterators passes over them.
_SPEECHBRAIN_OVER = "_speechbrain_recovery_skip_to"


class WorkerCount(int):
    """A loader's number of workers, which knows the loader.

    It is pickled as a plain int.

    Attributes:
        is_auto: whether the number was left to the loader.
    """

    def __new__(cls, count: int, loader: AdaptableLoader[Any], *, is_auto: bool) -> Self:
        """Return ``count`` as the number of workers of ``loader``."""
        self = super().__new__(cls, count)
        self._loader = weakref.ref(loader)
        self.is_auto = is_auto
        return self

    _loader: weakref.ref[AdaptableLoader[Any]]
    is_auto: bool

    @property
    def loader(self) -> AdaptableLoader[Any] | None:
        """The loader, if it is still there."""
        return self._loader()

    def __reduce__(self) -> Any:
        """Pickle the number alone."""
        return int, (int(self),)


# Of a number that is pickled as one, torch.load(weights_only=True), its default, asks whether int may be called.
torch.serialization.add_safe_globals([int])


def origin_of(num_workers: Any, dataset: Any, collate_fn: Any) -> Any:
    """Return the loader whose attributes these arguments are; None if they are a user's own.

    A number of workers alone may well be copied by a user, for a loader that is like the other in nothing else.
    """
    origin = _loader_of(num_workers)
    is_it = origin is not None and origin.dataset is dataset and origin.collate_fn is collate_fn
    return origin if is_it else None


def given_workers(num_workers: Any, prefetch_factor: int | None) -> tuple[Any, int | None]:
    """Return both arguments as a user gave them, if they were copied from a loader that has set them since.

    The number that one loader has come to may be wrong for other samples, as if the user had given none.
    """
    if not isinstance(num_workers, WorkerCount):
        return num_workers, prefetch_factor
    if num_workers.loader is not None:
        return num_workers.loader.given_workers(prefetch_factor)
    return "auto" if num_workers.is_auto else int(num_workers), prefetch_factor


def _loader_of(num_workers: Any) -> AdaptableLoader[Any] | None:
    """Return the loader whose number of workers this is."""
    return num_workers.loader if isinstance(num_workers, WorkerCount) else None


class _RebuildsOurs(type):
    """The class of a class that stands for torch's DataLoader, but builds foreload's from foreload's."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not _Loader:  # a framework has derived a class of its own
            return super().__call__(*args, **kwargs)
        origin = _loader_of(kwargs.get("num_workers"))
        if origin is None:
            return TorchDataLoader(*args, **kwargs)
        return origin.rebuilt(inspect.signature(TorchDataLoader).bind(*args, **kwargs).arguments)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, TorchDataLoader)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, TorchDataLoader)


class _Loader(TorchDataLoader[Any], metaclass=_RebuildsOurs): ...


_Loader.__name__ = _Loader.__qualname__ = "DataLoader"


def _watch_frameworks() -> None:
    """Let the frameworks that are imported, with torch's class or ours in its place, build ours from ours.

    Called when a loader's number of workers is read, which they do before they build one.
    """
    for name, function in _BUILDERS.items():
        module = sys.modules.get(name)
        builds = None if module is None else vars(module).get("DataLoader")
        if module is None or builds is _Loader:
            continue
        if builds is TorchDataLoader or (isinstance(builds, type) and issubclass(builds, AdaptableLoader)):
            vars(module)["DataLoader"] = _Loader
            if is_accelerate(module):
                keep_states(module, lambda count: _loader_of(count) is not None)
                pass_on_epochs(module)
        elif hasattr(module, function) and name not in _unknown:
            _unknown.add(name)
            warn_user(
                f"this version of {name.partition('.')[0]} builds loaders in a way that foreload does not know: "
                f"{name}.{function}() may return a DataLoader of torch's, without cache=, on_error=, seed= and so "
                "on. To get a foreload loader: loader = foreload.from_torch(prepared, cache=..., on_error=...)"
            )


_unknown: set[str] = set()


def _is_set_by_lightning() -> bool:
    """Whether code of Lightning's sets an attribute of a loader, whose setter asks this."""
    caller = sys._getframe(2)
    while caller.f_code.co_name == "__setattr__" and caller.f_back is not None:  # torch's, or a derived class's
        caller = caller.f_back
    return caller.f_globals.get("__name__") in _LIGHTNING


def _of_all_ranks(dataset: Any) -> Any:
    """Return a foreload stream with all samples: only Accelerate puts it into a new loader, and it splits it."""
    if isinstance(dataset, ShuffledStream):
        return dataset.of_all_ranks()
    within: Any = dataset if isinstance(dataset, IterableDataset) else None
    if isinstance(stream := getattr(within, "dataset", None), ShuffledStream):
        within.dataset = stream.of_all_ranks()
    return dataset


class AdaptableLoader(StatefulSource[T_co]):
    """A loader that stays what it is where a framework adapts it."""

    _fl_moving: weakref.ref[MovedAhead] | None = None  # the epoch that copies batches to a device
    _fl_place: LoopPosition | None = None  # of the loop in it

    def __init_subclass__(cls, **options: Any) -> None:
        """Derive torchdata's ``StatefulDataLoader`` from torch's class, also if ours was put in its place.

        It has code of its own for all that ours does, also for the constructor.
        """
        super().__init_subclass__(**options)
        if cls.__module__.startswith("torchdata."):
            cls.__bases__ = tuple(
                TorchDataLoader if issubclass(base, AdaptableLoader) else base for base in cls.__bases__
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next iteration go on where ``state_dict`` was taken.

        The number and kind of workers may differ, for map-style datasets the batch size, and with ``seed=`` or
        torch's ``DistributedSampler`` the number of ranks: each remaining sample still comes exactly once (but for
        the few by which ranks are made equal), and no earlier one is loaded again. All ranks load the same state,
        that of rank 0 for instance. Iterable datasets and custom samplers go on from their own (or their
        iterator's) ``state_dict``; without one, earlier samples are read, or drawn, again, and a warning says so.
        A map-style dataset's ``state_dict`` is saved and restored in every worker. If workers have parts of the
        data, or a state of the dataset, their number must be the same.
        What torch's own code loads (data pipes) has no state: ``state_dict`` warns, and returns an empty dict.
        An empty dict is nothing to go on from, as in torchdata's loader: the next iteration is a new epoch.

        Raises:
            ValueError: the state is not one of a loader like this one; the message names the field.
        """
        try:
            self._fl_load_state(state_dict)
        except ValueError as error:
            # Nobody asked for it: Lightning saves and loads the states of all loaders that have one.
            caller = sys._getframe(1)
            while caller.f_code.co_name == "load_state_dict" and caller.f_back is not None:
                caller = caller.f_back  # of derived classes
            if caller.f_globals.get("__name__") not in _LIGHTNING:
                raise
            self._fl_resumed = None
            warn_user(f"Lightning's checkpoint does not fit the loader, so its epoch begins anew: {error}")

    def _fl_begin_epoch(self, watch: Watch) -> Epoch:
        over = vars(self).get(_SPEECHBRAIN_OVER)
        if over is None:
            return super()._fl_begin_epoch(watch)
        skip, vars(self)[_SPEECHBRAIN_OVER] = self._fl_skip, None
        over = 0 if isinstance(self.dataset, IterableDataset) else over  # SpeechBrain leaves its place to it
        self._fl_skip = (*skip, Skip(steps=range(over)))
        try:
            return super()._fl_begin_epoch(watch)
        finally:
            self._fl_skip = skip

    @property
    def num_workers(self) -> int:
        """The number of workers at present."""
        _watch_frameworks()  # one of them may be about to build a loader from the attributes of this one
        if "num_workers" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no num_workers: its constructor did not set it")
        count: int = vars(self)["num_workers"]
        return count

    @num_workers.setter  # kept in the loader's __dict__, where Lightning reads it
    def num_workers(self, count: int) -> None:
        is_users = vars(self).get("_DataLoader__initialized", False)  # or the constructor's
        if is_users and (self._fl_auto_workers or count != self._fl_count):
            self._fl_auto_workers = False
            self._fl_crew.start_over()
        self._fl_set_count(count)

    def _fl_set_count(self, count: int) -> None:
        is_auto = vars(self).get("_fl_auto_workers")  # None: a derived class has not called the constructor yet
        vars(self)["num_workers"] = count if is_auto is None else WorkerCount(count, self, is_auto=is_auto)

    def _fl_first_count(self, dataset: Any) -> int:
        """Return the number of workers before anything has been measured."""
        if is_left_to_torch(dataset, None) or getattr(type(self), _MAKES) is not getattr(StatefulSource, _MAKES):
            return 0
        workers = self._foreload.workers
        if workers == "ray" or (isinstance(dataset, IterableDataset) and workers != "processes"):
            return 1  # one stream, read ahead; or until the Ray cluster is asked
        return granted_cores()

    def given_workers(self, prefetch_factor: int | None) -> tuple[Any, int | None]:
        """Return ``num_workers`` and ``prefetch_factor`` as this loader was given them, before it set them."""
        is_own = prefetch_factor == self.prefetch_factor and not self._fl_prefetch_given
        return "auto" if self._fl_auto_workers else int(self.num_workers), None if is_own else prefetch_factor

    def rebuilt(self, arguments: dict[str, Any]) -> Self:
        """Return a loader like this one, with these arguments of torch's DataLoader instead of its own.

        For frameworks that put a sampler or a dataset of their own into a loader. Both loaders share their cache
        and what is recorded, so that this one's :meth:`foreload.DataLoader.report` tells of the other.

        Args:
            arguments: by name, with ``dataset`` among them; ``num_workers`` stays as this loader was given it.
        """
        arguments = {**arguments, "dataset": _of_all_ranks(arguments["dataset"])}
        new = copy.copy(self)  # with what a derived class has put there
        vars(new).pop("_DataLoader__initialized")
        count, ahead = self.given_workers(arguments.get("prefetch_factor", self.prefetch_factor))
        own = {**vars(self.own_options()), "skip": self._fl_skip}
        own |= {"persistent_workers": self.persistent_workers, "in_order": self.in_order}  # which Ray leaves out
        arguments |= {"num_workers": count, "prefetch_factor": ahead}
        self._fl_constructor()(new, **{**own, **arguments, "group": None})  # refused beside a sampler
        set_group(new, self.own_options().group)
        new.go_on_from(self)
        batches: Any = new.batch_sampler
        for sampler in new.keyed_samplers():
            if type(batches) is not BatchSampler and not hasattr(batches, "set_epoch"):
                batches.set_epoch = sampler.set_epoch  # Accelerate looks for it here, but not deeper than it nests
        return new

    def go_on_from(self, origin: AdaptableLoader[Any]) -> None:
        """Share what is open and recorded with the loader that a framework replaces by this one."""
        self._fl_recorder = origin._fl_recorder
        self._fl_errors, self._fl_restarts = origin._fl_errors, origin._fl_restarts
        self._fl_crew = Crew(self._fl_recorder, weakref.WeakMethod(self._fl_set_count))
        self._fl_epoch, self._fl_published = origin._fl_epoch, origin._fl_published
        if self.dataset is origin.dataset:
            self._fl_crew.choice = origin._fl_crew.choice
            self._fl_open, self._fl_memory = origin._fl_open.shared(), origin._fl_memory
            if self._fl_auto_workers:
                self._fl_set_count(origin.num_workers)
        self._fl_resumed = origin._fl_resumed if index_sampler(self) is index_sampler(origin) else None
        if self._fl_resumed is not origin._fl_resumed:
            warn_user("a framework has put another sampler into the loader: call load_state_dict() after that")

    def _fl_constructor(self) -> Callable[..., None]:
        """Return the constructor of :class:`foreload.DataLoader`; a derived class may have other arguments."""
        raise NotImplementedError

    @property
    def _iterator(self) -> Any:
        # Where torch keeps the iterator of persistent workers.
        return self.__dict__.get("_iterator")

    @_iterator.setter
    def _iterator(self, iterator: Any) -> None:
        self.__dict__["_iterator"] = iterator
        if iterator is not None or "_fl_crew" not in vars(self):
            return
        if _is_set_by_lightning():  # its way to end a loop's workers
            moving = None if self._fl_moving is None else self._fl_moving()
            if moving is not None:
                moving.close()
            self._fl_end_epochs()
        else:  # as in torch, persistent workers end with the last epoch that has them
            self._fl_crew.leave_pool()
            self._fl_open.base_seed = None

    @_iterator.deleter
    def _iterator(self) -> None:
        self._iterator = None

    def _fl_end_epochs(self) -> None:
        """End what runs for epochs, whoever still holds them, and persistent workers."""
        for epoch in list(self._fl_running):
            epoch.close()
        self._fl_crew.close()
        self._fl_open.base_seed = None
