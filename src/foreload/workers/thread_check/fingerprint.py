"""Fingerprints of samples, to tell whether two are the same bit for bit, whatever they are made of."""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections.abc import Iterable, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from foreload._torch import coo_parts
from foreload.nested import bytes_of
from foreload.nested.tensors import is_masked_array

__all__ = ["Fingerprint", "sample_fingerprint"]

# A sample with more fields than this is compared as a whole.
_MOST_FIELDS = 64


class Fingerprint(NamedTuple):
    """The content of a sample, bit for bit, as hashes.

    Attributes:
        fields: a hash of each field, by name; under "" of a sample without fields.
        opaque: the types of parts that cannot be compared.
    """

    fields: dict[str, bytes]
    opaque: frozenset[str]

    def different(self, other: Fingerprint) -> list[str] | None:
        """Return the fields in which two samples differ, none if they differ as a whole; None: they are equal."""
        if self.fields == other.fields:
            return None
        if self.fields.keys() != other.fields.keys():
            return []
        return [name for name, value in self.fields.items() if name and other.fields[name] != value]


def sample_fingerprint(sample: Any) -> Fingerprint:
    """Return the fingerprint of a sample.

    NaNs are equal to NaNs of the same bits, -0.0 differs from 0.0, 1 from 1.0 and from True, and a dict from one
    in another order. Objects are compared by what they would be pickled as.

    >>> one = sample_fingerprint({"image": torch.tensor([float("nan")]), "label": 3})
    >>> one == sample_fingerprint({"image": torch.tensor([float("nan")]), "label": 3})
    True
    >>> one.different(sample_fingerprint({"image": torch.tensor([float("nan")]), "label": 3.0}))
    ['label']
    """
    opaque: set[str] = set()
    fields = {}
    for name, value in _fields(sample):
        hashing = _Hashing(opaque)
        hashing.add(value)
        fields[name] = hashing.digest()
    return Fingerprint(fields, frozenset(opaque))


def _fields(sample: Any) -> Iterable[tuple[str, Any]]:
    """Return the fields of a sample, and its type (under "")."""
    if isinstance(sample, Mapping) and type(sample).__reduce_ex__ is object.__reduce_ex__:
        named = [(key if isinstance(key, str) else repr(key), value) for key, value in sample.items()]
    elif type(sample) in (list, tuple) or (isinstance(sample, tuple) and hasattr(sample, "_fields")):
        named = [(str(position), value) for position, value in enumerate(sample)]
    elif dataclasses.is_dataclass(sample) and not isinstance(sample, type):
        named = [(field.name, getattr(sample, field.name, None)) for field in dataclasses.fields(sample)]
    else:
        return [("", sample)]
    if len(named) > _MOST_FIELDS or len(dict(named)) < len(named):
        return [("", sample)]
    return [("", (type(sample), [name for name, _ in named])), *named]


class _Hashing:
    """A hash of values that contain others."""

    def __init__(self, opaque: set[str]) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._opaque = opaque
        self._within: list[int] = []  # the objects that are being added

    def digest(self) -> bytes:
        return self._hash.digest()

    def _mark(self, *words: Any) -> None:
        self._hash.update(f"{words!r};".encode(errors="surrogatepass"))

    def _bytes(self, data: Any) -> None:
        self._hash.update(struct.pack("q", memoryview(data).nbytes))
        self._hash.update(data)

    def add(self, value: Any) -> None:
        """Add a value and all that it contains."""
        kind = type(value)
        if value is None or kind in (bool, int, str):
            self._mark(kind.__name__, value)
        elif kind is float:
            self._bytes(b"f" + struct.pack("d", value))
        elif kind in (bytes, bytearray, memoryview):
            self._mark(kind.__name__)
            self._bytes(bytes(value))
        elif isinstance(value, (type, FunctionType, BuiltinFunctionType, ModuleType)):
            self._mark(getattr(value, "__module__", ""), getattr(value, "__qualname__", value.__name__))
        elif id(value) in self._within:
            self._mark("again", len(self._within) - self._within.index(id(value)))
        else:
            self._within.append(id(value))
            try:
                self._add_container(value, kind)
            except Exception:  # it cannot be pickled, is of a kind of memory that cannot be read ...
                self._opaque.add(kind.__qualname__)
                self._mark("opaque", kind.__qualname__)
            finally:
                self._within.pop()

    def _add_container(self, value: Any, kind: type) -> None:
        self._mark(kind.__module__, kind.__qualname__)
        if isinstance(value, torch.Tensor):
            self._add_tensor(value)
        elif isinstance(value, (np.ndarray, np.generic)):
            self._add_array(value)
        elif kind in (list, tuple):
            self._add_all(value)
        elif kind is dict:
            self._add_all(part for item in value.items() for part in item)
        elif kind in (set, frozenset):
            self._add_set(value)
        elif kind.__module__.startswith("PIL.") and hasattr(value, "tobytes"):
            data = value.tobytes()  # which reads the file, if that has not been done
            self._mark(value.mode, value.size, value.getpalette())
            self._bytes(data)
        else:
            self._add_reduced(value.__reduce_ex__(4))

    def _add_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self.add(value)
        self._mark("end")

    def _add_set(self, values: Iterable[Any]) -> None:
        hashes = []
        for value in values:
            hashing = _Hashing(self._opaque)
            hashing.add(value)
            hashes.append(hashing.digest())
        self._bytes(b"".join(sorted(hashes)))

    def _add_reduced(self, reduced: Any) -> None:
        """Add what an object is pickled as: a function, its arguments, a state, items."""
        if isinstance(reduced, str):
            self._mark(reduced)
            return
        make, arguments, *rest = reduced
        self.add(make)
        self.add(arguments)
        self.add(rest[0] if rest else None)
        for items in rest[1:3]:
            self._add_all(() if items is None else items)

    def _add_tensor(self, tensor: torch.Tensor) -> None:
        self._mark(str(tensor.dtype), tuple(tensor.shape) if not tensor.is_nested else None, str(tensor.device))
        self._mark(str(tensor.layout), tensor.requires_grad)
        tensor = tensor.detach()
        if tensor.is_nested:
            self._add_all(tensor.unbind())
        elif tensor.layout is torch.sparse_coo:
            self._add_all(coo_parts(tensor))
        elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            self._add_all((tensor.crow_indices(), tensor.col_indices(), tensor.values()))
        elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
            self._add_all((tensor.ccol_indices(), tensor.row_indices(), tensor.values()))
        elif tensor.is_quantized:
            self._mark(str(tensor.qscheme()), tensor.dequantize().tolist())
        else:
            rows = tensor.resolve_conj().resolve_neg().cpu().contiguous()
            self._bytes(bytes_of(rows))
        self.add(dict(getattr(tensor, "__dict__", {})))

    def _add_array(self, array: Any) -> None:
        self._mark(str(np.dtype(array.dtype).descr), array.shape)
        if is_masked_array(array):
            self._add_all((np.asarray(array.data), np.ma.getmaskarray(array)))
        elif array.dtype.hasobject:
            self._add_all(np.asarray(array).reshape(-1).tolist())
        else:
            self._bytes(np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.size else b"")
