"""Hashes of code do not depend on how deep functions, classes and sets lie in each other."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from foreload.dataset_state.program.codes import UnknownContentError, digest_code
from foreload.dataset_state.program.state import ProgramState


def _chain(last: int) -> Any:
    lines = [f"def step_{number}(x): return step_{number + 1}(x)" for number in range(300)]
    known = {"__name__": "project"}
    exec("\n".join([*lines, f"def step_300(x): return {last}"]), known)
    return known["step_0"]


def _classes(last: int) -> Any:
    lines = []
    for number in range(200):
        others = ", ".join(f"Part{(number * factor + 1) % 200}" for factor in (1, 3, 7))
        lines.append(f"class Part{number}:\n    number = {number}\n    def run(self): return {others}")
    known = {"__name__": "project"}
    exec("\n".join([*lines, f"Part199.number = {last}"]), known)
    return known["Part0"]


@pytest.mark.parametrize("make", [_chain, _classes])
def test_projects_of_ordinary_size_are_compared(make: Any) -> None:
    assert digest_code(make(1)) == digest_code(make(1)) != digest_code(make(2))


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (struct.Struct("<I"), struct.Struct("<Q")),
        (memoryview(b"ab"), memoryview(b"ac")),
        ({str(number) for number in range(2_000)}, {str(number) for number in range(1, 2_001)}),
        ({1, "1", None, 2.5}, {1, "1", None, 3.5}),
    ],
)
def test_constants_are_compared(value: Any, other: Any) -> None:
    assert digest_code([value]) == digest_code([value]) != digest_code([other])


def test_sets_of_very_many_objects_are_not_compared() -> None:
    class Item: ...

    assert digest_code({Item() for _ in range(10)}) == digest_code({Item() for _ in range(10)})
    with pytest.raises(UnknownContentError, match="a set of 1001 objects"):
        digest_code({Item() for _ in range(1_001)})


class Refuses:
    def __reduce__(self) -> Any:
        raise RuntimeError("not now")


def test_what_raises_when_it_is_looked_at_cannot_be_compared() -> None:
    differs = ProgramState(Refuses()).differs()
    assert differs is not None
    assert differs.startswith("nothing tells whether what the program has set")
    assert "RuntimeError: not now" in differs
