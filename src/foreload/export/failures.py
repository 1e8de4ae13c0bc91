"""The samples of a loader that failed, in groups of the same error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypedDict

from foreload.batch.failure import SampleError

__all__ = ["Failure", "Failures", "generalise"]

# Kinds of errors that are told apart; the rest is counted together.
_MAX_KINDS = 50
_OTHERS = "errors of other kinds"

# What is read of a message.
_MAX_CHARACTERS = 1000

# What differs between errors of one kind: addresses and hashes, paths, numbers.
_DIFFERING = re.compile(
    r"""
    (?P<address>
        \b 0x[0-9a-f]+ \b
        | \b [0-9a-f]{8} (?:-[0-9a-f]{4}){3} -[0-9a-f]{12} \b
        | \b (?=[a-f]*\d) [0-9a-f]{16,} \b
    )
    | (?P<quoted> (?P<quote>['"]) (?=[^'"]*[/\\]) [^'"]* (?P=quote) )
    | (?P<path> (?:\b[A-Za-z][\w+.-]*:// | [A-Za-z]:\\ | (?<![\w/<])\.{0,2}/ | \b[\w.-]+/) [^\s'":,;()<>]+ )
    | (?P<file> \b [\w-]+ (?:\.[\w-]+)* \.
        (?:jpe?g|png|gif|bmp|tiff?|webp|npy|npz|pt|tar|parquet|h5|hdf5|jsonl?|txt|csv|mds) \b )
    | (?P<number> [-+]? \d+ (?:[_,]\d{3})* (?:\.\d+)? (?:e[-+]?\d+)? )
    """,
    re.IGNORECASE | re.VERBOSE,
)


class Failure(TypedDict):
    """Samples that failed with the same error.

    Attributes:
        error: the error, with numbers as ``#`` and paths as ``…``.
        count: how many there were.
        first, last: when the first and the last of them were noticed (Unix time, in seconds).
        example: the last of them.
    """

    error: str
    count: int
    first: float
    last: float
    example: dict[str, Any]


class Failures:
    """The errors of a loader by kind.

    >>> failures = Failures()
    >>> error = SampleError(7, "/data/7.jpg", "OSError: image 7 is broken", "", "skip")
    >>> failures.update(1000 * [error], now=5.0)
    >>> [(failure["count"], failure["error"], failure["example"]["index"]) for failure in failures.kinds()]
    [(1000, 'OSError: image # is broken', 7)]
    """

    def __init__(self) -> None:
        self._kinds: dict[str, Failure] = {}
        self._seen = 0

    def update(self, errors: Sequence[SampleError], now: float) -> None:
        """Count the errors that are new in a list which grows."""
        if len(errors) < self._seen:
            self._seen = 0  # somebody has emptied it
        new, self._seen = errors[self._seen :], len(errors)
        for error in new:
            kind = generalise(error.error)
            if kind not in self._kinds and len(self._kinds) >= _MAX_KINDS:
                kind = _OTHERS
            found = self._kinds.setdefault(kind, Failure(error=kind, count=0, first=now, last=now, example={}))
            found["count"] += 1
            found["last"] = now
            found["example"] = {
                "index": error.index,
                "source": error.source,
                "error": error.error[:_MAX_CHARACTERS],
                "action": error.action,
            }

    def kinds(self) -> list[Failure]:
        """Return the kinds of errors, the latest first."""
        return sorted(self._kinds.values(), key=lambda failure: failure["last"], reverse=True)


def generalise(error: str) -> str:
    """Return what errors of one kind have in common.

    >>> generalise("ValueError: sample 17 of 640 has shape (3, 224)")
    'ValueError: sample # of # has shape (#, #)'
    >>> generalise("FileNotFoundError: [Errno 2] No such file or directory: '/data/a b/17.jpg'")
    'FileNotFoundError: [Errno #] No such file or directory: …'
    >>> generalise("KeyError: 'label'"), generalise("<Image at 0x7f00a1>"), generalise("cannot open img_17.png")
    ("KeyError: 'label'", '<Image at #>', 'cannot open …')
    """

    def put(match: re.Match[str]) -> str:
        return "#" if match.lastgroup in ("address", "number") else "…"

    return _DIFFERING.sub(put, error[:_MAX_CHARACTERS])
