"""Counts of references tell whether anything else refers to a part of a batch."""

from __future__ import annotations

import ctypes
import datetime
import functools
import logging
import pathlib
import subprocess
import sys
import uuid
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pandas
import pyarrow
import pytest
import torch
from PIL import Image
from torch.utils.dlpack import from_dlpack

from foreload.cache.serialize import flatten, restore
from foreload.dataset_state.given import find_held


@dataclass
class Box:
    rows: Any


HELD: dict[str, Any] = {
    "a path": pathlib.Path("a"),
    "a time": datetime.datetime(2020, 1, 2),
    "a duration": datetime.timedelta(1),
    "an id": uuid.UUID(int=5),
    "a device": torch.device("cpu"),
    "a type": torch.float32,
    "text": "text",
    "numbers": (1, 2.5, None),
    "a function": len,
}


@pytest.mark.parametrize("name", HELD)
def test_what_nobody_can_change_may_be_held_by_all(name: str) -> None:
    assert find_held([HELD[name]]) is None
    assert find_held([{"part": HELD[name]}]) is None


class Holder:
    """Holds something of every kind."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.record = {"seen": 0}
        self.pair = {"seen": 0}, 1
        self.rows, self.array, self.objects = torch.zeros(4, 3), np.zeros((4, 3)), np.array([[1], [2]], object)
        self.foreign, self.lent = torch.from_numpy(np.zeros((4, 3))), np.zeros((4, 3))
        self.image, self.table = Image.new("L", (4, 4)), pandas.DataFrame({"a": [1, 2]})
        self.sparse, self.rows_of_it = torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()
        self.records = np.zeros(3, [("x", "f8")])
        self.text, self.storage, self.bytes = Text("a"), torch.zeros(4).untyped_storage(), bytearray(16)
        self.arrays = np.empty(2, object)
        self.arrays[:] = [np.zeros(3), np.zeros(2)]
        self.raw, self.series = b"0" * 64, pandas.Series([np.zeros(3), np.zeros(2)])
        self.kept, self.buffer = functools.lru_cache(np.zeros), (ctypes.c_float * 8)()
        (folder / "rows").write_bytes(bytes(64))
        self.path = str(folder / "rows")
        self.mapped, self.column = np.memmap(self.path, np.uint8, "r"), pyarrow.array([1.0, 2.0])


class Text(str):
    """A text with attributes."""


class NamedPoint(NamedTuple):
    x: int
    y: int


def read_only(array: Any) -> Any:
    view = array.view()
    view.flags.writeable = False
    return view


class Shown(tuple[Any, ...]):
    __slots__ = ()

    def __iter__(self) -> Any:
        return map(str, range(len(self)))


class Amount(Decimal):
    """A number with attributes."""


def with_objects(holder: Any) -> Any:
    rows = np.zeros(1, [("o", object)])
    rows[0]["o"] = holder.record
    return rows


class Slotted:
    __slots__ = ("part",)

    def __init__(self, part: Any) -> None:
        self.part = part


def tagged(value: Any, tag: Any) -> Any:
    value.tag = tag
    return value


POINT, LOGGER, NO_BOXES = NamedPoint(1, 2), logging.getLogger("foreload.tests"), torch.zeros(0, 4)

GIVEN: dict[str, Callable[[Holder], Any]] = {
    "a record": lambda holder: holder.record,
    "a record within": lambda holder: {"a": [holder.record]},
    "an attribute": lambda holder: Box(holder.record),
    "an empty tensor": lambda holder: NO_BOXES,
    "an array and a tensor over its row": lambda holder: {
        "a": holder.array,
        "t": torch.from_numpy(holder.array[1]),
    },
    "a tensor over a read-only array": lambda holder: torch.from_numpy(read_only(holder.array)[1:]),
    "a tensor over a view of bytes": lambda holder: torch.frombuffer(memoryview(holder.bytes), dtype=torch.uint8),
    "a tensor over texts' bytes": lambda holder: torch.from_numpy(np.frombuffer(holder.raw, np.uint8)),
    "a tensor of another library": lambda holder: from_dlpack(np.zeros(3)),
    "an array over a map of a file": lambda holder: np.memmap(holder.path, np.uint8, "r+"),
    "a tensor over a map of a file": lambda holder: torch.from_numpy(np.memmap(holder.path, np.uint8, "r+")[2:]),
    "a tensor over a file": lambda holder: torch.from_file(holder.path, shared=True, size=2),
    "bytes under a view of them": lambda holder: torch.frombuffer(memoryview(holder.raw)[3:40], dtype=torch.uint8),
    "an array over a view of bytes": lambda holder: torch.from_numpy(np.frombuffer(memoryview(holder.raw), "u1")),
    "objects of a read-only array": lambda holder: read_only(holder.objects)[:1],
    "a window of objects": lambda holder: np.lib.stride_tricks.sliding_window_view(holder.objects[:, 0], 1)[1],
    "a window of an array": lambda holder: np.lib.stride_tricks.sliding_window_view(holder.array, (2, 2))[0],
    "a read-only view of bytes": lambda holder: np.frombuffer(memoryview(holder.bytes).toreadonly(), "u1"),
    "an attribute of a map": lambda holder: tagged(np.memmap(holder.path, np.uint8, "r"), [holder.record]),
    "a slice": lambda holder: slice(holder.record),
    "a tuple that shows other items": lambda holder: Shown((holder.record,)),
    "an attribute of a number": lambda holder: tagged(Amount("1.5"), holder.record),
    "objects of a record": lambda holder: with_objects(holder)[0].copy(),
    "an array of another library": lambda holder: np.from_dlpack(holder.array[1]),
    "a tensor over an array of another library": lambda holder: torch.from_numpy(np.from_dlpack(holder.array[1])),
    "an array over memory of ctypes": lambda holder: np.ctypeslib.as_array(holder.buffer)[1:],
    "a detached sparse tensor": lambda holder: holder.sparse.detach(),
    "a sparse tensor with its rows": lambda holder: holder.rows_of_it.detach(),
    "a new sparse tensor": lambda holder: torch.eye(3).to_sparse(),  # for all that can be seen
    "a nested tensor": lambda holder: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]).detach(),
    "a table's column": lambda holder: torch.frombuffer(holder.column.buffers()[1], dtype=torch.float64),
    "an array over a table's column": lambda holder: torch.from_numpy(np.frombuffer(holder.column.buffers()[1])),
    "an index": lambda holder: holder.table.index,
    "an index of results": lambda holder: holder.table * 2,
    "values of a table": lambda holder: torch.from_numpy(holder.table["a"].values[1:]),
    "a tensor over an array of a series": lambda holder: torch.from_numpy(holder.series[1][1:]),
    "a tensor over what a function keeps": lambda holder: torch.from_numpy(holder.kept(3)),
    "a tensor over a ctypes buffer": lambda holder: torch.from_numpy(np.ctypeslib.as_array(holder.buffer)),
    "an attribute of a tensor": lambda holder: tagged(torch.zeros(2), holder.record),
    "an attribute of a text": lambda holder: tagged(Text("a"), holder.record),
    "an attribute of an array": lambda holder: tagged(np.zeros(2).view(type("Own", (np.ndarray,), {})), [holder]),
    "a slot": lambda holder: Slotted(holder.record),
    "a tuple": lambda holder: holder.pair,
    "an iterator": lambda holder: iter([holder.record]),
    "a method": lambda holder: holder.record.get,
    "a row": lambda holder: holder.rows[1],
    "a crop": lambda holder: holder.rows.view(-1)[3:7],
    "a transposed tensor": lambda holder: holder.rows.T,
    "a detached tensor": lambda holder: holder.rows.detach(),
    "an array of a tensor": lambda holder: holder.rows.numpy()[1],
    "a row of an array": lambda holder: holder.array[1],
    "a tensor over an array": lambda holder: torch.from_numpy(holder.lent)[1],
    "a row of a tensor over an array": lambda holder: holder.foreign[1],
    "objects": lambda holder: holder.objects[:1],
    "an object": lambda holder: holder.objects[0],
    "an image": lambda holder: holder.image,
    "a table": lambda holder: holder.table,
    "a sparse tensor": lambda holder: holder.sparse,
    "values of a sparse tensor": lambda holder: torch.sparse_csr_tensor(
        torch.tensor([0, 4]), torch.arange(4), holder.rows[:, 0]
    ),
    "a record of an array": lambda holder: holder.records[1],
    "a text of a class": lambda holder: holder.text,
    "a tensor over a storage": lambda holder: torch.empty(0).set_(holder.storage),
    "a tensor over bytes": lambda holder: torch.frombuffer(holder.bytes, dtype=torch.uint8)[4:],
    "a tensor over an array among objects": lambda holder: torch.from_numpy(holder.arrays[1]),
    "an array and a tensor over it": lambda holder: [holder.array, torch.from_numpy(holder.array)],
    "values": lambda holder: torch.sparse_coo_tensor(
        torch.arange(4).unsqueeze(0), holder.rows, check_invariants=True
    ),
}

MADE: dict[str, Callable[[Holder], Any]] = {
    "a number that is none": lambda holder: [float("nan"), torch.tensor(np.nan).item()],
    "halves": lambda holder: torch.arange(4.0).chunk(2),
    "a view of new bytes": lambda holder: np.frombuffer(bytes(range(8)), np.uint8)[2:],
    "a repeated number": lambda holder: np.broadcast_to(np.arange(3.0).copy(), (2, 3)),
    "a record": lambda holder: dict(holder.record),
    "a tuple": lambda holder: (dict(holder.record), 1),
    "a row": lambda holder: holder.rows[1].clone(),
    "rows": lambda holder: torch.stack([*holder.rows]),
    "a view of what is dropped": lambda holder: torch.zeros(8)[2:4],
    "windows": lambda holder: (lambda wave: (wave[:8], wave[4:12]))(torch.zeros(64)),
    "parts": lambda holder: torch.zeros(4, 2).split(2),
    "a tensor and its views": lambda holder: (lambda rows: [rows, rows[1:], rows.T, rows.numpy()])(
        torch.zeros(2, 2)
    ),
    "a row of an array": lambda holder: holder.array[1].copy(),
    "a tensor over an array": lambda holder: torch.from_numpy(holder.array + 1)[1],
    "a tensor over bytes": lambda holder: torch.frombuffer(bytearray(8), dtype=torch.uint8),
    "a tensor over a file's bytes": lambda holder: torch.from_numpy(np.frombuffer(bytes([3, 4] * 8), "u1")[2:]),
    "a tensor over an image": lambda holder: torch.from_numpy(np.asarray(holder.image.resize((3, 3)))),
    "an array of a tensor": lambda holder: torch.zeros(3).numpy(),
    "a tensor over an array of a tensor": lambda holder: torch.from_numpy(torch.zeros(3).numpy()[1:]),
    "a map of a file that is read": lambda holder: np.memmap(holder.path, np.uint8, "r")[2:],
    "a tensor over a map of a file that is read": lambda holder: torch.from_numpy(
        np.memmap(holder.path, "u1", "r")
    ),
    "a copy of a map of a file": lambda holder: torch.from_numpy(np.memmap(holder.path, np.uint8, "c")[2:]),
    "a table of texts": lambda holder: pandas.DataFrame({"a": ["b", "c"]}),
    "an array and a tensor over it": lambda holder: (lambda array: [array, torch.from_numpy(array)])(np.zeros(4)),
    "parts of an array and tensors over others": lambda holder: (
        lambda array: [array[:, :1], torch.from_numpy(array[:, 1:]), torch.from_numpy(array)]
    )(np.zeros((2, 3))),
    "bytes and a tensor over them": lambda holder: (
        lambda memory: [memory, torch.frombuffer(memory, dtype=torch.uint8)]
    )(bytearray(8)),
    "what a cache has given": lambda holder: restore(
        [bytearray(part) for part in flatten({"x": torch.zeros(3), "boxes": np.zeros((2, 4))})]
    ),
    "a table": lambda holder: holder.table.iloc[:1].copy(),
    "a record of an array": lambda holder: np.zeros(3, [("x", "f8")])[1],
    "a parameter": lambda holder: torch.nn.Parameter(torch.zeros(2)),
    "an image": lambda holder: holder.image.resize((2, 2)),
    "objects": lambda holder: np.array([[1], [2]], object),
    "bytes and arrays and tensors over them": lambda holder: (
        lambda raw: [raw, np.frombuffer(raw, "u1", 4), torch.from_numpy(np.frombuffer(raw, "u1")[4:])]
    )(bytes([1, 2] * 8)),
    "what was read and a tensor over it": lambda holder: (
        lambda raw: [raw, torch.frombuffer(raw, dtype=torch.uint8)]
    )(bytes([1, 2] * 8)),
    "parts of a read-only array": lambda holder: (lambda rows: [rows[:4], torch.from_numpy(rows[4:])])(
        np.frombuffer(bytes([1, 2] * 8), "u1")
    ),
    "a window of windows": lambda holder: torch.from_numpy(
        np.lib.stride_tricks.sliding_window_view(np.zeros(8), 3)
    )[2],
    "a row of a map of a file that is read": lambda holder: torch.from_numpy(
        np.asarray(np.memmap(holder.path, "u1", "r"))[3:]
    ),
    "a row of a held map of a file that is read": lambda holder: torch.from_numpy(np.asarray(holder.mapped)[3:]),
    "one thing twice": lambda holder: (lambda part: [part, part, Slotted(part)])([1]),
    "what holds itself": lambda holder: (lambda part: part.append(part) or part)([1]),
    "other containers": lambda holder: [deque([[1]]), OrderedDict(a=[1]), defaultdict(list, a=[1]), {1, 2}],
    "constants": lambda holder: [
        1,
        "a",
        None,
        (1, (2.0,)),
        torch.float32,
        Text,
        ...,
        NotImplemented,
        POINT,
        LOGGER,
    ],
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_part_that_is_held_elsewhere_is_found(name: str, tmp_path: pathlib.Path) -> None:
    holder = Holder(tmp_path)
    assert find_held([GIVEN[name](holder)])


@pytest.mark.parametrize("name", MADE)
def test_what_is_only_in_the_batch_is_not(name: str, tmp_path: pathlib.Path) -> None:
    holder = Holder(tmp_path)
    assert find_held([MADE[name](holder)]) is None


def test_what_only_garbage_refers_to_is_not_held() -> None:
    record = {"seen": 0}
    garbage: list[Any] = [record]
    garbage.append(garbage)
    batch = [[record]]
    del record, garbage
    assert find_held(batch) is None


def test_references_of_samples_that_it_was_made_of_do_not_count() -> None:
    samples = [{"number": number} for number in range(3)]
    assert find_held([list(samples)], [samples]) is None
    assert "hold a dict of a batch" in str(find_held([samples[:1]]))


def test_deep_tuples_are_looked_into_once() -> None:
    deep: Any = ()
    wide: Any = (1,)
    for _ in range(2000):
        deep = (deep, 1)
    for _ in range(60):
        wide = (wide, wide)
    batch = [[deep, wide]]
    del deep, wide
    assert find_held(batch) is None


def test_what_is_counted_does_not_depend_on_the_mode_of_the_first_loop() -> None:
    code = """if True:
        import torch
        with torch.inference_mode(), torch.device("meta"):
            from foreload.dataset_state.given import find_held
            find_held([torch.zeros(2, device="cpu")])
        rows = torch.zeros(4, 3)
        print(find_held([rows[1]]) is None, find_held([torch.zeros(4)]) is None)
    """
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["False", "True"]


def test_memory_that_nobody_holds_but_others_may_share_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "rows").write_bytes(bytes(64))
    mapped = [np.memmap(tmp_path / "rows", np.uint8, "r+")]
    assert "file that is mapped" in str(find_held(mapped))
    assert "another library's" in str(find_held([from_dlpack(np.zeros(3))]))
