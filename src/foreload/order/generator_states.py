"""The states of random generators: set back, or as text that goes into any checkpoint, JSON too."""

from __future__ import annotations

import base64
import json
import pickle
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from foreload._libraries import global_random, global_random_state
from foreload.order.samplers import nested_samplers

__all__ = [
    "check_sampler_states",
    "check_text",
    "generator_text",
    "generators_set_back",
    "kept_generators",
    "own_generator",
    "sampler_states",
    "set_generator",
    "set_sampler_states",
]

# More than the states of all generators together take.
_MAX_BYTES = 1 << 20


@contextmanager
def kept_generators(*generators: torch.Generator | None) -> Iterator[None]:
    """Set generators back to their present states at the end of the block."""
    states = [(generator, generator.get_state()) for generator in generators if generator is not None]
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)


@contextmanager
def generators_set_back() -> Iterator[Callable[[], bool]]:
    """Set the global generators back at the end of the block, which gets what tells whether it has drawn.

    >>> before = random.getstate()
    >>> with generators_set_back() as have_drawn:
    ...     first, number, then = have_drawn(), random.random(), have_drawn()
    >>> first, then, random.getstate() == before
    (False, True, True)
    """
    python, numpy, generator = global_random(), global_random_state(), torch.default_generator
    before = python.getstate(), numpy.get_state(legacy=False), generator.get_state()
    shown = pickle.dumps(before[1])

    def have_drawn() -> bool:
        same = python.getstate() == before[0] and torch.equal(generator.get_state(), before[2])
        return not same or pickle.dumps(numpy.get_state(legacy=False)) != shown

    try:
        yield have_drawn
    finally:
        python.setstate(before[0])
        numpy.set_state(before[1])
        generator.set_state(before[2])


def generator_text(generator: torch.Generator) -> str:
    """Return the state of a generator of torch's as text.

    >>> generator = torch.Generator().manual_seed(3)
    >>> text = generator_text(generator)
    >>> first = torch.rand(1, generator=generator)
    >>> set_generator(generator, text)
    >>> bool(torch.rand(1, generator=generator) == first)
    True
    """
    return _packed(bytes(generator.get_state().tolist()))


def set_generator(generator: torch.Generator, text: Any) -> None:
    """Set a generator to a state from :func:`generator_text`.

    Raises:
        ValueError: this is no such state, or one of a generator on another kind of device.
    """
    try:
        generator.set_state(torch.frombuffer(bytearray(_unpacked(text)), dtype=torch.uint8))
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"not the state of a generator like this one: {str(text)[:40]!r}...") from error


def check_text(text: Any, device: torch.device | str = "cpu") -> None:
    """Raise ValueError unless :func:`set_generator` accepts this for a generator on ``device``."""
    set_generator(torch.Generator(device), text)


def own_generator(sampler: Any) -> torch.Generator | None:
    """Return the generator of torch's that a sampler has, or one within it, as batch samplers hold them."""
    generators = (getattr(each, "generator", None) for each in nested_samplers(sampler))
    return next((found for found in generators if isinstance(found, torch.Generator)), None)


def sampler_states(sampler: Any) -> str:
    """Return the states of all generators that a sampler may draw from: torch's, Python's, NumPy's, its own."""
    own = own_generator(sampler)
    name, keys, *rest = np.random.get_state()
    states = {
        "torch": generator_text(torch.default_generator),
        "python": random.getstate(),
        "numpy": [name, np.asarray(keys).tolist(), *rest],
        "own": None if own is None else generator_text(own),
    }
    return _packed(json.dumps(states).encode())


def set_sampler_states(sampler: Any, text: str) -> None:
    """Set all generators that a sampler may draw from to states from :func:`sampler_states`."""
    states = json.loads(_unpacked(text))
    set_generator(torch.default_generator, states["torch"])
    random.setstate(_as_tuples(states["python"]))
    np.random.set_state(_numpy_state(states))
    own = own_generator(sampler)
    if own is not None and states["own"] is not None:
        set_generator(own, states["own"])


def check_sampler_states(text: Any) -> None:
    """Raise ValueError unless :func:`set_sampler_states` accepts this."""
    try:
        states = json.loads(_unpacked(text))
        check_text(states["torch"])
        random.Random().setstate(_as_tuples(states["python"]))
        np.random.RandomState().set_state(_numpy_state(states))
        if states["own"] is not None:
            _unpacked(states["own"])
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not the states of generators: {str(text)[:40]!r}...") from error


def _numpy_state(states: dict[str, Any]) -> Any:
    name, keys, *rest = states["numpy"]
    return (name, np.array(keys, np.uint32), *rest)


def _as_tuples(state: Sequence[Any]) -> Any:
    return tuple(_as_tuples(part) if isinstance(part, list) else part for part in state)


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


def _unpacked(text: Any) -> bytes:
    if not isinstance(text, str):
        raise ValueError(f"not the state of a generator: {type(text).__name__}")
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.b64decode(text, validate=True), _MAX_BYTES)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"not the state of a generator: {text[:40]!r}") from error
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError(f"not the state of a generator: {text[:40]!r}, which is cut short, or too long")
    return data
