"""Torch's own iterators over a foreload loader, which derived classes and scripts make themselves.

They read the number of workers from the loader, so that one with defaults has to tell them numbers that they take.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from foreload._torch import TorchDataLoader, TorchIterator

__all__ = ["let_torch_iterate"]


class _SeenByTorch:
    """A loader of which torch's iterators read other values of some attributes."""

    def __init__(self, loader: Any, **others: Any) -> None:
        self._loader = loader
        vars(self).update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def let_torch_iterate() -> None:
    """Let torch's iterators be made for loaders whose number of workers was left to the loader.

    The one without workers has none; the one with processes makes as many batches ahead as torch does by default.
    """
    for kind in TorchIterator.__subclasses__():
        if kind.__module__ == TorchDataLoader.__module__:  # torch's two
            is_alone = "SingleProcess" in kind.__name__
            setattr(kind, "__init__", _for_defaults(kind.__init__, is_alone=is_alone))  # noqa: B010


def _for_defaults(init: Callable[..., None], *, is_alone: bool) -> Callable[..., None]:
    @functools.wraps(init)
    def __init__(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        if loader.num_workers and getattr(loader.num_workers, "is_auto", False):
            ahead = 2 if loader.prefetch_factor is None else loader.prefetch_factor
            loader = _SeenByTorch(loader, **({"num_workers": 0} if is_alone else {"prefetch_factor": ahead}))
        init(self, loader, *args, **kwargs)

    return __init__
