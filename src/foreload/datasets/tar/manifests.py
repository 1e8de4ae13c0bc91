"""The ``pack.json`` beside tar shards: what their labels are called, and whether their pack is whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from foreload.checks import Array
from foreload.datasets.folders import number_names
from foreload.errors import DecodeError
from foreload.remote.fetch import Fetch, Range, is_refused
from foreload.remote.url import without_secrets

__all__ = ["Manifest", "named_labels", "read_manifests"]

_AT_A_TIME = 16


class Manifest(NamedTuple):
    """The manifest of a folder of shards.

    Attributes:
        folder, shard: itself and its first shard, for messages.
        classes: the name of each label; empty if they have none.
        is_whole: whether the pack was finished.
    """

    folder: str
    shard: str
    classes: list[str]
    is_whole: bool


def read_manifests(shards: Sequence[str], fetch: Fetch | None) -> list[Manifest]:
    """Return for each shard what the ``pack.json`` in its folder says.

    Raises:
        DecodeError: one is damaged.
    """
    folders = [shard.rpartition("/")[0] for shard in shards]
    firsts = dict(zip(reversed(folders), reversed(shards), strict=True))
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        reading = pool.map(lambda folder: _read(folder, firsts[folder], fetch), firsts)
        known = dict(zip(firsts, reading, strict=True))
    return [known[folder] for folder in folders]


def _read(folder: str, shard: str, fetch: Fetch | None) -> Manifest:
    path = f"{folder}/pack.json"
    shown, shard = without_secrets(folder) or "/", without_secrets(shard)
    try:
        found = json.loads(_content(path, fetch) or b"{}")
        if not isinstance(found, dict):
            return Manifest(shown, shard, [], is_whole=True)
        classes = found.get("classes", [])
        if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
            raise ValueError("'classes' must be a list of names")
    except (ValueError, RecursionError) as error:
        raise DecodeError(
            f"the pack.json beside {shard!r} is damaged: {error}; pack again, or remove it"
        ) from error
    return Manifest(shown, shard, classes, found.get("finished") is not False)


def _content(path: str, fetch: Fetch | None) -> bytes:
    """Read a small file; empty if there is none."""
    try:
        if fetch is None:
            return Path(path).read_bytes()
        version = fetch.head(path)
        memory, _, failures = fetch.read([Range(path, 0, version.size, version)])
        for failure in failures.values():
            raise failure
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return b""
    except OSError as error:
        if fetch is None or not is_refused(error):
            raise
        return b""
    content = memory[: version.size].tobytes()
    # Some web servers send a page instead of a 404.
    return b"" if content.lstrip().startswith(b"<") else content


def named_labels(manifests: Sequence[Manifest], labels: Sequence[Array]) -> tuple[Array, list[str]]:
    """Return the labels of all samples and what they are called, by one numbering for all shards.

    Shards of several packs whose classes differ get the sorted union of them, as one pack of all would.

    Args:
        manifests: of each shard.
        labels: of each shard's samples.

    Raises:
        ValueError: the labels of some shards have names, and those of others have none.
        DecodeError: a label has no name.
    """
    together = np.concatenate(labels)
    longest = max((manifest.classes for manifest in manifests), key=len)
    is_one_list = all(manifest.classes == longest[: len(manifest.classes)] for manifest in manifests)
    if is_one_list and longest == list(map(str, range(len(longest)))):  # numbers are called what they are
        return together, max(longest, number_names(together), key=len)
    named = next(manifest.folder for manifest in manifests if manifest.classes)
    for manifest, numbers in zip(manifests, labels, strict=True):
        if not manifest.classes and numbers.max(initial=-1) >= 0:
            raise ValueError(
                f"shards: labels in {manifest.folder!r} are numbers without names, those in {named!r} have names "
                "in its pack.json; copy the pack.json of the first beside its shards, or make a dataset of each"
            )
    if is_one_list:
        return together, longest
    union = sorted({name for manifest in manifests for name in manifest.classes})
    renumbered = [
        _renumbered(manifest, numbers, union) for manifest, numbers in zip(manifests, labels, strict=True)
    ]
    return np.concatenate(renumbered), union


def _renumbered(manifest: Manifest, labels: Array, names: list[str]) -> Array:
    largest = int(labels.max(initial=-1))
    if largest >= len(manifest.classes):
        raise DecodeError(
            f"{manifest.folder}: label {largest} has no name in its pack.json, which has {len(manifest.classes)} "
            "classes; pack again"
        )
    place = {name: number for number, name in enumerate(names)}
    numbers = np.array([*(place[name] for name in manifest.classes), -1], np.int64)
    return np.where(labels < 0, labels, numbers[np.maximum(labels, -1)])
