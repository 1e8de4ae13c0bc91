"""Random generators of its own for each worker thread, behind the global functions of torch, NumPy and Python.

``random.random()``, ``np.random.rand()`` and ``torch.rand()`` draw from one generator of the process each, which
belongs to the training loop. In a worker thread they are made to draw from that thread's instead. What cannot be
told apart: ``random()`` and ``getrandbits()`` of the module ``random``, and functions of ``np.random``, if they
were imported by name (``from random import random``) before the first worker thread started; and random numbers
that torch draws within an operation that takes no generator, such as dropout, or in scripted code.
"""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from foreload._libraries import global_random, global_random_state
from foreload._torch import innermost_function_mode, patch_seed_functions
from foreload.batch.generators.keyed import KeyedGenerators
from foreload.batch.generators.twisters import Trio

__all__ = [
    "draws_from_global",
    "keyed_generators",
    "lent_generators",
    "own_generators",
    "passes_generator",
    "present_trio",
    "run_keyed",
    "seed_own_generators",
    "with_lent_generators",
    "with_own_generators",
    "without_torch_generator",
]


class _Own(threading.local):
    trio: Trio | None = None
    lent: Trio | None = None
    keyed: KeyedGenerators | None = None
    key: tuple[int, int] | None = None


_own = _Own()
_installing = threading.Lock()


def own_generators() -> Trio:
    """Return the generators of the calling worker thread, which has them from now on."""
    if _own.trio is None:
        _own.trio = Trio.new()
    return _own.trio


def present_trio() -> Trio | None:
    """Return the generators that random functions draw from in the calling thread; None: from the global ones."""
    return _own.trio


def seed_own_generators(key: tuple[int, int], worker: int) -> None:
    """Give the calling thread's generators, from which it reads a stream, the state of worker ``worker``."""
    KeyedGenerators(key, own_generators()).key(worker)


def keyed_generators(key: tuple[int, int]) -> KeyedGenerators:
    """Return the calling worker thread's generators, to be keyed with (seed, epoch)."""
    if _own.keyed is None or _own.key != key:
        _own.keyed, _own.key = KeyedGenerators(key, own_generators()), key
    return _own.keyed


def with_own_generators(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function so that random functions draw from the calling worker thread's generators."""
    with lent_generators(own_generators()):
        return function(*args)


def draws_from_global() -> bool:
    """Whether random functions draw from the global generators here, and no other thread's samples do.

    These belong to the main thread. What another one loads at the same time must not be seen in what it draws.
    """
    return _own.trio is None and threading.current_thread() is threading.main_thread()


@contextmanager
def lent_generators(trio: Trio) -> Iterator[None]:
    """Let random functions draw from these generators in the block, in the calling thread."""
    _install()
    before, _own.trio = _own.trio, trio
    try:
        with _OwnTorchGenerator(trio.torch):
            yield
    finally:
        _own.trio = before


def passes_generator() -> bool:
    """Whether torch's functions are passed a generator of the calling thread's."""
    return isinstance(innermost_function_mode(), _OwnTorchGenerator)


@contextmanager
def without_torch_generator() -> Iterator[None]:
    """Pass no generator of the calling thread's to torch's functions in the block, where none may draw.

    To pass one takes a call of Python code for each function, and for each attribute of a tensor.
    """
    mode = innermost_function_mode()
    if not isinstance(mode, _OwnTorchGenerator):
        yield
        return
    mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        mode.__enter__()  # type: ignore[no-untyped-call]


def with_lent_generators(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function so that random functions draw from generators that the calling thread has for this only."""
    if _own.lent is None:
        _own.lent = Trio.new()
    with lent_generators(_own.lent):
        return function(*args)


def _install() -> None:
    if isinstance(global_random(), _RandomOfThread):
        return
    with _installing:
        if not isinstance(global_random(), _RandomOfThread):
            _install_numpy()
            patch_seed_functions(lambda: None if _own.trio is None else _own.trio.torch)
            _install_python()


def run_keyed(key: tuple[int, int], load: Callable[[Callable[[Any], None]], Any]) -> Any:
    """Load samples in the calling thread; see :meth:`~foreload.batch.generators.keyed.KeyedGenerators.run`."""
    if _own.trio is None and not draws_from_global():
        return with_lent_generators(run_keyed, key, load)
    return KeyedGenerators(key, _own.trio).run(load)


class _RandomOfThread(random.Random):
    """The global generator of Python's, for all threads that have none of their own."""

    __slots__ = ()

    def random(self) -> float:
        trio = _own.trio
        return super().random() if trio is None else trio.python.random()

    def getrandbits(self, k: int, /) -> int:
        trio = _own.trio
        return super().getrandbits(k) if trio is None else trio.python.getrandbits(k)

    def seed(self, *args: Any, **options: Any) -> None:
        trio = _own.trio
        if trio is None:
            super().seed(*args, **options)
        else:
            trio.python.seed(*args, **options)

    def getstate(self) -> Any:
        trio = _own.trio
        return super().getstate() if trio is None else trio.python.getstate()

    def setstate(self, state: Any) -> None:
        trio = _own.trio
        if trio is None:
            super().setstate(state)
        else:
            trio.python.setstate(state)

    @property
    def gauss_next(self) -> float | None:
        """The second of two normal numbers that ``gauss()`` made together."""
        trio = _own.trio
        held: float | None = self.__dict__["gauss_next"] if trio is None else trio.python.gauss_next  # type: ignore[attr-defined]
        return held

    @gauss_next.setter
    def gauss_next(self, held: float | None) -> None:
        trio = _own.trio
        if trio is None:
            self.__dict__["gauss_next"] = held
        else:
            trio.python.gauss_next = held  # type: ignore[attr-defined]


def _install_python() -> None:
    generator = global_random()
    generator.__class__ = _RandomOfThread
    # Its other functions are methods in Python, which call these two.
    random.random = generator.random
    random.getrandbits = generator.getrandbits
    for name in ("seed", "getstate", "setstate"):
        setattr(random, name, getattr(generator, name))


class _NumpyFunction:
    """A function of ``np.random`` that draws from the generator of the calling thread."""

    def __init__(self, name: str, function: Any) -> None:
        functools.update_wrapper(self, function)
        self._name = name
        self._function = function

    def __call__(self, *args: Any, **options: Any) -> Any:
        trio = _own.trio
        function = self._function if trio is None else getattr(trio.numpy, self._name)
        return function(*args, **options)

    def __reduce__(self) -> Any:
        return _numpy_function, (self._name,)


def _numpy_function(name: str) -> Any:
    return getattr(np.random, name)


def _install_numpy() -> None:
    state = global_random_state()
    for name, function in list(vars(np.random).items()):
        if getattr(function, "__self__", None) is state:
            setattr(np.random, name, _NumpyFunction(name, function))
    for name, method in (("seed", "seed"), ("ranf", "random_sample"), ("sample", "random_sample")):
        setattr(np.random, name, _NumpyFunction(method, getattr(np.random, name)))


def _like(fill: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a function such as ``torch.rand_like`` that takes a generator."""

    def function(template: torch.Tensor, *args: Any, generator: torch.Generator, **options: Any) -> torch.Tensor:
        return fill(torch.empty_like(template, **options), *args, generator=generator)

    return function


# Torch's random functions that take a generator, and substitutes for those that do not.
_NAMES = ("bernoulli", "multinomial", "normal", "poisson", "rand", "randint", "randn", "randperm", "bernoulli_")
_METHODS = (
    "bernoulli",
    "bernoulli_",
    "cauchy_",
    "exponential_",
    "geometric_",
    "log_normal_",
    "multinomial",
    "normal_",
    "random_",
    "uniform_",
)
_TAKES_GENERATOR = {
    *(getattr(torch, name) for name in _NAMES if hasattr(torch, name)),
    *(getattr(torch.Tensor, name) for name in _METHODS),
}


def _randint_like(template: torch.Tensor, low: int, high: int | None = None, **options: Any) -> torch.Tensor:
    generator = options.pop("generator")
    bounds = (0, low) if high is None else (low, high)
    return torch.empty_like(template, **options).random_(*bounds, generator=generator)


_SUBSTITUTES: dict[Any, Callable[..., torch.Tensor]] = {
    torch.rand_like: _like(torch.Tensor.uniform_),
    torch.randn_like: _like(torch.Tensor.normal_),
    torch.randint_like: _randint_like,
}


class _OwnTorchGenerator(TorchFunctionMode):
    """Passes a generator to torch's random functions that are called without one."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        given = options.get("generator")
        if given is None or given is torch.default_generator:
            if func in _TAKES_GENERATOR:
                options = {**options, "generator": self._generator}
            elif func in _SUBSTITUTES:
                func, options = _SUBSTITUTES[func], {**options, "generator": self._generator}
        return func(*args, **options)
