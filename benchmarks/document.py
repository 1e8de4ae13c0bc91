"""docs/benchmarks.md, and the parts of it that are made from results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"


def filled(text: str, part: str, content: str) -> str:
    """The document with this content between the two marks of a part."""
    start, end = f"<!-- {part} -->\n", f"<!-- end of {part} -->"
    before, _, rest = text.partition(start)
    return f"{before}{start}{content}{end}{rest.partition(end)[2]}"


def described(machine: dict[str, Any]) -> str:
    """A machine as a sentence."""
    return f"The machine: {', '.join(f'{key}: {value}' for key, value in machine.items())}."
