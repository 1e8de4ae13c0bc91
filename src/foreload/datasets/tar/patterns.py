"""Patterns that stand for several shards, as in a shell: ``train-{000..099}.tar``, ``{train,more}.tar``."""

from __future__ import annotations

import re

__all__ = ["expand"]

_RANGE = re.compile(r"(\d+)\.\.(\d+)(?:\.\.(\d+))?")


def expand(pattern: str) -> list[str]:
    """Return what a pattern stands for, as Bash and WebDataset expand it; itself if it has no braces.

    Raises:
        ValueError: a range counts down, or has steps of 0.

    >>> expand("{train,more}-{8..10..2}.tar")
    ['train-8.tar', 'train-10.tar', 'more-8.tar', 'more-10.tar']
    >>> expand("a{08..10}.tar"), expand("{a}.tar")
    (['a08.tar', 'a09.tar', 'a10.tar'], ['{a}.tar'])
    """
    begin = pattern.find("{")
    while begin >= 0:
        parts = _parts(pattern[begin + 1 :])
        if parts is not None:
            end = begin + 1 + sum(map(len, parts)) + len(parts)
            values = [value for part in parts for value in expand(part)] if len(parts) > 1 else _numbers(parts[0])
            if values is not None:
                rests = expand(pattern[end:])
                return [pattern[:begin] + value + rest for value in values for rest in rests]
        begin = pattern.find("{", begin + 1)
    return [pattern]


def _parts(text: str) -> list[str] | None:
    """Split what follows a brace at its commas, up to the brace that closes it; None if none does."""
    parts, begin, depth = [], 0, 0
    for place, character in enumerate(text):
        if depth == 0 and character in ",}":
            parts.append(text[begin:place])
            begin = place + 1
            if character == "}":
                return parts
        depth += (character == "{") - (character == "}")
    return None


def _numbers(text: str) -> list[str] | None:
    """Return the numbers of a range, all with as many digits as the first; None if it is not a range."""
    found = _RANGE.fullmatch(text)
    if found is None:
        return None
    low, high, step = found.groups()
    if int(low) > int(high):
        raise ValueError(f"shards: {{{text}}} counts down; give the lower number first")
    if step is not None and int(step) == 0:
        raise ValueError(f"shards: {{{text}}} has steps of 0; give 1 or more")
    return [f"{number:0{len(low)}}" for number in range(int(low), int(high) + 1, int(step or 1))]
