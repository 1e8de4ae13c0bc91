"""A position in an epoch: what the loop has been given, and how another loader goes on from there."""

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
    """What the order and the random numbers of a loader's epochs are drawn from.

    Attributes:
        dataset: as the user gave it.
        sampler: what is asked for indices: a batch sampler, or a sampler without batching.
        generator: torch's, as the user gave it.
        seed: foreload's own, if there is one.
        num_streams: the parts in which an iterable dataset is read.
        base_seed: of persistent workers, which keep the seed that they were started with.
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
        spec: what the order is drawn from.
        epoch: the number of the epoch.
        state: of an epoch that was interrupted, from :meth:`state`, to go on with.
        router: swaps samples between ranks.

    Attributes:
        order: the indices of the epoch's batches.
        base_seed: of its workers, drawn as torch draws it.
        key: of native random numbers: a seed and the number of the epoch.
        finished: whether the epoch is over.
        streams: of an iterable dataset: for each worker, how many batches it has given and its state after them.
        turn: the worker that gives the next batch of an iterable dataset.
        mark_delivered: call it with the number of a batch, counted from 0, when the loop has it.
    """

    def __init__(
        self, spec: OrderSpec, epoch: int, state: dict[str, Any] | None = None, router: Router | None = None
    ) -> None:
        self.epoch = epoch
        self.finished = False
        self.streams: dict[int, tuple[int, Any]] = {}
        self.turn = 0
        # How a MosaicML ``StreamingDataset`` numbers this epoch, if it begins it.
        self.stream_epoch = spec.dataset.next_epoch if is_streaming(spec.dataset) else 0
        epoch_teller = spec.dataset if spec.is_stream else spec.sampler
        self._sampler_epoch = getattr(getattr(epoch_teller, "sampler", epoch_teller), "epoch", None)
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
        seed, number = (spec.seed, epoch) if spec.seed is not None else (self.base_seed, 0)
        if spec.seed is None and spec.base_seed is not None:
            number = epoch  # persistent workers draw other numbers in each epoch
        self.key: tuple[int, int] = (seed, number & 0xFFFFFFFF)
        if state is not None:
            key_seed, key_epoch = state["key"]
            self.key = (key_seed, key_epoch)
        self._drew = spec.base_seed is None and spec.generator is None

    def state(self) -> dict[str, Any]:
        """Return what another cursor needs to go on after the batches that the loop has been given."""
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
    """Return the state of a loader that is at ``cursor``."""
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
    """Where a loader goes on.

    Attributes:
        epoch: the number of its next epoch.
        sampler_epoch: what its samplers are told; None: nothing.
        state: what the next :class:`Cursor` goes on from; None: the epoch begins anew.
    """

    epoch: int
    sampler_epoch: int | None = None
    state: dict[str, Any] | None = None


def resume(spec: OrderSpec, state: Any) -> Resumption:
    """Read a state that :func:`save` gave.

    Raises:
        ValueError: it is not one of a loader like this one.
    """
    if not isinstance(state, dict) or state.get("foreload") != 1:
        raise ValueError("state_dict must be one that foreload.DataLoader.state_dict() gave")
    own: dict[str, Any] = {"seed": spec.seed}
    if is_streaming(spec.dataset):
        pass  # it deals what is left anew
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
        return Resumption(state["epoch"], state.get("sampler_epoch"))  # nothing had been given
    if any(given and known is None for _, given, known in state["streams"]):
        warnings.warn(
            f"{type(spec.dataset).__name__} has no state_dict() and load_state_dict(): what it gave before is "
            "read again",
            stacklevel=3,
        )
    return Resumption(state["epoch"], state.get("sampler_epoch"), dict(state))
