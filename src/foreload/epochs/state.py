"""The state of a loader in plain values: saved, checked, and loaded into another loader."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch.utils.data import BatchSampler, RandomSampler

from foreload._torch import item_sampler
from foreload.epochs.cursor import Cursor, coming, description
from foreload.epochs.loader.order import OrderSpec
from foreload.order.batches import is_function, is_shared
from foreload.order.generator_states import check_sampler_states, check_text
from foreload.order.mosaic import is_streaming, load_streaming_state, streaming_state
from foreload.order.own_state import has_state, require_taken
from foreload.order.resume import kept_whole, read_whole
from foreload.order.samplers import num_ranks
from foreload.protocol import ArraySampler

__all__ = ["Resumption", "resume", "save"]

_VERSION = 1


def save(spec: OrderSpec, cursor: Cursor | None, epoch: int) -> dict[str, Any]:
    """Return the state of a loader.

    Args:
        spec: the sources of its order.
        cursor: its position in the latest epoch; None before the first one.
        epoch: the number of its next epoch.
    """
    if cursor is None:
        state = {**coming(spec), "epoch": epoch}
    elif cursor.finished:
        state = {**coming(spec, cursor), "epoch": cursor.epoch, "finished": True}
    else:
        state = cursor.state()
    if is_streaming(spec.dataset):
        state["dataset"] = None if cursor is None else kept_whole(_streaming_state(spec.dataset, cursor))
    drawn = state["drawn"]
    for taken in (drawn.get("own") if isinstance(drawn, dict) else None, *(each[2] for each in state["streams"])):
        require_taken(taken)
    own = description(spec)
    # What is delivered out of order, this rank alone has had; otherwise all ranks have the same state.
    is_own = own["ranks"] > 1 and bool(state["given"]) and (not spec.in_order or _has_gaps(state["given"]))
    rank = getattr(item_sampler(spec.sampler), "rank", None) if is_own else None
    if isinstance(drawn, dict) and not {"own", "generators"}.isdisjoint(drawn):  # of a sampler of the user's
        state["drawn"] = kept_whole(drawn)
    state["streams"] = tuple(state["streams"])
    return {"foreload": _VERSION, **own, **state, "rank": rank}


def _streaming_state(dataset: Any, cursor: Cursor) -> dict[str, Any]:
    read = [progress.state for progress in cursor.streams.values() if progress.state is not None]
    return streaming_state(dataset, sum(own["samples"] for own in read), cursor.stream_epoch)


@dataclass(frozen=True)
class Resumption:
    """The point at which a loader goes on.

    Attributes:
        epoch: the number of its next epoch.
        state: the state for the next :class:`Cursor`.
        workers: the number of workers that it needs; None: any.
    """

    epoch: int
    state: dict[str, Any]
    workers: int | None = None


def resume(spec: OrderSpec, state: Any, *, chooses: bool = False) -> Resumption:
    """Return the point at which a loader goes on from a state that :func:`save` returned.

    Args:
        spec: the sources of the loader's order.
        state: the state.
        chooses: whether the loader may choose another number of workers.

    Raises:
        ValueError: the state is not one of a loader like this one; the message names the field.
    """
    if not isinstance(state, dict) or not _is_int(state.get("foreload")) or state["foreload"] != _VERSION:
        raise ValueError("state_dict must come from foreload.DataLoader.state_dict()")
    _check_values(state)
    _check_kind(spec, state)
    try:
        state = copy.deepcopy(state)
    except RecursionError:
        raise ValueError("the state is nested too deeply: it does not come from a loader like this one") from None
    workers = _check_workers(spec, state, chooses=chooses)
    _check_given(spec, state)
    _check_drawn(spec, state)
    sampler = getattr(spec.sampler, "sampler", spec.sampler)
    if isinstance(sampler, ArraySampler) and state["drawn"] is not None:
        sampler.restore_drawn(read_whole(state["drawn"]))
    if is_streaming(spec.dataset) and state.get("dataset") is not None:
        load_streaming_state(spec.dataset, read_whole(state["dataset"]), finished=state["finished"])
        state = {**state, "streams": [], "turn": 0}
    if spec.is_stream and any(since and own is None for _, since, own, _ in state["streams"]):
        warnings.warn(
            f"{type(spec.dataset).__name__} has no state_dict() and load_state_dict(): the samples that were "
            "delivered before are read again and skipped",
            stacklevel=3,
        )
    return Resumption(state["epoch"] + 1 if state["finished"] else state["epoch"], state, workers)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_int(value) and value >= 0


def _is_count_or_none(value: Any) -> bool:
    return value is None or _is_count(value)


def _is_name_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_list(value: Any, each: Callable[[Any], bool]) -> bool:
    return isinstance(value, (list, tuple)) and all(each(part) for part in value)


def _is_range(value: Any) -> bool:
    return _is_list(value, _is_count) and len(value) == 2 and value[0] < value[1]


def _are_ranges(value: Any) -> bool:
    if not _is_list(value, _is_range):
        return False
    return all(before[1] < after[0] for before, after in pairwise(value))


def _has_gaps(given: Any) -> bool:
    return len(given) > 1 or (len(given) == 1 and given[0][0] > 0)


def _is_key(value: Any) -> bool:
    return _is_list(value, _is_count) and len(value) == 2


def _is_stream(value: Any) -> bool:
    if not isinstance(value, (list, tuple)) or len(value) != 4:
        return False
    worker, since, state, replay = value
    is_state = state is None or (
        isinstance(state, dict) and ({"dataset", "iterator"} <= set(state) or "samples" in state)
    )
    return _is_count(worker) and _is_count(since) and is_state and isinstance(replay, (list, tuple))


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "seed": (_is_count_or_none, "an int of 0 or more, or None"),
    "sampler_seed": (lambda value: value is None or _is_int(value), "an int or None"),
    "samples": (_is_count_or_none, "an int of 0 or more, or None"),
    "positions": (_is_count_or_none, "an int of 0 or more, or None"),
    "sampler": (_is_name_or_none, "the name of a class, or None"),
    "batch_sampler": (_is_name_or_none, "the name of a class, or None"),
    "batch_size": (_is_count_or_none, "an int, or None"),
    "ranks": (_is_count, "an int"),
    "rank": (_is_count_or_none, "an int of 0 or more, or None"),
    # (A loader may take as many workers as the state had, each with a copy of the dataset.)
    "workers": (lambda value: _is_count(value) and value <= 1024, "an int from 0 to 1024"),
    "epoch": (_is_count, "an int of 0 or more"),
    "sampler_epoch": (lambda value: value is None or _is_int(value), "an int or None"),
    "finished": (lambda value: isinstance(value, bool), "True or False"),
    "begun": (lambda value: isinstance(value, bool), "True or False"),
    "given": (_are_ranges, "sorted ranges of positions [[begin, end], ...]"),
    "order_drawn": (lambda value: isinstance(value, bool), "True or False"),
    "drawn": (lambda value: True, ""),
    "draws_seed": (lambda value: isinstance(value, bool), "True or False"),
    "base_seed": (lambda value: _is_count(value) and value < 1 << 64, "an int from 0 to 2**64 - 1"),
    "key": (_is_key, "two ints of 0 or more"),
    "generator": (_is_name_or_none, "the state of a generator as text, or None"),
    "streams": (lambda value: _is_list(value, _is_stream), "a list of [worker, since, state, replay]"),
    "turn": (_is_count, "an int of 0 or more"),
}


def _check_values(state: dict[str, Any]) -> None:
    for name, (is_right, kind) in _FIELDS.items():
        if name not in state:
            raise ValueError(f"the state has no field {name!r}")
        if not is_right(state[name]):
            raise ValueError(f"the state's {name!r} must be {kind}, got {_shown(state[name])}")
    if state["finished"] and state["begun"]:
        raise ValueError("the state's 'finished' and 'begun' cannot both be True")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _check_kind(spec: OrderSpec, state: dict[str, Any]) -> None:
    """Check what two loaders must have in common, whatever their workers."""
    own = description(spec)
    names = ["seed", "samples", "sampler", "sampler_seed", "batch_sampler"]
    if own["ranks"] == state["ranks"] == 1:
        names.append("positions")
    elif own["ranks"] == 1 or state["ranks"] == 1:
        names += [] if own["sampler"] == state["sampler"] else ["ranks"]
    for name in names:
        if state[name] != own[name]:
            hint = _shuffles(state, own) if name == "sampler" else ""
            raise ValueError(
                f"the state is of a loader with {name} = {state[name]!r}, but this one has {own[name]!r}{hint}"
            )
    if (state["generator"] is None) != (spec.generator is None):
        with_, without = ("a", "none") if spec.generator is None else ("no", "one")
        raise ValueError(
            f"the state is of a loader with {with_} generator, but this one has {without}: give generator="
        )
    if spec.generator is not None:
        _checked("generator", check_text, state["generator"], spec.generator.device)


def _shuffles(state: dict[str, Any], own: dict[str, Any]) -> str:
    kinds = {"SequentialSampler": False, "RandomSampler": True, "KeyedSampler": True}
    was, is_ = kinds.get(state["sampler"]), kinds.get(own["sampler"])
    if was is None or is_ is None or was == is_:
        return f": its sampler was not a {own['sampler']}"
    return f" (shuffle = {was}, but this one has {is_})"


def _checked(name: str, check: Callable[..., Any], *values: Any) -> None:
    try:
        check(*values)
    except ValueError as error:
        raise ValueError(f"the state's {name!r} is wrong: {error}") from error


def _check_workers(spec: OrderSpec, state: dict[str, Any], *, chooses: bool) -> int | None:
    """Check the number of workers, which must be the same if they have parts of the data, or states."""
    if is_streaming(spec.dataset):
        return None  # it divides the remaining samples between any number of workers
    was, is_ = state["workers"], spec.num_streams
    has_parts = spec.is_stream or has_state(spec.dataset) or bool(state["streams"])
    if has_parts and max(1, was) != max(1, is_):
        if not chooses:
            what = "its part of the data" if spec.is_stream else "a state of its own in the dataset"
            raise ValueError(
                f"the state is of a loader with workers = {was}, but this one has {is_}; each worker has "
                f"{what}, so give num_workers={was}"
            )
        is_ = was
    if has_parts:
        for worker, since, own, _ in state["streams"]:
            if worker >= max(1, was):
                raise ValueError(f"the state's 'streams' has worker {worker}, but there were {was}")
            if spec.is_stream and own is None and since and state["batch_size"] != spec.batch_size:
                raise ValueError(
                    f"the state is of a loader with batch_size = {state['batch_size']}, but this one has "
                    f"{spec.batch_size}; give the same batch_size, or give the dataset a state_dict()"
                )
    if state["turn"] >= max(1, was):
        raise ValueError(f"the state's 'turn' is {state['turn']}, but there were {was} workers")
    return is_ if has_parts else None


def _check_given(spec: OrderSpec, state: dict[str, Any]) -> None:
    given, total = state["given"], spec.positions
    if given and not state["begun"]:
        raise ValueError(f"the state's 'given' is {_shown(given)}, but its epoch had not begun")
    if state["rank"] is not None and given:
        ranks, rank = description(spec)["ranks"], getattr(item_sampler(spec.sampler), "rank", None)
        if (ranks, rank) != (state["ranks"], state["rank"]):
            raise ValueError(
                f"the state is of rank {state['rank']} of {state['ranks']}, whose batches came out of order "
                "(in_order=False), so each rank has batches of its own: load each rank's own state, with the same "
                "number of ranks"
            )
    if given and total is not None:
        # Ranks share an order that is made longer for them, as it is here or as it was.
        total = max(total, state["positions"] or 0)
        if given[-1][1] > total:
            raise ValueError(f"the state's 'given' ends at {given[-1][1]}, but the order has {total} positions")
    # (The length of a batch sampler of torch's is made of that of its sampler, which subclasses need not have.)
    is_torchs = getattr(type(spec.sampler), "__len__", None) is BatchSampler.__len__
    counted = getattr(spec.sampler, "sampler", None) if is_torchs else spec.sampler
    if given and total is None and not spec.is_stream and hasattr(counted, "__len__"):
        size = spec.batch_size if type(spec.sampler) is BatchSampler else 1
        most = len(spec.sampler) * (size or 1)
        if given[-1][0] >= most:
            raise ValueError(f"the state's 'given' ends at {given[-1][1]}, but the order has {most} positions")


def _check_drawn(spec: OrderSpec, state: dict[str, Any]) -> None:
    """Check what the order is drawn from, as the kind of sampler has it."""
    drawn, inner = read_whole(state["drawn"]), getattr(spec.sampler, "sampler", spec.sampler)
    if isinstance(inner, ArraySampler) and is_shared(spec.sampler):
        return  # which checks that itself
    if isinstance(drawn, dict) and not (is_function(spec.sampler) and num_ranks(inner) > 1):
        _check_own(drawn)
    elif type(inner) is RandomSampler and type(spec.sampler) is BatchSampler:
        if drawn is None:
            if inner.generator is None or (state["begun"] and not state["finished"]):
                raise ValueError("the state's 'drawn' must not be None for a RandomSampler")
        elif inner.generator is None:
            if not (_is_count(drawn) and drawn < 1 << 63):
                raise ValueError(
                    "the state's 'drawn' must be a seed for a RandomSampler without a generator, "
                    f"got {_shown(drawn)}"
                )
        else:
            _checked("drawn", check_text, drawn, inner.generator.device)
    elif drawn is not None:
        raise ValueError(f"the state's 'drawn' must be None for {type(inner).__name__}, got {_shown(drawn)}")
    elif not spec.is_stream and not is_function(spec.sampler):
        raise ValueError(f"the state's 'drawn' must not be None for {type(inner).__name__}")


def _check_own(drawn: dict[str, Any]) -> None:
    own, generators = drawn.get("own"), drawn.get("generators")
    if own is not None:
        is_right = isinstance(own, dict) and {"sampler", "iterator"} <= set(own) and _is_count(drawn.get("at"))
        if not is_right or not all(isinstance(drawn.get(name), bool) for name in ("over", "again")):
            raise ValueError(f"the state's 'drawn' is not that of a sampler with a state: {_shown(drawn)}")
    elif not isinstance(generators, dict) or not {"iter", "next", "drew"} <= set(generators):
        raise ValueError(f"the state's 'drawn' must have the states of generators, got {_shown(drawn)}")
    else:
        for name in ("iter", "next"):
            if generators[name] is not None or name == "iter":
                _checked("drawn", check_sampler_states, generators[name])
