"""The position of a loop in an epoch, from which a state is taken and another loop goes on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from weakref import WeakMethod

import torch
from torch.utils.data import DistributedSampler

from foreload._torch import draw_seed
from foreload.batch.stream import written
from foreload.batch.worker_progress import BEGUN, WorkerProgress
from foreload.checks import known_length
from foreload.epochs.loader.order import OrderSpec
from foreload.epochs.turn import Turn
from foreload.order.batches import coming_draw, is_shared
from foreload.order.epoch_order import EpochOrder
from foreload.order.generator_states import generator_text, kept_generators, set_generator
from foreload.order.known import KNOWN_SAMPLERS
from foreload.order.mixture import MixtureSampler
from foreload.order.mosaic import is_streaming
from foreload.order.own_state import has_state
from foreload.order.ranks import Router
from foreload.order.resume import BEGINNING, BatchBounds, Given, Start, read_whole
from foreload.order.samplers import KeyedSampler
from foreload.order.skip import left_out_of

__all__ = ["Cursor", "coming", "description"]

T = TypeVar("T")


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
        moving: held while the loop goes on by a batch, and while another thread takes a state.
        mark_delivered: call it with the number of a batch, counted from 0, when the loop has it.
        leaves_out: whether the batch of a stream with this number is left out; None: none is.
    """

    # Of the batch that the loop is about to get: its number, worker and progress, and whose turn is next.
    _coming: tuple[int, int, WorkerProgress, int] | None = None

    def __init__(
        self, spec: OrderSpec, epoch: int, state: dict[str, Any] | None = None, router: Router | None = None
    ) -> None:
        self.epoch = epoch
        self.finished = False
        self.streams: dict[int, WorkerProgress] = {}
        self.turn = 0
        self.live: Callable[[], Any] | None = None
        self.settle: WeakMethod[Callable[[], None]] | None = None
        self.unheard: set[int] = set()
        self.moving = Turn()
        # The number that a MosaicML ``StreamingDataset`` gives this epoch, if it begins it.
        self.stream_epoch = spec.dataset.next_epoch if is_streaming(spec.dataset) else 0
        self._spec = spec
        self._is_stream = is_stream = spec.is_stream
        self._sampler_epoch = spec.sampler_epoch
        start = spec.beginning
        has_begun = state is not None and state["begun"] and not state["finished"]
        # Whether a base seed is drawn; persistent workers keep theirs.
        self._draws_seed = spec.base_seed is None if state is None else state["draws_seed"]
        self.again = state is not None and state["finished"]
        if state is not None:
            start = self._start(state, has_begun=has_begun)
            self.streams = {
                worker: WorkerProgress(0 if self.again and is_stream else since, own, tuple(replay))
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
        self._bounds = BatchBounds(1) if is_stream else self.order.bounds
        # (With a batch sampler of the user's, positions are batches.)
        total = None if spec.batch_size is None and spec.batched else spec.positions
        own = self._given = Given(start, self._bounds, self.order.each, self.order.left_out, total)
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

    def _start(self, state: dict[str, Any], *, has_begun: bool) -> Start:
        return Start(
            [(begin, end) for begin, end in state["given"]] if has_begun else [],
            read_whole(state["drawn"]),
            begun=state["order_drawn"],
            over=state["finished"],
            drew=self._draws_seed and self._spec.generator is None,
            seeds=self._spec.generator if self._draws_seed else None,
        )

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

    def expect(self, number: int, worker: int, state: Any, turn: int, indices: Any = None) -> None:
        """Note a worker's batch, which the loop is about to get; :meth:`mark_come` makes it part of the state.

        Args:
            number: the batch's, counted from 0.
            worker: the worker's number.
            state: of its dataset after the batch, if it was taken.
            turn: the worker that delivers the next batch.
            indices: of the batch, if the dataset is not iterable.
        """
        with self.moving.lock:
            self._move()  # past the batch before, if the loop was interrupted when it was to get that
            self._coming = number, worker, self.streams.get(worker, BEGUN).after(state, indices), turn

    def mark_come(self, number: int) -> None:
        """Call it for a batch that was expected, in place of ``mark_delivered``: no state shows half of that."""
        with self.moving.lock:
            self._given.add(number)
            self._move()

    def mark_end(self, worker: int, state: Any) -> None:
        """Note that a worker's stream is over, in this state if it has one."""
        with self.moving.lock:
            self._move()
            if state is not None:
                self.streams[worker] = WorkerProgress(0, state)

    def _move(self) -> None:
        if self._coming is not None:
            _, worker, self.streams[worker], self.turn = self._coming
            self._coming = None

    def _move_if_come(self) -> None:
        """Do the other half of :meth:`mark_come` if this is within it: in a signal's handler."""
        if self._coming is not None and self._coming[0] in self._given:
            self._move()

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
        return self._bounds.batches(-(-self._given.count // self.order.each))

    def restore(self, restore: Callable[[], T]) -> T:
        """Restore the state of a dataset that the calling thread loads from, and return what ``restore`` returns.

        If that sets torch's generator to where it was when the epoch before ended, the base seed of this one has
        still to be drawn from it. (A stream that draws apart from the loop sets generators of its own.)
        """
        is_apart = self._is_stream and self.is_seeded
        if is_apart or not (self.again and self._draws_seed and self._spec.generator is None):
            return restore()
        before = torch.get_rng_state()
        restored = restore()
        if not torch.equal(before, torch.get_rng_state()):
            draw_seed()
        return restored

    @property
    def _present_epoch(self) -> int | None:
        is_torchs = type(self.order.item_sampler) is DistributedSampler and self._sampler_epoch is not None
        return self.order.epoch if is_torchs else self._sampler_epoch

    def _left_out_steps(self, start: Start) -> Callable[[int], bool] | None:
        number = self.epoch if self._sampler_epoch is None else self._sampler_epoch
        left_out = left_out_of(self._spec.skip, number)
        before = start.prefix
        return None if left_out is None else lambda batch: left_out.has_step(before + batch)

    def state(self) -> dict[str, Any]:
        """Return the state from which another cursor goes on after the delivered batches."""
        self._settle()  # before, for it may wait for a batch that the loop gets
        with self.moving.lock:
            return self._state()

    def _state(self) -> dict[str, Any]:
        self._move_if_come()
        self.order.look_again()
        return {
            "epoch": self.epoch,
            "sampler_epoch": self._present_epoch,
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
            "streams": self._listed_streams(),
            "turn": self.turn,
        }

    def _settle(self) -> None:
        settle = None if self.settle is None else self.settle()
        if settle is not None:
            settle()

    def listed_streams(self) -> list[Any]:
        """Return the progress of each worker in plain values."""
        self._settle()
        with self.moving.lock:
            self._move_if_come()
            return self._listed_streams()

    def _listed_streams(self) -> list[Any]:
        unknown = self.unheard if self.again else self.unheard.difference(self.streams)
        if unknown and has_state(self._spec.dataset):
            raise RuntimeError(
                "the epoch was closed before all workers had told the state of their copies of the dataset, so it "
                "cannot be saved: begin another epoch"
            )
        if self.live is not None:
            self.streams[0] = WorkerProgress(0, self.live())
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
        else coming_draw(
            spec.sampler,
            spec.generator,
            drew=draws_seed,
            twice=spec.asks_twice and draws_seed,
            ended=spec.beginning.ended,
        ),
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
