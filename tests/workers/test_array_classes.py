"""Arrays of classes with attributes, as processes send them."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from torch.utils.data import Dataset

import foreload as fl


class Array(np.ndarray):
    pass


class Marked(Dataset[Any]):
    """Arrays with attributes, which no process can be sent for even samples."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        array = np.arange(3.0).view(Array)
        array.mark = index if index % 2 else threading.Lock()  # type: ignore[attr-defined]
        return array


def test_arrays_are_sent_without_attributes_that_cannot_be() -> None:
    """As torch sends them without any."""
    loader = fl.DataLoader(Marked(), batch_size=2, num_workers=1, workers="processes", collate_fn=list)
    arrays = [array for batch in loader for array in batch]
    assert all(type(array) is Array and array.tolist() == [0, 1, 2] for array in arrays)
    assert [vars(array) for array in arrays] == [{}, {"mark": 1}, {}, {"mark": 3}]
