"""Indices of any class, also if the sampler fills one object again and again."""

from __future__ import annotations

import dataclasses
import threading
from collections import UserList
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import foreload as fl


class Ids(list[Any]):
    def __new__(cls, *items: Any) -> Any:
        made = super().__new__(cls)
        made.lock = threading.Lock()
        return made


class Again(UserList[Any]):
    pass


class Listed(list[Any]):
    pass


class Refilled:
    """Yields one list-like object again and again."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Iterator[Any]:
        indices = self.kind()
        for number in range(10):
            indices[:] = [2 * number, 2 * number + 1]
            yield indices


@pytest.mark.parametrize("kind", [list, Listed, Again])
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}], ids=str)
def test_a_sampler_may_fill_one_object_of_its_own_again(kind: Any, options: dict[str, Any]) -> None:
    rows = TensorDataset(torch.arange(40))
    loader = fl.DataLoader(rows, batch_sampler=Refilled(kind), **options)
    assert [batch[0].tolist() for batch in loader] == [[2 * number, 2 * number + 1] for number in range(10)]


class Batches:
    """Yields indices of a class of its own."""

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Iterator[Any]:
        for number in range(10):
            indices = Ids()
            indices.extend([number, number])
            yield indices


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"num_workers": 2}], ids=str)
def test_indices_of_any_class_are_those_that_the_sampler_yields(options: dict[str, Any]) -> None:
    rows: Any = torch.arange(400).view(20, 20)
    loader = fl.DataLoader(rows, batch_sampler=Batches(), **options)
    assert [batch.tolist() for batch in loader] == [rows[[number, number]].tolist() for number in range(10)]


@dataclasses.dataclass(eq=False)
class Node:
    number: int
    visits: int = 0


NODES = [Node(number) for number in range(10)]
PLACES = {node: node.number for node in NODES}


class Graph:
    def __len__(self) -> int:
        return 10

    def __getitem__(self, node: Node) -> int:
        node.visits += 1
        return PLACES[node]


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}], ids=str)
@pytest.mark.parametrize(
    "given", [{"sampler": NODES}, {"batch_sampler": [[node] for node in NODES]}], ids=["one", "each"]
)
def test_indices_known_by_their_identity_are_the_samplers(options: dict[str, Any], given: dict[str, Any]) -> None:
    for node in NODES:
        node.visits = 0
    graph: Any = Graph()
    loader = fl.DataLoader(graph, **given, **options)
    assert [batch.tolist() for batch in loader] == [[number] for number in range(10)]
    assert {node.visits for node in NODES} == {1}
