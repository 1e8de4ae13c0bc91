"""Objects of libraries whose state no attribute shows."""

from __future__ import annotations

import codecs
import ctypes
import datetime
import decimal
import hashlib
import operator
import re
import struct
import tempfile
import threading
import time
import types
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import foreload as fl
from foreload.dataset_state.copied import CopiedState
from foreload.dataset_state.sealed import find_sealed, is_sealed
from foreload.dataset_state.walk import slots_of


class Tally:
    """Counts in a private slot."""

    __slots__ = ("__calls",)

    def __init__(self) -> None:
        self.__calls = 0

    def count(self) -> int:
        self.__calls += 1
        return self.__calls


class Kind(type):
    """A class of classes, which counts for all of them."""

    calls = 0


class Counted(metaclass=Kind):
    """A class that counts in its own class."""

    def count(self) -> int:
        type(type(self)).calls += 1
        return Kind.calls


class Number(int):
    """A number with attributes."""


def canvas() -> Image.Image:
    return Image.new("L", (4, 4))


def element() -> ElementTree.Element:
    return ElementTree.fromstring("<sample><box n='1'/></sample>")


def number() -> Number:
    held = Number(3)
    held.calls = 0
    return held


def masked() -> Any:
    return np.ma.masked_array(np.arange(64), mask=[False] * 64)  # type: ignore[no-untyped-call]


CHANGED: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "picture": (canvas, lambda image: image.putpixel((1, 1), 9)),
    "element": (element, lambda root: root[0].set("n", "2")),
    "child": (element, lambda root: ElementTree.SubElement(root, "box")),
    "context": (lambda: decimal.Context(prec=3), lambda context: setattr(context, "prec", 4)),
    "storage": (lambda: torch.zeros(4).untyped_storage(), lambda storage: storage.__setitem__(0, 1)),
    "view": (lambda: memoryview(bytearray(4)), lambda view: view.__setitem__(0, 1)),
    "private slot": (Tally, lambda tally: tally.count()),
    "metaclass": (Counted, lambda counted: counted.count()),
    "number": (number, lambda held: setattr(held, "calls", 1)),
    "exception": (lambda: ValueError(0), lambda error: setattr(error, "args", (1,))),
    "masked": (masked, lambda array: array.__setitem__(3, np.ma.masked)),
    "masked number": (masked, lambda array: array.__setitem__(3, 77)),
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_change_is_seen(what: str) -> None:
    make, change = CHANGED[what]
    held = make()
    state = CopiedState(SimpleNamespace(held=held))
    assert state.changed() is None
    change(held)
    assert state.changed() is not None
    assert find_sealed(SimpleNamespace(held=held)) is None


def coroutine() -> Any:
    async def wait() -> None: ...

    waiting = wait()
    waiting.close()  # Python warns of one that was never awaited
    return waiting


async def numbers() -> AsyncIterator[int]:
    """Yield something."""
    yield 1


class Cell(ctypes.Structure):
    """A structure of ctypes."""


SEALED: dict[str, Callable[[], Any]] = {
    "hash": hashlib.sha256,
    "compressor": zlib.compressobj,
    "decoder": lambda: codecs.getincrementaldecoder("shift_jis")(),
    "coroutine": coroutine,
    "async generator": numbers,
    "pointer": lambda: ctypes.pointer(ctypes.c_int(0)),
    "drawing": lambda: ImageDraw.Draw(canvas()),
    "scripted": lambda: torch.jit.script(torch.nn.ReLU()),
}


@pytest.mark.parametrize("what", SEALED)
def test_it_is_found(what: str) -> None:
    assert find_sealed(SimpleNamespace(held=[SEALED[what]()])) is not None


PLAIN: dict[str, Callable[[], Any]] = {
    "module": lambda: torch.nn.BatchNorm1d(3),
    "picture": canvas,
    "large picture": lambda: Image.new("RGB", (500, 500)),
    "lock": threading.Lock,
    "event": threading.Event,
    "thread's own": threading.local,
    "pattern": lambda: re.compile("a"),
    "struct": lambda: struct.Struct("i"),
    "time": datetime.datetime.now,
    "NumPy's": lambda: [np.float32(1), np.dtype("i4"), np.add, np.arange(3), np.random.default_rng()],
    "torch's": lambda: [
        torch.float32,
        torch.device("cpu"),
        torch.finfo(torch.float32),
        torch.Size([1]),
        torch.ones(1),
    ],
    "code": lambda: [operator.itemgetter(1), len, [].append, types.MappingProxyType({}), torch.nn.functional.relu],
    "structure": Cell,
    "temporary folder": tempfile.TemporaryDirectory,
    "decompressor": lambda: pytest.importorskip("zstandard").ZstdDecompressor(),
    "open file": lambda: open(__file__),  # noqa: SIM115
}


@pytest.mark.parametrize("what", PLAIN)
def test_nothing_else_is(what: str) -> None:
    held = PLAIN[what]()
    assert find_sealed(SimpleNamespace(held=held)) is None
    if what == "open file":
        held.close()


class Signs(Dataset[Any]):
    """Gives a digest of all samples so far."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> str:
        time.sleep(0.002)
        self.hash.update(bytes([index]))
        return self.hash.hexdigest()


class SignsLazily(Signs):
    """Makes the hash when it is first needed."""

    def __init__(self) -> None:
        self.hash = None  # type: ignore[assignment]

    def __getitem__(self, index: int) -> str:
        self.hash = hashlib.sha256() if self.hash is None else self.hash
        return super().__getitem__(index)


@pytest.mark.parametrize("kind", [Signs, SignsLazily])
def test_batches_are_stocks(kind: type[Signs]) -> None:
    assert list(fl.DataLoader(kind(), batch_size=4)) == list(TorchDataLoader(kind(), batch_size=4))


def test_what_is_made_later_is_looked_at_too() -> None:
    """A hash that was None tells of the samples since; a library's decoder is each worker's own."""
    signs = SignsLazily()
    state = CopiedState(signs)
    signs[0]
    assert state.changed_by_loading() == "hash"
    assert is_sealed(signs.hash)


def test_private_slots_are_found_by_their_full_names() -> None:
    assert slots_of(Tally) == ["_Tally__calls"]
