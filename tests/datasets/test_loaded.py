"""BaseDataset as many scripts subclass it: ``_load_data`` fills ``data`` and ``targets``."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from foreload import LoadingMode


class Records(fl.BaseDataset):
    """Features and labels from a JSON file."""

    loads = 0

    def _load_data(self) -> None:
        type(self).loads += 1
        rows = json.loads(Path(self.data_path).read_text())
        self.data = [torch.tensor(row["x"], dtype=torch.float32) for row in rows]
        self.targets = [row["y"] for row in rows]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{"x": [i, i + 0.5], "y": i % 3} for i in range(20)]))
    return path


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", LoadingMode)
def test_it_trains_in_every_loader(file: Path, mode: LoadingMode) -> None:
    before = Records.loads
    records = Records(file, transform=lambda x: x * 2, target_transform=float, loading_mode=mode)
    assert len(records) == 20
    for loader in (
        TorchDataLoader(records, batch_size=8, num_workers=2),
        fl.DataLoader(records, batch_size=8),
        fl.DataLoader(records, batch_size=8, num_workers=2),
        fl.EfficientDataLoader(records, fl.DataLoaderConfig(batch_size=8, num_workers=0, shuffle=False)),
    ):
        xs, ys = map(torch.cat, zip(*loader, strict=True))
        assert xs.tolist() == [[2 * i, 2 * i + 1] for i in range(20)]
        assert ys.tolist() == [i % 3 for i in range(20)]
    assert Records.loads == before + 1
    assert sorted(int(x[0]) for x, _ in records.stream(seed=0)) == list(range(0, 40, 2))
    records.transform = None
    assert pickle.loads(pickle.dumps(Records(file)))[-1][1] == 1
    with pytest.raises(IndexError, match="index 20 is out of range for 20 samples"):
        records[20]
    with pytest.raises(FileNotFoundError, match="none"):
        Records(file.parent / "none")


def test_data_may_be_arrays_without_targets_made_from_nothing_and_changed_later() -> None:
    class Noise(fl.BaseDataset):
        def __init__(self, count: int) -> None:
            self.count = count
            super().__init__("unused")
            self.data = self.data[:8] / 2  # as scripts normalise or split

        def _load_data(self) -> None:
            self.data = np.arange(2.0 * self.count).reshape(self.count, 2)

    noise = Noise(12)
    assert len(noise) == 8
    assert [row.tolist() for row in noise] == [[i, i + 0.5] for i in range(8)]
    assert next(iter(fl.DataLoader(noise, batch_size=8))).shape == (8, 2)


def test_lists_are_there_to_be_filled() -> None:
    class Appended(fl.BaseDataset):
        def _load_data(self) -> None:
            for i in range(5):
                self.data.append(i)
                self.targets.append(-i)

    assert list(Appended("x")) == [(i, -i) for i in range(5)]


class Series:
    """The part of pandas that matters: an index counts labels, ``iloc`` positions."""

    def __init__(self, labels: list[int], values: list[Any]) -> None:
        self.labels, self.iloc = labels, values

    def __len__(self) -> int:
        return len(self.iloc)

    def __getitem__(self, label: int) -> Any:
        return self.iloc[self.labels.index(label)]


def test_rows_of_pandas_are_taken_by_position() -> None:
    class Filtered(fl.BaseDataset):
        def _load_data(self) -> None:
            self.data, self.targets = Series([2, 1, 0], ["c", "b", "a"]), Series([0, 1, 2], [2, 1, 0])

    assert list(Filtered("x")) == [("c", 2), ("b", 1), ("a", 0)]


def test_own_methods_have_their_way() -> None:
    class Own(fl.BaseDataset):
        def _load_data(self) -> None:
            self.samples = list("abc")

        def __len__(self) -> int:
            return len(self.samples)

        def __getitem__(self, index: int) -> Any:
            return self.samples[index] + "!"

    own = Own("x", loading_mode=LoadingMode.EAGER)
    assert [batch[0] for batch in fl.DataLoader(own)] == ["a!", "b!", "c!"]
    assert sorted(own.stream(seed=1)) == ["a!", "b!", "c!"]

    class Read(fl.BaseDataset):
        reads = 0

        def _load_data(self) -> None:
            self.data = ["a", "b"]

        def read(self, index: int) -> Any:
            type(self).reads += 1
            return self.data[index].upper()

    kept = Read("x", loading_mode=LoadingMode.EAGER)
    assert [*kept, *kept] == ["A", "B", "A", "B"]
    assert Read.reads == 2


@pytest.mark.parametrize(
    ("filled", "returned", "error", "message"),
    [
        ({"data": [1, 2], "targets": [1]}, None, ValueError, "2 entries in self.data, but 1 in self.targets"),
        ({"data": None}, None, TypeError, "must fill self.data with a list, .* it is of the type NoneType"),
        ({"data": {"a": 1}}, None, TypeError, "fill self.data .* type dict"),
        ({"data": [1], "targets": iter([1])}, None, TypeError, "fill self.targets .* type list_iterator"),
        ({}, ([1], [2]), TypeError, "and return nothing, but it returned a tuple"),
    ],
)
def test_what_does_not_fit_is_named(filled: dict[str, Any], returned: Any, error: Any, message: str) -> None:
    class Wrong(fl.BaseDataset):
        def _load_data(self) -> Any:
            vars(self).update(filled)
            return returned

    with pytest.raises(error, match=f"Wrong.*{message}"):
        Wrong("x")
