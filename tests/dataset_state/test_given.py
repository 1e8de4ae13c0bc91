"""Objects that the dataset goes on to hold are the loop's too, as in torch without workers."""

from __future__ import annotations

import datetime
import pathlib
import uuid
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import foreload as fl
from foreload.dataset_state.given import gives_its_own


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
    assert not gives_its_own([HELD[name]], [HELD[name]])
    assert not gives_its_own({"part": HELD[name]}, {"part": HELD[name]})


def test_parts_of_new_objects_may_be_the_datasets() -> None:
    rows = torch.zeros(3, 2)
    assert gives_its_own(Box(rows[0]), Box(rows[0]))
    assert gives_its_own([Box([rows.numpy()[0]])], [Box([rows.numpy()[0]])])
    assert not gives_its_own(Box(rows[0].clone()), Box(rows[0].clone()))
    round_trip: list[Any] = []
    round_trip.append(round_trip)
    assert gives_its_own(round_trip, round_trip)
    assert not gives_its_own(round_trip, [])
