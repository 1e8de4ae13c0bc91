"""One file per loader: which workloads it has, each at the settings that its documentation recommends here."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.peers.work import Work

Load = Callable[[Work], Any]
LOADERS: dict[str, dict[str, Load]] = {}  # by family, then by settings


def loads(family: str, settings: str) -> Callable[[Load], Load]:
    """Register a function that makes the loader of a workload; iterating over it is an epoch."""

    def register(load: Load) -> Load:
        LOADERS.setdefault(family, {})[settings] = load
        return load

    return register


def load_adapter(name: str) -> None:
    """Import it, which fills ``LOADERS``."""
    importlib.import_module(f"benchmarks.peers.adapters.{name}")


class Epochs:
    """An epoch per ``iter()``, from a function of the epoch's number."""

    def __init__(self, epoch: Callable[[int], Iterator[Any]]) -> None:
        self._epoch = epoch
        self._number = -1

    def __iter__(self) -> Iterator[Any]:
        self._number += 1
        return self._epoch(self._number)
