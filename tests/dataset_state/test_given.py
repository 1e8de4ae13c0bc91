"""Objects that the dataset goes on to hold are the loop's too, as in torch without workers."""

from __future__ import annotations

import datetime
import pathlib
import time
import uuid
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset
from torch.utils.data._utils.collate import default_collate_fn_map

import foreload as fl
from foreload.dataset_state.given import OwnedMemory, find_held


class Records(Dataset[Any]):
    """Gives what it holds, and takes long enough for processes to be worth it."""

    def __init__(self, size: int) -> None:
        self.records = [{"number": index, "loss": [0.0]} for index in range(size)]
        self.rows = torch.zeros(size, 2)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        sum(range(100_000))
        return self.records[index]


class OwnRows(Records):
    def __getitem__(self, index: int) -> Any:
        sum(range(100_000))
        return self.rows[index]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", [8, 300])
def test_what_the_dataset_gives_of_its_own_is_the_loops_too(size: int) -> None:
    """A loop may note the loss of a sample in the sample, as it may in torch without workers."""
    found = []
    for kind in (fl.DataLoader, TorchDataLoader):
        records, rows = Records(size), OwnRows(size)
        for batch in kind(records, batch_size=4, collate_fn=list):
            for record in batch:
                record["seen"] = True
                record["loss"][0] += 1
        for row in kind(rows, batch_size=None):
            row += 1
        found.append((records.records, rows.rows.tolist()))
    assert found[0] == found[1]


def test_samples_of_which_copies_are_as_good_may_be_loaded_by_processes() -> None:
    loader: Any = fl.DataLoader(Records(2000), 4, collate_fn=lambda batch: [each["number"] for each in batch])
    assert next(iter(loader)) == [0, 1, 2, 3]
    assert "goes on to hold" not in loader.stats()["workers"]["why"]


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

    def __init__(self) -> None:
        self.record = {"seen": 0}
        self.pair = {"seen": 0}, 1
        self.rows, self.array, self.objects = torch.zeros(4, 3), np.zeros((4, 3)), np.array([[1], [2]], object)
        self.foreign, self.lent = torch.from_numpy(np.zeros((4, 3))), np.zeros((4, 3))
        self.image, self.table = Image.new("L", (4, 4)), pandas.DataFrame({"a": [1, 2]})
        self.sparse = torch.eye(3).to_sparse()


class Text(str):
    """A text with attributes."""


class Slotted:
    __slots__ = ("part",)

    def __init__(self, part: Any) -> None:
        self.part = part


def tagged(value: Any, tag: Any) -> Any:
    value.tag = tag
    return value


GIVEN: dict[str, Callable[[Holder], Any]] = {
    "a record": lambda holder: holder.record,
    "a record within": lambda holder: {"a": [holder.record]},
    "an attribute": lambda holder: Box(holder.record),
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
    "values": lambda holder: torch.sparse_coo_tensor(
        torch.arange(4).unsqueeze(0), holder.rows, check_invariants=True
    ),
}

MADE: dict[str, Callable[[Holder], Any]] = {
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
    "a parameter": lambda holder: torch.nn.Parameter(torch.zeros(2)),
    "an image": lambda holder: holder.image.resize((2, 2)),
    "objects": lambda holder: np.array([[1], [2]], object),
    "a sparse tensor": lambda holder: torch.eye(3).to_sparse(),
    "one thing twice": lambda holder: (lambda part: [part, part, Slotted(part)])([1]),
    "what holds itself": lambda holder: (lambda part: part.append(part) or part)([1]),
    "other containers": lambda holder: [deque([[1]]), OrderedDict(a=[1]), defaultdict(list, a=[1]), {1, 2}],
    "constants": lambda holder: [1, "a", None, (1, (2.0,)), torch.float32, Text, ..., NotImplemented],
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_part_that_is_held_elsewhere_is_found(name: str) -> None:
    holder = Holder()
    assert find_held([GIVEN[name](holder)], is_owned=OwnedMemory(holder).holds)


@pytest.mark.parametrize("name", MADE)
def test_what_is_only_in_the_batch_is_not(name: str) -> None:
    holder = Holder()
    assert find_held([MADE[name](holder)], is_owned=OwnedMemory(holder).holds) is None


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
    assert find_held([samples[:1]]) == "dict"


SLOW = 0.004


class Given(Dataset[Any]):
    """Gives what it holds, or what is made anew, as ``is_new`` says."""

    def __init__(self, is_new: Callable[[int], bool], size: int = 300) -> None:
        self.records = [{"seen": 0} for _ in range(size)]
        self.is_new = is_new

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        time.sleep(SLOW)
        return {"seen": 0} if self.is_new(index) else self.records[index]


class Late(Given):
    """Takes long to load the first sample."""

    def __getitem__(self, index: int) -> Any:
        if not hasattr(self, "index"):
            time.sleep(0.6)
            self.index = True
        return super().__getitem__(index)


class Crops(Given):
    """Gives views of what it holds, each at another place."""

    def __init__(self, is_array: bool) -> None:
        super().__init__(bool)
        self.wave: Any = np.zeros(1000) if is_array else torch.zeros(1000)

    def __getitem__(self, index: int) -> Any:
        time.sleep(SLOW)
        begin = 3 * index
        return {"seen": self.wave[begin : begin + 3]}


class Scaled(Crops):
    """Gives tensors over the array that it holds."""

    def __getitem__(self, index: int) -> Any:
        return {"seen": torch.from_numpy(super().__getitem__(index)["seen"])}


CHANGING: dict[str, Callable[[], Given]] = {
    "all": lambda: Given(lambda index: False),
    "all but the first": lambda: Given(lambda index: index == 0),
    "rare ones": lambda: Given(lambda index: index % 50 != 49),
    "all of a slow one": lambda: Late(lambda index: False),
    "crops of a tensor": lambda: Crops(is_array=False),
    "crops of an array": lambda: Crops(is_array=True),
    "tensors over an array": lambda: Scaled(is_array=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGING)
def test_what_a_loop_writes_to_a_sample_is_in_the_next_epoch(name: str) -> None:
    found = []
    for kind in (fl.DataLoader, TorchDataLoader):
        loader, seen = kind(CHANGING[name](), 4, collate_fn=list), []
        for _ in range(2):
            for batch in loader:
                for sample in batch:
                    seen.append(torch.as_tensor(sample["seen"]).sum().item())
                    sample["seen"] += 1
        found.append(seen)
    assert found[0] == found[1]


class Noted:
    """An object that a loop writes to."""

    seen = 0


@pytest.mark.slow
def test_objects_that_torchs_collation_passes_on_are_the_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(default_collate_fn_map, Noted, lambda batch, *, collate_fn_map=None: batch)
    dataset = Given(bool)
    dataset.records = [Noted() for _ in range(300)]  # type: ignore[misc]
    dataset.is_new = lambda index: False
    for batch in fl.DataLoader(dataset, 4):
        for noted in batch:
            noted.seen += 1
    assert [noted.seen for noted in dataset.records] == [1] * 300


@pytest.mark.slow
def test_what_the_loop_sets_between_epochs_may_change_whose_samples_are() -> None:
    dataset = Given(bool)
    dataset.is_new = bool
    loader = fl.DataLoader(dataset, 4, collate_fn=list)
    for is_new in (True, False, False):
        dataset.is_new = lambda index, is_new=is_new: is_new  # type: ignore[misc]
        for batch in loader:
            for sample in batch:
                sample["seen"] += 1
    assert [record["seen"] for record in dataset.records] == [2] * 300


class Computed(Dataset[Any]):
    """Samples of a model, slow enough for worker processes."""

    def __init__(self) -> None:
        self.weight = torch.ones(2, requires_grad=True)

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.004)
        return self.weight * index


def test_gradients_lead_back_from_samples_into_the_dataset() -> None:
    dataset = Computed()
    for batch in fl.DataLoader(dataset, batch_size=10, collate_fn=list):
        torch.stack(batch).sum().backward()
    assert dataset.weight.grad is not None
    assert dataset.weight.grad.tolist() == [sum(range(100))] * 2
