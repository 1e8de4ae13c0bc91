"""Addresses of files: which are remote, and what of them may be shown."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from foreload.errors import warn_user

__all__ = ["is_remote", "local_path", "warn_of_no_urls", "without_secrets"]

# A user's name and password, and a query with its signature.
_SECRETS = re.compile(r"(?<=://)[^/@\s]*@|(?<=[^\s?])\?[^\s,;()'\"]+")


def local_path(path: Any) -> Any:
    """Return the path of a ``file://`` URL; anything else unchanged.

    >>> local_path("file:///data/my%20shards"), local_path("s3://bucket/train.tar")
    ('/data/my shards', 's3://bucket/train.tar')
    """
    if not isinstance(path, str) or not path.startswith("file://"):
        return path
    return unquote(path.removeprefix("file://").removeprefix("localhost"))


def is_remote(path: Any) -> bool:
    """Whether a path is a URL.

    >>> is_remote("s3://bucket/train.tar"), is_remote("/data/train.tar")
    (True, False)
    """
    return isinstance(path, str) and "://" in path and not path.startswith("file://")


def without_secrets(text: str) -> str:
    """Return a URL, or a text with URLs, without passwords and queries, for messages.

    >>> without_secrets("https://me:word@host/a.tar?X-Amz-Signature=1")
    'https://host/a.tar'
    """
    return _SECRETS.sub("", text) if "://" in text else text


def warn_of_no_urls(**options: Any) -> None:
    """Warn of options of storage that were given for files that are not named by URLs."""
    given = [f"{name}=" for name, value in options.items() if value is not None]
    if given:
        has = "has" if len(given) == 1 else "have"
        warn_user(f"{' and '.join(given)} {has} no effect here: these are options for shards named by URLs")
