"""The position of a loop in an epoch, its checkpoint, and resuming from that."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import IterableDataset

from foreload._torch import draw_seed
from foreload.order.epoch_order import EpochOrder
from foreload.order.mosaic import is_streaming, load_streaming_state, streaming_state
from foreload.order.ranks import Router
from foreload.order.resume import BEGINNING, Given, Start
from foreload.protocol import ArraySampler

__all__ = ["Cursor", "OrderSpec", "Resumption", "resume", "save"]


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
    """

    dataset: Any
    sampler: Any
    generator: torch.Generator | None
    seed: int | None
    num_streams: int
    base_seed: int | None = None

    @property
    def is_stream(self) -> bool:
        """Whether the dataset is iterable, so that samples have no indices."""
        return isinstance(self.dataset, IterableDataset)


class Cursor:
    """The position of the loop in an epoch's order, and the seeds of that epoch.

    Args:
        spec: the sources of the order.
        epoch: the number of the epoch.
        state: the state of an interrupted epoch, from :meth:`state`, to go on with.
        router: swaps samples between ranks.

    Attributes:
        order: the indices of the epoch's batches.
        base_seed: the base seed of its workers, drawn as torch draws it.
        key: the key of native random numbers: a seed and the number of the epoch.
        is_seeded: whether that seed is the loader's own.
        finished: whether the epoch is over.
        streams: for an iterable dataset, each worker's number of delivered batches and its state after them.
        turn: the worker that delivers the next batch of an iterable dataset.
        mark_delivered: call it with the number of a batch, counted from 0, when the loop has it.
    """

    def __init__(
        self, spec: OrderSpec, epoch: int, state: dict[str, Any] | None = None, router: Router | None = None
    ) -> None:
        self.epoch = epoch
        self.finished = False
        self.streams: dict[int, tuple[int, Any]] = {}
        self.turn = 0
        # The number that a MosaicML ``StreamingDataset`` gives this epoch, if it begins it.
        self.stream_epoch = spec.dataset.next_epoch if is_streaming(spec.dataset) else 0
        numbered = spec.dataset if spec.is_stream else spec.sampler
        self._sampler_epoch = getattr(getattr(numbered, "sampler", numbered), "epoch", None)
        start = BEGINNING
        if state is not None:
            if not spec.is_stream:  # which has no positions, only its own state
                given = [(begin, end) for begin, end in state["given"]]
                start = Start(given, state["drawn"], state["drew"])
            self.streams = {worker: (given, own) for worker, given, own in state["streams"]}
            self.turn = state["turn"]
            if spec.generator is not None and state["generator"] is not None:
                spec.generator.set_state(state["generator"])
        self._generator_state = None if spec.generator is None else spec.generator.get_state()
        self.order = EpochOrder(spec.sampler, generator=spec.generator, router=router, start=start)
        self._given = Given(start, self.order.size, self.order.each)
        self.mark_delivered: Callable[[int], None] = self._given.add
        if state is not None and spec.generator is None:
            self.base_seed = state["base_seed"]
        else:
            self.base_seed = draw_seed(spec.generator) if spec.base_seed is None else spec.base_seed
        self.is_seeded = spec.seed is not None
        seed, number = (spec.seed, epoch) if spec.seed is not None else (self.base_seed, 0)
        if spec.seed is None and spec.base_seed is not None:
            number = epoch  # persistent workers draw other numbers in each epoch
        self.key: tuple[int, int] = (seed, number & 0xFFFFFFFF)
        if state is not None:
            key_seed, key_epoch = state["key"]
            self.key = (key_seed, key_epoch)
        self._drew = spec.base_seed is None and spec.generator is None

    def state(self) -> dict[str, Any]:
        """Return the state from which another cursor goes on after the delivered batches."""
        return {
            "epoch": self.epoch,
            "sampler_epoch": self._sampler_epoch,
            "finished": self.finished,
            "given": [list(span) for span in self._given.ranges()],
            "drawn": self.order.drawn_from(self._given.first),
            "drew": self._drew,
            "base_seed": self.base_seed,
            "key": list(self.key),
            "generator": self._generator_state,
            "streams": [[worker, given, own] for worker, (given, own) in self.streams.items()],
            "turn": self.turn,
        }


def save(spec: OrderSpec, cursor: Cursor) -> dict[str, Any]:
    """Return the state of a loader at ``cursor``."""
    dataset = spec.dataset
    own = {}
    if is_streaming(dataset):
        samples = sum(state["samples"] for _, state in cursor.streams.values() if state is not None)
        own["dataset"] = streaming_state(dataset, samples, cursor.stream_epoch)
    return {
        "foreload": 1,
        "seed": spec.seed,
        "samples": len(dataset) if isinstance(dataset, Sized) else None,
        "workers": spec.num_streams,
        **cursor.state(),
        **own,
    }


@dataclass(frozen=True)
class Resumption:
    """The point at which a loader goes on.

    Attributes:
        epoch: the number of its next epoch.
        sampler_epoch: the epoch to set in its samplers; None: leave them alone.
        state: the state for the next :class:`Cursor`; None: the epoch starts from its beginning.
    """

    epoch: int
    sampler_epoch: int | None = None
    state: dict[str, Any] | None = None


def resume(spec: OrderSpec, state: Any) -> Resumption:
    """Return the point at which a loader goes on from a state that :func:`save` returned.

    Raises:
        ValueError: the state is not one of a loader like this one.
    """
    if not isinstance(state, dict) or state.get("foreload") != 1:
        raise ValueError("state_dict must come from foreload.DataLoader.state_dict()")
    own: dict[str, Any] = {"seed": spec.seed}
    if is_streaming(spec.dataset):
        pass  # it divides the remaining samples between any number of workers
    elif spec.is_stream:
        own["workers"] = spec.num_streams
    elif isinstance(spec.dataset, Sized):
        own["samples"] = len(spec.dataset)
    for name, value in own.items():
        if state.get(name, value) != value:
            raise ValueError(f"the state is of a loader with {name} = {state[name]!r}, but this one has {value!r}")
    sampler = getattr(spec.sampler, "sampler", spec.sampler)
    if isinstance(sampler, ArraySampler) and "drawn" in state:
        sampler.restore_drawn(state["drawn"])
    if is_streaming(spec.dataset) and "dataset" in state:
        load_streaming_state(spec.dataset, state["dataset"], finished=state["finished"])
        state = {**state, "streams": [], "turn": 0}
    if state["finished"]:
        return Resumption(state["epoch"] + 1, state["epoch"] + 1)
    if "drawn" not in state:
        return Resumption(state["epoch"], state.get("sampler_epoch"))  # nothing had been delivered
    if any(given and known is None for _, given, known in state["streams"]):
        warnings.warn(
            f"{type(spec.dataset).__name__} has no state_dict() and load_state_dict(): the samples that were "
            "delivered before are read again and skipped",
            stacklevel=3,
        )
    return Resumption(state["epoch"], state.get("sampler_epoch"), dict(state))
