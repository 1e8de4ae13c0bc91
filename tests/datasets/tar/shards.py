"""Tar shards of any content, and their samples by WebDataset's rules."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

Member = tuple[str, bytes | str]  # a name, and content or a type


def write_tar(path: Path, members: Iterable[Member], format: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=format) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type = {"folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE}[
                    content
                ]
                member.linkname = "a.txt"
                tar.addfile(member)
                continue
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def by_webdatasets_rules(path: Path) -> list[dict[str, Any]]:
    """Its base_plus_ext, tar_file_iterator and group_by_keys, without hidden files; ValueError: a duplicate."""
    samples: list[dict[str, Any]] = []
    with tarfile.open(path, "r|*") as stream:
        for member in stream:
            if not member.isreg() or re.match(r"__[^/]*__($|/)", member.name):
                continue
            match = re.match(r"^((?:.*/|)[^./]+)[.]([^/]*)$", member.name, re.DOTALL)
            if match is None:
                continue
            key, field = match.group(1), match.group(2).lower()
            if not samples or samples[-1]["__key__"] != key:
                samples.append({"__key__": key})
            if field in samples[-1]:
                raise ValueError(f"duplicate {field}")
            content = stream.extractfile(member)
            assert content is not None
            samples[-1][field] = content.read()
    return samples


def shards_of(folder: Path, shards: int = 3, samples: int = 20) -> list[Path]:
    return [
        write_tar(
            folder / f"train-{shard:03}.tar",
            [
                (f"{shard}-{sample:04}.{field}", content)
                for sample in range(samples)
                for field, content in (
                    ("bin", np.random.default_rng(100 * shard + sample).bytes(300)),
                    ("cls", b"%d" % (sample % 5)),
                )
            ],
        )
        for shard in range(shards)
    ]
