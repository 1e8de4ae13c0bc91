"""The check of the native stub that ``make lint`` runs: it passes, and finds each kind of difference."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
spec = importlib.util.spec_from_file_location("check_stubs", ROOT / "scripts" / "check_stubs.py")
assert spec is not None
assert spec.loader is not None
check: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check)


def test_the_stub_is_that_of_the_module() -> None:
    assert check.compare(check.STUB.read_text(), check.generated("foreload._native")) == []


@pytest.mark.parametrize(
    ("stub", "built", "message"),
    [
        ("def f() -> int: ...", "", "f: not in the bindings"),
        ("", "def f() -> int: ...", "f: in the bindings, but not in the stub"),
        ("def f(a: int) -> int: ...", "def f(a: int, b: int) -> int: ...", "f: arguments are (a: int), but"),
        ("def f(a: int) -> int: ...", "def f(b: int) -> int: ...", "f: arguments are (a: int), but"),
        ("def f(a: int) -> int: ...", "def f(a: str) -> int: ...", "f: arguments are (a: int), but"),
        ("def f(a: int) -> int: ...", "def f(a: int | None) -> int: ...", "f: arguments are (a: int), but"),
        ("def f(a: int = 1) -> int: ...", "def f(a: int = 2) -> int: ...", "f: arguments are (a: int=1), but"),
        ("def f(a: int = 1) -> int: ...", "def f(a: int) -> int: ...", "f: arguments are (a: int=1), but"),
        ("def f(a: int) -> int: ...", "def f(*, a: int) -> int: ...", "f: arguments are (a: int), but"),
        ("def f(a: int) -> int: ...", "def f(arg: int, /) -> int: ...", "f: arguments are (a: int), but"),
        ("def f() -> int: ...", "def f() -> str: ...", "f: returns int, but in the bindings str"),
        ("def f() -> int: ...", "class f: ...", "f: a function in the stub, a class in the bindings"),
        ("class A:\n x: int", "class A: ...", "A.x: not in the bindings"),
        ("class A: ...", "class A:\n def f(self): ...", "A.f: in the bindings, but not in the stub"),
        ("class A(B): ...", "class A(C): ...", "A: derives from ['B'], but in the bindings from ['C']"),
        (
            "class A:\n x: int",
            "class A:\n @property\n def x(self) -> int: ...",
            "A.x: attribute, int, but in the bindings read-only attribute, int",
        ),
        (
            "class A:\n x: ClassVar[int]",
            "class A:\n x: Final[str] = ...",
            "A.x: constant, int, but in the bindings constant, str",
        ),
        (
            "class A:\n def f(a: int): ...",
            "class A:\n @staticmethod\n def f(a: int): ...",
            "A.f: not static, unlike in the bindings",
        ),
        (
            "class A:\n def f(self): ...",
            "class A:\n @overload\n def f(self): ...\n @overload\n def f(self, a: int): ...",
            "A.f: 1 signatures, but 2 in the bindings",
        ),
    ],
)
def test_a_difference_is_found(stub: str, built: str, message: str) -> None:
    (line,) = check.compare(stub, built)
    assert line.startswith(message)


@pytest.mark.parametrize(
    ("stub", "built"),
    [
        ("def f(samples: int, /) -> int: ...", "def f(arg0: int, /) -> int: ..."),
        ("def f(a: Array) -> tuple[int, str]: ...", "def f(a: Annotated[NDArray, dict()]) -> tuple: ..."),
        ("class A:\n x: int", "class A:\n @property\n def x(self) -> int: ...\n @x.setter\n def x(self, a): ..."),
        ("class A:\n x: ClassVar[int]", "class A:\n x: Final[int] = ..."),
    ],
)
def test_a_type_may_be_more_precise_than_the_bindings(stub: str, built: str) -> None:
    assert check.compare(stub, built) == []
