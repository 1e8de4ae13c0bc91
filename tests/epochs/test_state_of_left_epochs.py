"""States of epochs that were left before their first batch: they have the dataset's state all the same."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import IterableDataset

import foreload as fl
from tests.epochs.stateful import Counting, Passes


def _advanced(kind: Any) -> Any:
    dataset = kind()
    if kind is Counting:
        dataset.loaded = 100
    else:
        dataset.passes = 100
    return dataset


def _loader(dataset: Any, workers: Any, persistent: bool) -> Any:
    return fl.DataLoader(
        dataset, batch_size=4, num_workers=2, workers=workers, persistent_workers=persistent, seed=0
    )


def _values(batches: Any) -> list[Any]:
    return [[part.tolist() for part in batch] for batch in batches]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("how", ["close", "forget"])
@pytest.mark.parametrize(
    ("kind", "workers"), [(Counting, "processes"), (Passes, "processes"), (Passes, "threads")]
)
def test_nothing_of_the_datasets_state_is_lost(kind: Any, workers: Any, how: str, persistent: bool) -> None:
    expected = _values(_loader(_advanced(kind), workers, persistent=False))
    loader = _loader(_advanced(kind), workers, persistent)
    epoch = iter(loader)
    if how == "close":
        epoch.close()
        assert next(epoch, None) is None
    del epoch
    gc.collect()
    state = loader.state_dict()
    loader.close()
    resumed = _loader(kind(), workers, persistent)
    resumed.load_state_dict(state)
    assert _values(resumed) == expected
    resumed.close()


class Slow(IterableDataset[int]):
    """Takes until it is let go to begin."""

    gate = threading.Event()

    def __iter__(self) -> Iterator[int]:
        self.gate.wait(600)
        return iter(range(8))

    def state_dict(self) -> dict[str, int]:
        return {"at": 5}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


def test_a_state_that_is_late_is_an_error_and_comes_later() -> None:
    loader = fl.DataLoader(Slow(), batch_size=None, num_workers=1, workers="threads", timeout=0.3)
    epoch = iter(loader)
    for ask in (loader.state_dict, lambda: next(epoch), loader.state_dict):
        with pytest.raises(RuntimeError, match=r"timed out after 0\.3 seconds"):
            ask()
    Slow.gate.set()
    loader.timeout = 60
    while True:
        try:
            state = loader.state_dict()
            break
        except RuntimeError:
            continue
    assert state["streams"][0][2]["dataset"] == {"at": 5}
    assert [int(value) for value in epoch] == list(range(8))
    Slow.gate.clear()


def test_a_state_that_cannot_be_known_any_more_is_an_error() -> None:
    loader = fl.DataLoader(Slow(), batch_size=None, num_workers=1, workers="threads", timeout=0.3)
    epoch = iter(loader)
    with pytest.raises(RuntimeError, match="timed out"):
        next(epoch)
    del epoch  # which does not wait for a thread that is late
    with pytest.raises(RuntimeError, match="begin another epoch"):
        loader.state_dict()
    Slow.gate.set()
    assert [int(value) for value in loader] == list(range(8))
    Slow.gate.clear()
