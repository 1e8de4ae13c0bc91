"""The states of torch's, NumPy's and Python's random generators, saved, compared, put back and keyed in place.

All three use the Mersenne Twister (Matsumoto, Nishimura: "Mersenne Twister", ACM TOMACS 8, 1998). In place that
takes a fraction of a microsecond; by the libraries' own functions it takes tens of them, too long to be done for
each sample. Where the states lie is not documented, so it is looked for, and tried out, once per process. If that
fails, the libraries' own functions are used.
"""

from __future__ import annotations

import ctypes
import random
import struct
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from foreload import _native
from foreload._libraries import bit_generator
from foreload._torch import address_of

__all__ = ["GeneratorStates", "Trio", "states_of"]

_WORDS = 624
_WORD_BYTES = 4 * _WORDS
_KEYED_POSITION = struct.pack("i", _WORDS)  # all words are used: the next draw makes others of them

# In a generator of Python's, before its position and its words.
_PYTHON_HEADER = object.__basicsize__

# An engine of torch's: seed, number of words left, whether it is seeded, next word. After its words lie the second
# ones of two normal numbers that were made together: as float, as double, and whether they are there.
_TORCH_ENGINE = struct.pack("<QiII", 0, 1, 1, 0)
_TORCH_NORMALS = 28

# Bytes of the second normal number that NumPy keeps: whether it is there, and a double.
_NUMPY_NORMAL = 16


class Trio(NamedTuple):
    """A generator of each library."""

    python: random.Random
    numpy: np.random.RandomState
    torch: torch.Generator

    @classmethod
    def new(cls) -> Trio:
        """Return generators that nothing else draws from."""
        return cls(random.Random(0), np.random.RandomState(np.random.MT19937(0)), torch.Generator())

    def like(self) -> Trio:
        """Return generators of the same types that nothing else draws from."""
        return Trio(random.Random(0), np.random.RandomState(type(bit_generator(self.numpy))(0)), torch.Generator())


class GeneratorStates(Protocol):
    """The states of several generators."""

    def save(self) -> None:
        """Save all states."""

    def changed(self) -> bool:
        """Whether one of them has drawn since :meth:`save` or :meth:`key`."""

    def restore(self) -> None:
        """Put back what was saved."""

    def exchange(self, other: Any) -> None:
        """Exchange the states with those of other generators, of the same types."""

    def key(self, seed: int, epoch: int, index: int) -> None:
        """Give each generator the state of sample ``index``."""


def states_of(trio: Trio) -> GeneratorStates:
    """Return the states of generators: in place, or by their libraries' functions.

    >>> trio = Trio.new()
    >>> states = states_of(trio)
    >>> states.key(7, 0, 3); first = trio.numpy.rand(), trio.python.random()
    >>> states.changed()
    True
    >>> states.key(7, 0, 3); first == (trio.numpy.rand(), trio.python.random())
    True
    """
    places = _places()
    if places is None or type(bit_generator(trio.numpy)) is not np.random.MT19937:
        return _SlowStates(trio)
    return _in_place(trio, *places)


def _in_place(trio: Trio, numpy_normal: int, torch_words: int) -> _native.Twisters:
    words = bytes(_WORD_BYTES)
    at = address_of(trio.torch) + torch_words - len(_TORCH_ENGINE)
    return _native.Twisters(
        [
            (id(trio.python) + _PYTHON_HEADER, _KEYED_POSITION + words, len(_KEYED_POSITION)),
            (int(bit_generator(trio.numpy).ctypes.state_address), words + _KEYED_POSITION, 0),
            (id(trio.numpy) + numpy_normal, bytes(_NUMPY_NORMAL), -1),
            (at, _TORCH_ENGINE + words + bytes(_TORCH_NORMALS), len(_TORCH_ENGINE)),
        ]
    )


@cache
def _places() -> tuple[int, int] | None:
    """Return where NumPy keeps a normal number, and torch its words; None if some state is not found."""
    trio = Trio.new()
    trio.numpy.standard_normal()
    normal = struct.pack("d", trio.numpy.get_state(legacy=False)["gauss"])
    numpy_normal = ctypes.string_at(id(trio.numpy), type(trio.numpy).__basicsize__).find(normal) - 8
    words = np.frombuffer(trio.torch.get_state().numpy().tobytes(), np.uint64, _WORDS, 24).astype(np.uint32)
    torch_words = ctypes.string_at(address_of(trio.torch), 128 + _WORD_BYTES).find(words.tobytes())
    found = numpy_normal >= _PYTHON_HEADER and torch_words >= len(_TORCH_ENGINE) and torch_words % 8 == 4
    fits = random.Random.__base__.__basicsize__ == _PYTHON_HEADER + 4 + _WORD_BYTES + 4  # type: ignore[union-attr]
    if not (found and fits) or not _works(trio, numpy_normal, torch_words):
        return None
    return numpy_normal, torch_words


def _works(trio: Trio, *places: int) -> bool:
    """Try whether keyed generators are in the state that their libraries set for the same words."""
    states = _in_place(trio, *places)
    known, words = Trio.new(), [np.empty(_WORDS, np.uint32) for _ in range(3)]
    for which, state in enumerate(words):
        _native.fill_twister(7, 1, 2, which, state)
    known.python.setstate((3, (*words[0].tolist(), _WORDS), None))
    known.numpy.set_state(("MT19937", words[1], _WORDS, 0, 0.0))
    torch_state = torch.Generator().get_state()
    torch_state.numpy()[24 : 24 + 8 * _WORDS].view(np.uint64)[:] = words[2]
    known.torch.set_state(torch_state)
    for _ in range(2):  # from somewhere in their middle
        _drawn(trio)
    states.save()
    expected = _drawn(trio)
    states.key(7, 1, 2)
    unchanged = not states.changed()
    same = all(_drawn(trio) == _drawn(known) and _words(trio) == _words(known) for _ in range(3))
    changed = states.changed()
    states.restore()
    return unchanged and same and changed and _drawn(trio) == expected


def _drawn(trio: Trio) -> tuple[Any, ...]:
    normals = torch.randn((), generator=trio.torch), torch.randn((), dtype=torch.double, generator=trio.torch)
    return trio.python.random(), trio.numpy.rand(), trio.numpy.randn(), *(float(value) for value in normals)


def _words(trio: Trio) -> tuple[Any, ...]:
    """Draw as many words as a state has, so that its next ones are made."""
    words = torch.randint(1 << 31, (_WORDS,), generator=trio.torch)
    return trio.python.getrandbits(32 * _WORDS), trio.numpy.bytes(_WORD_BYTES), words.tolist()


class _SlowStates:
    """The same by the functions of the libraries, for generators that are not found in memory."""

    def __init__(self, trio: Trio) -> None:
        self._trio = trio
        self._saved = self._last = self._present()

    def _present(self) -> tuple[Any, ...]:
        python, numpy, generator = self._trio
        # (Python's third value is for gauss(), which in-place states leave to the caller too.)
        return python.getstate(), numpy.get_state(legacy=False), generator.get_state()

    def _set(self, states: tuple[Any, ...]) -> None:
        python, numpy, generator = self._trio
        python.setstate(states[0])
        numpy.set_state(states[1])
        generator.set_state(states[2])

    def save(self) -> None:
        self._saved = self._last = self._present()

    def changed(self) -> bool:
        python, numpy, generator = self._present()
        before = self._last
        return python != before[0] or repr(numpy) != repr(before[1]) or not torch.equal(generator, before[2])

    def restore(self) -> None:
        self._set(self._saved)

    def exchange(self, other: _SlowStates) -> None:
        present = self._present()
        self._set(other._present())
        other._set(present)

    def key(self, seed: int, epoch: int, index: int) -> None:
        python, numpy, generator = self._trio
        words = [np.empty(_WORDS, np.uint32) for _ in range(3)]
        for which, state in enumerate(words):
            _native.fill_twister(seed, epoch, index, which, state)
        python.seed(int(words[0][0]) << 32 | int(words[0][1]))
        bits = bit_generator(numpy)
        numpy.set_state(type(bits)(words[1][:8].tolist()).state)  # of any kind
        generator.manual_seed(int(words[2][0]) << 31 | int(words[2][1]))
        self._last = self._present()
