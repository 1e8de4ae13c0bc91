"""Docstrings as Markdown, for the reference: they are written for Python's help() and doctest."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import griffe

_ROLE = re.compile(r":\w+:`~?([\w.]+)(?:\(\))?`")
_NAMES = re.compile(r"^( +(?:\w+, )+\w+,)\n +(?=(?:\w+, )*\w+: )", re.MULTILINE)
_EXAMPLE = re.compile(r"^( *)(>>> .*(?:\n(?! *$).*)*)", re.MULTILINE)
_LITERAL = re.compile(r"^( *)(.*[^:\s])?::\n(?= *\n)", re.MULTILINE)


_REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


@cache
def _listed() -> dict[str, str]:
    """The names in the reference, by their last part."""
    pages = "".join(page.read_text(encoding="utf-8") for page in sorted(_REFERENCE.glob("*.md")))
    return {name.rpartition(".")[2]: name for name in re.findall(r"^::: (\S+)$", pages, re.MULTILINE)}


class MarkdownDocstrings(griffe.Extension):
    """Turn cross-references into links or code, and examples into code blocks."""

    def on_instance(self, *, node: Any, obj: griffe.Object, agent: Any, **kwargs: Any) -> None:
        """Rewrite the docstring of an object that was just read."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)


def to_markdown(text: str) -> str:
    """Return a docstring as Markdown.

    >>> to_markdown("See :class:`~foreload.DataLoader` and :meth:`stream`.")
    'See [`DataLoader`][foreload.DataLoader] and `stream`.'
    """
    text = _ROLE.sub(_reference, text)
    text = _NAMES.sub(r"\1 ", text)  # several arguments of one description, over several lines
    text = _NAMES.sub(r"\1 ", text)
    text = _LITERAL.sub(lambda match: f"{match[1]}{match[2]}:\n" if match[2] else "", text)
    return _EXAMPLE.sub(lambda match: f"{match[1]}```pycon\n{match[0]}\n{match[1]}```", text)


def _reference(match: re.Match[str]) -> str:
    """A cross-reference as a link if the reference has its target, otherwise as code."""
    target = match[1]
    name = target.rpartition(".")[2]
    listed = _listed().get(name)
    if listed is None or target not in (name, listed):
        return f"`{target}`"
    return f"[`{name}`][{listed}]"
