"""The position of a loop in an epoch, from which a state is taken and another loop goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from weakref import WeakMethod

import torch
from torch.utils.data import DistributedSampler, IterableDataset

from foreload._torch import draw_seed, item_sampler
from foreload.batch.stream import written
from foreload.batch.worker_progress import Progress
from foreload.checks import is_instance, known_length
from foreload.order.ahead import Lookahead
from foreload.order.batches import coming_draw, is_shared
from foreload.order.epoch_order import EpochOrder
from foreload.order.generator_states import generator_text, kept_generators, set_generator
from foreload.order.known import KNOWN_SAMPLERS
from foreload.order.mixture import MixtureSampler
from foreload.order.mosaic import is_streaming
from foreload.order.ranks import Router
from foreload.order.resume import AFTER_LEFT, BEGINNING, Given, Start, has_state
from foreload.order.samplers import KeyedSampler, num_ranks
from foreload.order.skip import Skip, left_out_of

__all__ = ["Cursor", "OrderSpec", "coming", "description"]

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
        left: whether the loop has left the latest epoch in its middle.
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
    left: bool = False
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


class Cursor:
    """The position of the loop in an epoch's order, and the seeds of that epoch.

    Args:
        spec: the sources of the order.
        epoch: the number of the epoch.
        state: the state of an interrupted epoch, or of one that had not begun, to go on with.
        router: swaps samples between ranks.

    Attributes:
        order: the indices of the epoch's batches.
        base_seed: the base seed of its workers, drawn as torch draws it.
        key: the key of native random numbers: a seed and the number of the epoch.
        is_seeded: whether that seed is the loader's own.
        finished: whether the epoch is over.
        streams: how far each worker has come, if the dataset is iterable or has a state.
        again: whether that is the end of the epoch before this one.
        turn: the worker that delivers the next batch.
        live: returns the state of the dataset, if the calling thread loads.
        settle: waits until workers have told the states with which they begin.
        unheard: the workers that have not.
        mark_delivered: call it with the number of a batch, counted from 0, when the loop has it.
        leaves_out: whether the batch of a stream with this number is left out; None: none is.
    """

    def __init__(
        self, spec: OrderSpec, epoch: int, state: dict[str, Any] | None = None, router: Router | None = None
    ) -> None:
        self.epoch = epoch
        self.finished = False
        self.streams: dict[int, Progress] = {}
        self.turn = 0
        self.live: Callable[[], Any] | None = None
        self.settle: WeakMethod[Callable[[], None]] | None = None
        self.unheard: set[int] = set()
        # The number that a MosaicML ``StreamingDataset`` gives this epoch, if it begins it.
        self.stream_epoch = spec.dataset.next_epoch if is_streaming(spec.dataset) else 0
        self._spec = spec
        self._is_stream = is_stream = spec.is_stream
        self._sampler_epoch = spec.sampler_epoch
        start = AFTER_LEFT if spec.left else BEGINNING
        has_begun = state is not None and state["begun"] and not state["finished"]
        # Whether a base seed is drawn; persistent workers keep theirs.
        self._draws_seed = spec.base_seed is None if state is None else state["draws_seed"]
        self.again = state is not None and state["finished"]
        if state is not None:
            given = [(begin, end) for begin, end in state["given"]] if has_begun else []
            drew = self._draws_seed and spec.generator is None
            seeds = spec.generator if self._draws_seed else None
            over = state["finished"]
            start = Start(given, state["drawn"], begun=state["order_drawn"], over=over, drew=drew, seeds=seeds)
            self.streams = {
                worker: Progress(0 if self.again and is_stream else since, own, tuple(replay))
                for worker, since, own, replay in state["streams"]
                if own is not None or not self.again  # what has no state begins each epoch anew
            }
            self.turn = state["turn"] % max(1, spec.num_streams) if has_begun else 0  # there may be fewer workers
            if spec.generator is not None:
                set_generator(spec.generator, state["generator"])
        self._generator_state = None if spec.generator is None else generator_text(spec.generator)
        skip = partial(left_out_of, spec.skip, batched=spec.batched) if spec.skip else None
        self.order = EpochOrder(
            spec.sampler,
            generator=spec.generator,
            router=router,
            start=BEGINNING if is_stream else start,
            skip=None if is_stream else skip,
            number=epoch,
            lookahead=spec.lookahead,
        )
        size = 1 if is_stream else self.order.size
        # (With a batch sampler of the user's, positions are batches.)
        total = None if spec.batch_size is None and spec.batched else spec.positions
        self._positions_each = size * self.order.each
        own = self._given = Given(start, size, self.order.each, self.order.left_out, total)
        self.order.follow(lambda: own.first)
        self.mark_delivered: Callable[[int], None] = self._given.add
        self.is_seeded = spec.seed is not None
        self.leaves_out = self._left_out_steps(start) if is_stream and skip is not None else None
        self.base_seed = self._seed(state, has_begun=has_begun)
        if spec.asks_twice and self._draws_seed and not has_begun:
            self.order.ask_again()
        seed, number = (spec.seed, epoch) if spec.seed is not None else (self.base_seed, 0)
        if spec.seed is None and not self._draws_seed:
            number = epoch  # persistent workers draw other numbers in each epoch
        self.key: tuple[int, int] = (seed, number & 0xFFFFFFFF)
        if state is not None and has_begun:
            key_seed, key_epoch = state["key"]
            self.key = (key_seed, key_epoch)

    def _seed(self, state: dict[str, Any] | None, *, has_begun: bool) -> int:
        spec = self._spec
        if state is None:
            return draw_seed(spec.generator) if spec.base_seed is None else spec.base_seed
        # A user's generator was set back to where the epoch began; torch's own is where the loop has left it.
        is_drawn = (has_begun and spec.generator is None) or self.order.drew_seed
        if self._draws_seed and not is_drawn:
            draw_seed(spec.generator)
        seed: int = state["base_seed"]
        return seed

    @property
    def sampler(self) -> Any:
        """The source of indices."""
        return self._spec.sampler

    @property
    def length(self) -> int | None:
        """The number of the epoch's batches; None if only code of the user's knows it."""
        is_known = not self._is_stream and type(self.order.item_sampler) in KNOWN_SAMPLERS
        return len(self.order) if is_known else None

    @property
    def num_over(self) -> int:
        """The batches of the epoch that are over: delivered, in an earlier run too, or left out."""
        return -(-self._given.count // self._positions_each)

    def restore(self, restore: Callable[[], T]) -> T:
        """Restore the state of a dataset that the calling thread loads from, and return what ``restore`` returns.

        If that sets torch's generator to where it was when the epoch before ended, the base seed of this one has
        still to be drawn from it.
        """
        if not (self.again and self._draws_seed and self._spec.generator is None):
            return restore()
        before = torch.get_rng_state()
        restored = restore()
        if not torch.equal(before, torch.get_rng_state()):
            draw_seed()
        return restored

    def _left_out_steps(self, start: Start) -> Callable[[int], bool] | None:
        number = self.epoch if self._sampler_epoch is None else self._sampler_epoch
        left_out = left_out_of(self._spec.skip, number)
        before = start.prefix
        return None if left_out is None else lambda batch: left_out.has_step(before + batch)

    def state(self) -> dict[str, Any]:
        """Return the state from which another cursor goes on after the delivered batches."""
        return {
            "epoch": self.epoch,
            "sampler_epoch": self._sampler_epoch,
            "finished": False,
            "begun": True,
            "given": [list(span) for span in self._given.ranges()],
            # Else the loop's generators have not moved on for the order.
            "order_drawn": self.order.is_resumed or self.order.num_drawn > 0,
            "drawn": None if self._is_stream else self.order.drawn_from(self._given.first),
            "draws_seed": self._draws_seed,
            "base_seed": self.base_seed,
            "key": list(self.key),
            "generator": self._generator_state,
            "streams": self.listed_streams(),
            "turn": self.turn,
        }

    def listed_streams(self) -> list[Any]:
        """Return the progress of each worker in plain values."""
        settle = None if self.settle is None else self.settle()
        if settle is not None:
            settle()
        unknown = self.unheard if self.again else self.unheard.difference(self.streams)
        if unknown and has_state(self._spec.dataset):
            raise RuntimeError(
                "the epoch was closed before all workers had told the state of their copies of the dataset, so it "
                "cannot be saved: begin another epoch"
            )
        if self.live is not None:
            self.streams[0] = Progress(0, self.live())
        return [
            [worker, progress.since, written(progress.state), list(progress.replay)]
            for worker, progress in sorted(self.streams.items())
        ]


def coming(spec: OrderSpec, last: Cursor | None = None) -> dict[str, Any]:
    """Return the state of an epoch that is about to begin, with what it would draw now; nothing is drawn.

    Args:
        spec: the sources of the order.
        last: the epoch before it.
    """
    draws_seed = spec.base_seed is None
    base_seed = spec.base_seed
    if base_seed is None:
        source = torch.default_generator if spec.generator is None else spec.generator
        with kept_generators(source):
            base_seed = draw_seed(spec.generator)
    return {
        "epoch": 0,
        "sampler_epoch": spec.sampler_epoch,
        "finished": False,
        "begun": False,
        "given": [],
        "order_drawn": False,
        "drawn": None
        if spec.is_stream
        else coming_draw(spec.sampler, spec.generator, drew=draws_seed, twice=spec.asks_twice and draws_seed),
        "draws_seed": draws_seed,
        "base_seed": base_seed,
        "key": [base_seed, 0],
        "generator": None if spec.generator is None else generator_text(spec.generator),
        "streams": [] if last is None or not spec.keeps else last.listed_streams(),
        "turn": 0,
    }


def description(spec: OrderSpec) -> dict[str, Any]:
    """Return what a loader must have in common with the one whose state it loads."""
    inner: Any = getattr(spec.sampler, "sampler", spec.sampler)
    name = type(inner).__name__
    if type(inner) is DistributedSampler and not inner.shuffle:
        name = "SequentialSampler"  # whose order it shares
    has_seed = type(inner) in (DistributedSampler, KeyedSampler, MixtureSampler) and name != "SequentialSampler"
    return {
        "seed": spec.seed,
        "sampler_seed": int(inner.seed) if has_seed else None,
        "samples": None if spec.is_stream else known_length(spec.dataset),
        "positions": spec.positions,
        "sampler": None if spec.is_stream else name,
        "batch_sampler": type(spec.sampler).__name__ if spec.batched and not spec.is_stream else None,
        "batch_size": spec.batch_size,
        "ranks": getattr(inner, "num_replicas", 1) if is_shared(spec.sampler) else 1,
        "workers": spec.num_streams,
    }
