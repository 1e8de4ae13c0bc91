"""The batches of a user's own sampler, iterated as torch iterates it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler

from foreload._torch import draw_seed
from foreload.checks import Indices, known_length
from foreload.errors import warn_user
from foreload.nested import snapshot
from foreload.order.generator_states import kept_generators, own_generator, sampler_states, set_sampler_states
from foreload.order.known import KNOWN_SAMPLERS, draws_at_once
from foreload.order.own_sampler.end import SamplerEnd
from foreload.order.own_sampler.setting import SamplerSetting
from foreload.order.own_state import has_state, is_same_state, state_of
from foreload.order.resume import BatchBounds, Ranges, Start
from foreload.order.skip import LeftOut

__all__ = ["SamplerBatches"]

# States of a sampler that are held at a time, beside those of batches on their way to the loop.
_MOST_STATES = 64

# Those of Python's own sequences, and of what a sampler made of them.
_PLAIN_ITERATORS = frozenset({type(iter([0])), type(iter((0,))), type(iter(range(0))), type(iter(range(1 << 70)))})


class SamplerBatches(Iterator[Any]):
    """The batches of a user's sampler or batch sampler, iterated as torch iterates it.

    If it or its iterator has ``state_dict`` and ``load_state_dict``, it resumes from its state. From any other
    sampler the first batches are drawn again, with the generators set back to their states of then.

    Args:
        sampler: the batch sampler of a DataLoader, or its sampler without batching.
        start: where to begin.
        skip: what to leave out; its steps are in ``left_out`` already.
        left_out: positions that are left out, to which this adds.

    Attributes:
        bounds: where batches begin, in samples, or in batches if the user's own sampler makes them.
        end: the states with which a sampler that has states ended the epoch.
        ready: batches that can be had without drawing from the sampler: none.
        drew_seed: whether the sampler's generator is past the base seed that a loader draws from it too.
    """

    ready = 0

    def __init__(self, sampler: Any, start: Start, skip: LeftOut | None, left_out: Ranges) -> None:
        self._sampler = sampler
        self._cuts = type(sampler) is BatchSampler
        self.bounds = BatchBounds(sampler.batch_size if self._cuts else 1)
        self._inner = sampler.sampler if self._cuts else sampler
        self._start = start
        self._skip = skip
        self._left_out = left_out
        self._taken = [*start.given, *left_out]
        self.delivered: Callable[[], int] = int  # the number of batches whose states are not needed any more
        self.drew_seed = self._is_replayed = False
        self._states: dict[int, Any] = {}
        self._asked = 0
        drawn = {} if start.drawn is None else start.drawn
        self._at = drawn.get("at", 0)  # position of the next item of the sampler
        self._own: Any = drawn.get("own")
        self._replay = drawn.get("generators")
        if self._replay is not None and not start.begun and self._replay["next"] in (None, self._replay["iter"]):
            # Nothing need be replayed if the generators are the very ones that the state was taken with.
            self._replay = None if sampler_states(self._inner) == self._replay["iter"] else self._replay
        # Whether the sampler's own state is one of its end: of the epoch before this one, or of this one.
        self._again = self._own is not None and (start.over or bool(drawn.get("again")))
        self._is_over = bool(drawn.get("over")) and not start.over
        self._stateful = has_state(self._inner)
        self.end = SamplerEnd(None)
        self._setting = SamplerSetting(self._inner)
        # The states of generators when it was asked for its iterator, and for the first item.
        self._generators: dict[str, Any] = {"iter": None, "next": None, "drew": False}
        self._raw: Any = None
        self._has_begun = self._is_through = False
        self._known: Any = None  # what is still to come, if it has been drawn
        if not self._cuts:
            self._open()  # as torch does; it asks the sampler within its own batch sampler at the first batch

    def _open(self) -> None:
        """Ask the sampler for its iterator, unless that has been done."""
        if self._raw is not None:
            return
        if self._replay is not None and not self._stateful:
            self._is_replayed = True
            self._generators = self._replay
            self._raw = self._replayed(self._replay)
            return
        own = self._own
        if own is None and self._generators["iter"] is None and not self._stateful:
            self._generators["iter"] = sampler_states(self._inner)
        self._raw = iter(())  # whose iteration fails is not asked for it again: torch's batches end there too
        self._raw = self._setting.iterated(own, self._at, is_over=self._is_over)
        if own is not None and own["iterator"] is not None and has_state(self._raw):
            self._setting.set(self._raw, own["iterator"])
        self._stateful = self._stateful or has_state(self._raw)
        if self._is_over:
            self._end(own)

    def ask_again(self) -> None:
        """Ask the sampler for its iterator once more, before the first item, and take that one."""
        if self._raw is None or self._is_replayed or self._is_over:
            return
        if has_state(self._inner):
            if self._again and is_same_state(state_of(self._inner), self._own["sampler"]):
                iter(self._inner)  # the first call led to the end of the epoch that the state is of
            self._setting.before = state_of(self._inner)
        elif not self._stateful:
            self._generators["iter"] = sampler_states(self._inner)
        self._raw = iter(())
        self._raw = iter(self._inner)

    def _end(self, own: Any) -> None:
        """Leave the sampler as its last batch left it: its next iterator is of the next epoch."""
        has_sampler = own is not None and own["sampler"] is not None
        if has_sampler and (own["iterator"] is not None or next(self._raw, self) is not self):
            self._setting.restore(own["sampler"])
        self._raw = iter(())
        self.end = SamplerEnd.gone_on_from(self._loaded(), self._now(over=True))

    def _replayed(self, states: dict[str, Any]) -> Iterator[Any]:
        """Return what the sampler yields with these states of the generators."""
        if self._start.given:
            warn_user(
                f"{type(self._inner).__name__} has no state_dict() and load_state_dict(): what it yielded before "
                "is drawn again (no sample is loaded for that)"
            )
        now, own = sampler_states(self._inner), own_generator(self._inner)
        set_sampler_states(self._inner, states["iter"])
        draws_seed = states["next"] is None and states["drew"]
        draws_own = states["next"] is None and own is not None and bool(states.get("seeds"))
        if draws_seed and self._cuts:
            draw_seed()
        if draws_own and self._cuts:
            draw_seed(own)
        items: Iterator[Any] = iter(self._inner)
        if draws_seed and not self._cuts:
            draw_seed()
        if draws_own and not self._cuts:
            draw_seed(own)
        if states["next"] is None and states.get("twice") and not self._cuts:
            items = iter(self._inner)
        self.drew_seed = not self._cuts and own is not None and own is self._start.seeds
        if states["next"] is not None:
            set_sampler_states(self._inner, states["next"])
            if states["next"] == now and not self._start.begun:
                return items  # draws from the loop's generators, as it would have done
        return self._drawn_now(items, now)

    def _drawn_now(self, items: Iterator[Any], states: str) -> Iterator[Any]:
        """Draw the rest now, if the sampler has an end: generators that others use can then be set back."""
        if not hasattr(self._inner, "__len__"):
            return items
        items = iter(list(items))
        with kept_generators(own_generator(self._inner)):
            set_sampler_states(self._inner, states)
        return items

    def _begin(self) -> Iterator[Any]:
        """Return what the sampler still yields, without what is left out."""
        if not self._has_begun:
            if self._own is None and self._replay is None and not self._stateful:
                self._first_draw()
            self._open()
            if self._stateful:
                is_loaded = self._is_over or (self._own is not None and self._setting.is_behind)
                self._states[0] = self._loaded() if is_loaded else self._now()
                if not self._is_over:
                    self.end = SamplerEnd(known_length(self._inner), self._at, self._states[0])
            self._has_begun = True
        return self._left() if self._known is None else self._known

    def _first_draw(self) -> None:
        """Note the states of generators before the first draw, or draw with those that a state was taken with."""
        name = "iter" if self._raw is None else "next"
        noted, now = self._generators[name], sampler_states(self._inner)
        if noted is not None and noted != now and hasattr(self._inner, "__len__"):
            set_sampler_states(self._inner, noted)
            self._raw = self._drawn_now(iter(self._inner) if self._raw is None else self._raw, now)
        else:
            self._generators[name] = now

    def _left(self) -> Iterator[Any]:
        """Yield the items of the sampler that are still to come, those after the ones that were taken before.

        Made anew for each batch: a generator that was kept would keep this object, and both of them a left epoch's
        sampler, until the garbage collector runs. Many training scripts turn it off.
        """
        while not self._is_through:
            # Only next() is called: a sampler that is its own iterator may start over if iter() is called again.
            try:
                item = next(self._raw)
            except StopIteration:
                if not self._again:
                    self._is_through = True
                    return
                # The state was that of an epoch that was over, and the sampler is at its end once more.
                self._again = False
                self._raw = iter(self._inner)
                continue
            except BaseException:
                self._is_through = self._cuts  # torch's own batch sampler ends with its sampler's error
                raise
            self._again = False
            self._at += 1
            if self._stateful:
                self.end.after_item(self._at, self._now)
            if self._taken and any(begin < self._at <= end for begin, end in self._taken):
                continue
            if self._skip is not None and self._skip.has_samples:
                item = self._skip.left_of(item, is_batch=self._skip.batched and not self._cuts)
                if item is None:
                    self._left_out.append((self._at - 1, self._at))
                    continue
            yield item

    @property
    def _is_plain(self) -> bool:
        """Whether the next batch is all that comes next in a list."""
        leaves_out = self._taken or self._skip is not None
        return self._known is None and not leaves_out and self.draws_nothing

    def _plainly(self, size: int) -> list[Any]:
        batch = list(islice(self._raw, size))
        self._at += len(batch)
        return batch

    @property
    def draws_nothing(self) -> bool:
        """Whether the next batch is cut from a list that is there already, so that no code of the user's runs."""
        return self._cuts and type(self._raw) in _PLAIN_ITERATORS and not (self._again or self._stateful)

    @property
    def draw(self) -> Callable[[], Any]:
        """The method that :func:`next` calls."""
        return self.__next__

    def __next__(self) -> Any:
        """Return the indices of the next batch."""
        items = self._begin()
        if self._cuts:
            # Torch looks at the size for each batch, but only for the first if it leaves out the last.
            is_fixed = self._sampler.drop_last and self._asked > 0
            size = self.bounds.look(None if is_fixed else self._sampler, self._asked)
            batch = self._plainly(size) if self._is_plain else list(islice(items, size))
            if not batch or (len(batch) < size and self._sampler.drop_last):
                self._note(over=True)
                raise StopIteration
        else:
            try:
                batch = next(items)
            except StopIteration:
                self._note(over=True)
                raise
        self._asked += 1
        self._note(over=self._cuts and len(batch) < self.bounds.size)
        # As it is now: batches are asked for ahead, and the sampler may fill the same list for the next one.
        return iter(snapshot(list(batch))) if isinstance(batch, Iterator) else snapshot(batch)

    def _note(self, *, over: bool) -> None:
        if self._stateful and not self._is_over:
            self._states[self._asked] = self.end.over(self._now(over)) if over else self._now(over)
            if len(self._states) > _MOST_STATES:
                self._forget(self.delivered())

    def _forget(self, batches: int) -> None:
        for number in [number for number in self._states if number < batches]:
            del self._states[number]

    def _now(self, over: bool = False) -> dict[str, Any]:
        """Return the sampler's own state, now."""
        raw = self._raw
        iterator = state_of(raw) if has_state(raw) else None
        is_two = raw is not self._inner and has_state(self._inner)
        sampler = state_of(self._inner) if is_two else None
        own = {"sampler": sampler, "iterator": iterator}
        counts = is_two and raw is not None and (iterator is not None or not (self._at or over))
        if counts and not is_same_state(self._setting.before, sampler):
            own["before"] = copy.deepcopy(self._setting.before)
        is_new = self._at == 0 and not over
        if is_new and self._start.ended is not None:
            own = self._start.ended.before_next(own)
        # Before its first item, it may still have the state in which the epoch before this one has left it.
        again = self._again or is_new
        return {"own": own, "at": self._at, "over": over or self._is_over, "again": again}

    def next_beginning(self, *, left: bool) -> Start:
        """Return how the epoch after this one begins; ``left``: the loop has left this one in its middle."""
        if self._again and not self._has_begun and not self._setting.has_moved:
            return self._start  # the state that was loaded is still to be gone on from
        return Start(is_fresh=True, left=left, ended=self.end)

    def _loaded(self) -> dict[str, Any]:
        """Return the state that this goes on from, before its first item."""
        return {**self._start.drawn, "over": self._is_over, "again": self._again}

    def peek(self) -> Indices | None:
        """Return all indices of the epoch without consuming them, before its first batch.

        None for samplers of the user's own, whose order is not known before it is drawn.
        """
        if type(self._inner) not in KNOWN_SAMPLERS:
            return None
        if self._own is None and self._replay is None and not draws_at_once(self._inner):
            with kept_generators(self._inner.generator):
                known = [index for at, index in enumerate(self._inner) if self._stays(at, index)]
        else:
            # Of the iterator that is there: it may have looked at the sampler's epoch, or go on from a state.
            known = list(self._begin())
            self._known = iter(known)
        indices, drops = np.array(known, np.int64), self._cuts and self._sampler.drop_last
        return indices[: len(indices) // self.bounds.size * self.bounds.size] if drops else indices

    def _stays(self, position: int, index: Any) -> bool:
        is_taken = any(begin <= position < end for begin, end in self._taken)
        return not (is_taken or (self._skip is not None and self._skip.has_sample(index)))

    def state(self, batches: int) -> Any:
        """Return what is needed to resume after the first ``batches`` batches of this iteration."""
        if not self._has_begun and (self._own is not None or self._replay is not None):
            return self._loaded()
        if self._stateful:
            if self._start.left:
                self._open()  # which is its own way to leave the epoch in whose middle it is
            self._forget(batches)
            return self._states[batches] if batches in self._states else self._now()
        if not self._has_begun:
            # Nothing has been drawn: it will be drawn with these, whatever else is drawn until then.
            self._generators["iter" if self._raw is None else "next"] = sampler_states(self._inner)
        return {"generators": dict(self._generators)}
