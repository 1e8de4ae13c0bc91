"""Pickles that travel through Ray: with classes of scripts by value, and references to its objects."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import ray
from ray import cloudpickle

from foreload.cache.serialize import flatten
from foreload.checks import Array
from foreload.nested.picklers import SamplePickler

__all__ = ["flatten_by_value", "pickle_task", "unpickle_task"]


class _BatchPickler(SamplePickler, cloudpickle.Pickler):  # type: ignore[misc]
    """Takes classes by value that another process cannot import, as those of a notebook or a script."""

    def reducer_override(self, value: Any) -> Any:
        found = SamplePickler.reducer_override(self, value)
        return cloudpickle.Pickler.reducer_override(self, value) if found is NotImplemented else found


def flatten_by_value(batch: Any) -> list[memoryview]:
    """Do as :func:`~foreload.cache.serialize.flatten` does, with classes of scripts in the stream."""
    return flatten(batch, _BatchPickler)


class _TaskPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Keeps references to objects of Ray apart, so that Ray knows who has them."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.references: list[Any] = []

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, ray.ObjectRef):
            return None
        self.references.append(value)
        return len(self.references) - 1


class _TaskUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, references: list[Any]) -> None:
        super().__init__(file)
        self._references = references

    def persistent_load(self, number: int) -> Any:
        return self._references[number]


def pickle_task(task: Any) -> tuple[Array, list[Any]]:
    """Return an object as bytes, and the references to Ray's objects in it.

    Whoever unpacks it gets a copy that may be changed. (What Ray pickles itself has read-only arrays.)

    >>> unpickle_task(*pickle_task({"x": np.arange(3)}))["x"].flags.writeable
    True
    """
    stream = io.BytesIO()
    pickler = _TaskPickler(stream)
    pickler.dump(task)
    return np.frombuffer(stream.getbuffer(), np.uint8), pickler.references


def unpickle_task(packed: Array, references: list[Any]) -> Any:
    """Return a copy of the object that :func:`pickle_task` was given."""
    return _TaskUnpickler(io.BytesIO(packed.data), references).load()
