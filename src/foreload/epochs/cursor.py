"""How far an epoch has come, and how another loader goes on from there."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sized
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from foreload._torch import draw_seed
from foreload.batch.assembly import count
from foreload.datasets.mosaic import is_streaming, load_streaming_state, streaming_state
from foreload.order.batches import ArrayBatches, batches
from foreload.order.resume import BEGINNING, Given, Start
from foreload.protocol import ArraySampler

if TYPE_CHECKING:
    from foreload.loader import DataLoader
    from foreload.record.recorder import Watch


__all__ = ["Order", "resume", "save"]


class Order(Iterator[Any]):
    """The indices of an epoch's batches, and the seed of its randomness, drawn as torch draws them.

    Args:
        loader: whose order.
        epoch: the number of the epoch.
        state: of an epoch that was interrupted, from :meth:`state`, to go on with.
        watch: watches the epoch.

    Attributes:
        finished: whether the epoch is over.
        streams: of an iterable dataset: for each worker, how many batches it has given and its state after them.
        turn: the worker that gives the next one.
        mark_delivered: notes that a batch, the how-manieth that was asked for from 0, is with the loop.
        loop: takes note of what drawing samples takes.
        memory: what the loader may take.
        skips: whether samples that fail are left out of their batches.
        store: of its cache.
        stream_epoch: how a MosaicML ``StreamingDataset`` numbers this epoch, if it begins it.
    """

    def __init__(self, loader: DataLoader[Any], epoch: int, state: dict[str, Any] | None, watch: Watch) -> None:
        self.epoch = epoch
        self.watch = watch
        self.loop = watch.loop
        self.finished = False
        self.streams: dict[int, tuple[int, Any]] = {}
        self.turn = 0
        self.stream_epoch = loader.dataset.next_epoch if is_streaming(loader.dataset) else 0  # type: ignore[attr-defined]
        self._sampler = loader._index_sampler
        told = loader.dataset if isinstance(loader.dataset, IterableDataset) else self._sampler
        self._sampler_epoch = getattr(getattr(told, "sampler", told), "epoch", None)
        start = BEGINNING
        if state is not None:
            # (A stream has no positions, only its own state.)
            is_stream = isinstance(loader.dataset, IterableDataset)
            start = (
                BEGINNING
                if is_stream
                else Start([(begin, end) for begin, end in state["given"]], state["drawn"], state["drew"])
            )
            self.streams = {worker: (given, own) for worker, given, own in state["streams"]}
            self.turn = state["turn"]
            if loader.generator is not None and state["generator"] is not None:
                loader.generator.set_state(state["generator"])
        self._generator_state = None if loader.generator is None else loader.generator.get_state()
        router = None if loader._cache is None else loader._cache.router
        self._indices = batches(loader, router, start)
        self._given = Given(start, self._indices.size, getattr(self._indices, "each", 1))
        self.mark_delivered: Callable[[int], None] = self._given.add
        # Torch's persistent workers keep the seed that they were started with.
        kept = loader._base_seed
        if state is not None and loader.generator is None:
            self.base_seed = state["base_seed"]
        else:
            self.base_seed = draw_seed(loader.generator) if kept is None else kept
        if loader.persistent_workers:
            loader._base_seed = self.base_seed
        seed, number = (
            (self.base_seed, 0 if kept is None else epoch) if loader.seed is None else (loader.seed, epoch)
        )
        self.key = (seed, number & 0xFFFFFFFF) if state is None else tuple(state["key"])
        self._drew = kept is None and loader.generator is None
        self.memory = loader._memory
        self.store = None if loader._cache is None else loader._cache.store
        self.skips = loader.on_error == "skip" and not isinstance(loader.dataset, IterableDataset)
        self._errors, self._max_errors = loader.errors, loader.max_errors
        self._most_errors = len(self._errors) + self._max_errors
        self._asked = 0

    def __next__(self) -> Any:
        """Give the indices of the next batch."""
        if self._indices.ready:
            indices = next(self._indices)
        else:
            self.loop.mark()
            indices = next(self._indices)
            self.loop.ordered(count(indices) + self._indices.ready * self._indices.size)
        self._asked += 1
        return indices

    @property
    def num_drawn(self) -> int:
        """Count the batches that were asked for."""
        return self._asked

    @property
    def failed(self) -> int:
        """Count the samples of all epochs that failed."""
        return len(self._errors)

    def check_errors(self) -> None:
        """Raise RuntimeError where too many samples of this epoch failed."""
        if len(self._errors) > self._most_errors:
            raise RuntimeError(
                f"{self._max_errors + 1} samples failed in this epoch, more than max_errors = {self._max_errors}; "
                f"the last was {self._errors[-1]}\n{self._errors[-1].traceback}"
            )

    def state(self) -> dict[str, Any]:
        """Give what another order needs to go on after the batches that are with the loop."""
        return {
            "epoch": self.epoch,
            "sampler_epoch": self._sampler_epoch,
            "finished": self.finished,
            "given": [list(span) for span in self._given.ranges()],
            "drawn": self._indices.state(self._given.first),
            "drew": self._drew,
            "base_seed": self.base_seed,
            "key": list(self.key),
            "generator": self._generator_state,
            "streams": [[worker, given, own] for worker, (given, own) in self.streams.items()],
            "turn": self.turn,
        }

    @property
    def is_array(self) -> bool:
        """Whether the indices come as arrays that foreload made, not from code of the user's."""
        return isinstance(self._indices, ArrayBatches)

    @property
    def ready(self) -> int:
        """How many batches can be asked for ahead of use with no effect that anyone could notice."""
        ready: int = self._indices.ready
        return ready

    @property
    def draw_only_ready(self) -> bool:
        """Whether to ask ahead of use for what is ``ready`` only.

        A generator of the user's is then, also after a loop that was left early, where torch leaves it without
        workers, however many there are.
        """
        return isinstance(self._indices, ArrayBatches) and self._indices.shared

    def __len__(self) -> int:
        """Count the batches, where the sampler knows."""
        return len(self._sampler)


def save(loader: DataLoader[Any], order: Order) -> dict[str, Any]:
    """Give the state of a loader that is at ``order``."""
    dataset: Any = loader.dataset
    told = {}
    if is_streaming(dataset):
        samples = sum(own["samples"] for _, own in order.streams.values() if own is not None)
        told["dataset"] = streaming_state(dataset, samples, order.stream_epoch)
    return {
        "foreload": 1,
        "seed": loader.seed,
        "samples": len(loader.dataset) if isinstance(loader.dataset, Sized) else None,
        "workers": _streams(loader),
        **order.state(),
        **told,
    }


def resume(loader: DataLoader[Any], state: Any) -> dict[str, Any] | None:
    """Set a loader to the epoch of ``state``; give what its next order needs, None where that begins anew.

    Raises:
        ValueError: the state is not one of a loader like this one.
    """
    if not isinstance(state, dict) or state.get("foreload") != 1:
        raise ValueError("state_dict must be one that foreload.DataLoader.state_dict() gave")
    own = {"seed": loader.seed}
    if is_streaming(loader.dataset):
        pass  # it deals what is left anew
    elif isinstance(loader.dataset, IterableDataset):
        own["workers"] = _streams(loader)
    elif isinstance(loader.dataset, Sized):
        own["samples"] = len(loader.dataset)
    for name, value in own.items():
        if state.get(name, value) != value:
            raise ValueError(f"the state is of a loader with {name} = {state[name]!r}, but this one has {value!r}")
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if isinstance(sampler, ArraySampler) and "drawn" in state:
        sampler.restore_drawn(state["drawn"])
    if is_streaming(loader.dataset) and "dataset" in state:
        load_streaming_state(loader.dataset, state["dataset"], finished=state["finished"])
        state = {**state, "streams": [], "turn": 0}
    if state["finished"]:
        loader.set_epoch(state["epoch"] + 1)
        return None
    loader._epoch = state["epoch"]
    if state.get("sampler_epoch") is not None:
        for sampler in (loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None), loader.dataset):
            tell = getattr(sampler, "set_epoch", None)
            if tell is not None:
                tell(state["sampler_epoch"])
    if "drawn" not in state:
        return None  # nothing had been given
    if any(given and known is None for _, given, known in state["streams"]):
        warnings.warn(
            f"{type(loader.dataset).__name__} has no state_dict() and load_state_dict(): what it gave before is "
            "read again",
            stacklevel=3,
        )
    return dict(state)


def _streams(loader: DataLoader[Any]) -> int:
    """Count the parts in which an iterable dataset is read."""
    return max(1, loader.num_workers)
