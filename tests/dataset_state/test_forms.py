"""Changes of arrays in form are seen: shapes, flags and gradients. Many bytes are compared in part."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from foreload.dataset_state import gathered
from foreload.dataset_state.copied import CopiedState
from foreload.dataset_state.probes.numbers import Room


def _shape(array: Any) -> None:
    array.shape = (2, 3)


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "an array that is no longer to be written to": (
        lambda: np.zeros(6),
        lambda array: array.setflags(write=False),
    ),
    "the shape of an array": (lambda: np.zeros(6), _shape),
    "a tensor that wants a gradient": (lambda: torch.zeros(6), lambda tensor: tensor.requires_grad_()),
    "the gradient of a tensor": (
        lambda: torch.zeros(6, requires_grad=True),
        lambda tensor: tensor.sum().backward(),
    ),
    "a tensor turned in place": (lambda: torch.zeros(2, 3), lambda tensor: tensor.t_()),
}


@pytest.mark.filterwarnings("ignore:Setting the shape")
@pytest.mark.parametrize("name", CHANGES)
def test_what_numbers_are_taken_for_is_watched(name: str) -> None:
    make, change = CHANGES[name]
    dataset = SimpleNamespace(values=make())
    held = CopiedState(dataset)
    assert held.changed() is None
    change(dataset.values)
    assert held.changed() == "values"


def test_asking_for_gradients_warns_of_nothing() -> None:
    weights = torch.ones(3, requires_grad=True)
    assert CopiedState(SimpleNamespace(values=weights * 2, sparse=torch.eye(2).to_sparse())).changed() is None


def test_arrays_beyond_a_number_of_bytes_are_compared_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathered, "Room", lambda: Room(3 * 80_000, watched=0))
    arrays = [np.zeros(10_000) for _ in range(5)]
    # What is not copied takes nothing of it.
    large, spread = np.zeros(1 << 22), np.broadcast_to(np.zeros(1), (1 << 22,))
    held = CopiedState(SimpleNamespace(large=large, spread=spread, arrays=arrays))
    seen = []
    for number in (0, 2, 4):
        arrays[number][1] = 1.0  # one that is not among those that stand for all
        seen.append(held.changed())
        arrays[number][1] = 0.0
    assert seen == ["arrays", "arrays", None]
    arrays[4][:] = 1.0
    assert held.changed() == "arrays"
