"""Loops over iterables in Python's bytecode: at which instructions they fetch their next item."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import NamedTuple

__all__ = ["Loop", "find_loops", "loops_of_file"]

# After FOR_ITER, Python 3.12 and later have a cache, which counts as the instruction while the iterator runs.
_CACHED = sys.version_info >= (3, 12)


class Loop(NamedTuple):
    """A loop in a code object.

    Attributes:
        start, end: offsets of its first instruction, and of the first after it.
        line: the line of its ``for``, or of its call of ``next``.
        waits: offsets at which it fetches the next item.
    """

    start: int
    end: int
    line: int
    waits: frozenset[int]


def find_loops(code: CodeType) -> list[Loop]:
    """Return the loops over iterables in a code object, outermost first.

    >>> def train(batches):
    ...     for batch in batches:
    ...         print(batch)
    >>> [loop.line - train.__code__.co_firstlineno for loop in find_loops(train.__code__)]
    [1]
    """
    instructions = list(dis.get_instructions(code))
    heads = {each.offset for each in instructions if each.opname == "FOR_ITER"}
    loops, whiles = [], []
    for each in instructions:
        if each.opname == "FOR_ITER":
            line = (_begin(each) or (0, 0))[0]
            waits = {each.offset, each.offset + 2} if _CACHED else {each.offset}
            loops.append(Loop(each.offset, each.argval, line, frozenset(waits)))
        elif "BACKWARD" in each.opname and "INTERRUPT" not in each.opname and each.argval not in heads:
            whiles.append((each.argval, each.offset + 2))
    around = [*((loop.start, loop.end) for loop in loops), *whiles]
    names = {_begin(each) for each in instructions if "LOAD" in each.opname and each.argval == "next"} - {None}
    calls = [each for each in instructions if "CALL" in each.opname and _begin(each) in names]
    for begin in names:
        offsets = frozenset(call.offset for call in calls if _begin(call) == begin)
        within = [span for span in around if offsets and span[0] < min(offsets) < span[1]]
        if begin is not None and within:
            loops.append(Loop(*min(within, key=lambda span: span[1] - span[0]), begin[0], offsets))
    return sorted(loops, key=lambda loop: (loop.start, -loop.end, len(loop.waits)))


def _begin(instruction: dis.Instruction) -> tuple[int, int] | None:
    """Return line and column at which the source of an instruction begins."""
    at = instruction.positions
    return None if at is None or at.lineno is None or at.col_offset is None else (at.lineno, at.col_offset)


def loops_of_file(path: Path) -> dict[tuple[str, int], list[Loop]]:
    """Return the loops of the functions of a file, by the functions' names and first lines.

    Raises:
        OSError: it cannot be read.
        SyntaxError, ValueError: it is no Python.
    """
    functions: dict[tuple[str, int], list[Loop]] = {}
    for code in _all_codes(compile(path.read_bytes(), str(path), "exec", dont_inherit=True)):
        key = code.co_name, code.co_firstlineno
        # Functions that cannot be told apart are left out.
        functions[key] = [] if key in functions else find_loops(code)
    return functions


def _all_codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _all_codes(constant)
