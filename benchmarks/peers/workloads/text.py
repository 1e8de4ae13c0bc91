"""Blocks of a long token file, and documents packed into rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.peers.work import Batches, Work, array, require, require_all

BLOCK = 1024  # tokens
LENGTH = 512  # tokens of a packed row


def make_tokens(folder: Path, count: int) -> None:
    """Tokens that count up, as int32, so that any place is known again."""
    np.arange(count * BLOCK, dtype=np.int32).tofile(folder / "tokens.bin")


def check_tokens(work: Work, batches: Batches) -> None:
    """Each block once, its tokens in their order."""
    numbers = []
    for batch in batches:
        tokens = array(batch["tokens"] if isinstance(batch, dict) else batch)
        require(tokens.shape[1] == BLOCK, f"blocks have the shape {tokens.shape[1:]}")
        require((np.diff(tokens, axis=1) == 1).all(), "the tokens of a block are not in order")
        require((tokens[:, 0] % BLOCK == 0).all(), "blocks overlap")
        numbers.append(tokens[:, 0] // BLOCK)
    require_all(work, numbers)


def documents(count: int) -> list[np.ndarray[Any, Any]]:
    """Documents of 16 to 2,000 tokens, most of them short; tokens are never 0 and count up over all documents."""
    lengths = np.clip(np.random.default_rng(0).lognormal(5, 1, count), 16, 2000).astype(int)
    ends = np.cumsum(lengths)
    return [np.arange(end - length, end, dtype=np.int64) + 1 for length, end in zip(lengths, ends, strict=True)]


def make_documents(folder: Path, count: int) -> None:
    np.save(folder / "tokens.npy", np.concatenate(documents(count)))
    np.save(folder / "lengths.npy", [len(document) for document in documents(count)])


def check_packing(work: Work, batches: Batches) -> None:
    """Every token once, at most 10% of the rows padding (0); documents may be cut."""
    rows = [array(batch["input_ids"] if isinstance(batch, dict) else batch) for batch in batches]
    require(rows and all(part.shape[1] == LENGTH for part in rows), f"rows are not of {LENGTH} tokens")
    tokens = np.concatenate(rows).reshape(-1)
    given = np.sort(tokens[tokens != 0])
    total = int(np.load(work.folder / "lengths.npy").sum())
    require(len(given) == total, f"{len(given):,} tokens came, not {total:,}")
    require((given == np.arange(1, total + 1)).all(), "tokens came twice")
    require(len(given) > 0.9 * len(tokens), f"{1 - len(given) / len(tokens):.0%} of the rows are padding")


WORKLOADS = [
    Work("tokens", "tokens", f"blocks of {BLOCK:,} int32 tokens from one file, shuffled; the blocks",
         make_tokens, check_tokens, "tokens", 50_000, 2000, unit="blocks/s"),
    Work("packing", "packing", f"documents packed into rows of {LENGTH} tokens; the rows, padded with 0",
         make_documents, check_packing, "documents", 50_000, 2000, unit="rows/s", options={"any_size": True}),
]  # fmt: skip
