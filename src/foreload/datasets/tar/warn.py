"""Warnings of what is in a tar shard but in no sample, or in another one than was meant."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

__all__ = ["warn_of_apart", "warn_of_link", "warn_of_more"]


def warn_of_apart(source: str, keys: Sequence[str]) -> None:
    """Warn if members of one key lie apart, given the keys of all samples."""
    if len(set(keys)) == len(keys):
        return
    seen: set[str] = set()
    key = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    warnings.warn(
        f"{source}: the members of key {key!r} do not lie side by side, so that they are several samples, as in "
        "WebDataset; write the shard with tar --sort=name",
        stacklevel=5,
    )


def warn_of_link(source: str, name: str) -> None:
    """Warn of a member that would be part of a sample, if it were not a link."""
    warnings.warn(
        f"{source}: member {name!r} is a link (as tar writes a second name of a file), and links are passed over, "
        "as in WebDataset; write the shard with --hard-dereference and --dereference",
        stacklevel=6,
    )


def warn_of_more(source: str) -> None:
    """Warn of bytes behind the end of a tar, which is where reading stops."""
    warnings.warn(
        f"{source}: there are bytes after the end marker of the tar, as in concatenated ones, and they are not "
        "read; give each tar as a shard, or write them as one",
        stacklevel=6,
    )
