"""Byte-level BPE (GPT-2, RoBERTa, ...) without encoding the same words over and over."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from foreload import _native

__all__ = ["PieceEncoder"]

# Slots of the table, half of which are used: 18 MB when it is full, for more words than English commonly uses.
_ROOM = 1 << 19
_LONGEST = 64

# Normalizers that leave ASCII text as it is.
_HARMLESS = ("NFC", "NFD", "NFKC", "NFKD")


class PieceEncoder:
    """An encoder that encodes each distinct piece once, as the tokenizer's pattern splits texts.

    The ids are the tokenizer's own, since its model sees one piece at a time. Text of which that may not be true
    (not ASCII, or with an added token) is left to the tokenizer.

    Args:
        bare: the tokenizer reduced to its model.
        reserved: its added tokens.
        prefix_space: whether it puts a space in front of a text without one.
    """

    def __init__(self, bare: Any, reserved: list[str], prefix_space: bool) -> None:
        self._bare = bare
        self._table = _native.PieceTable(reserved, prefix_space, _ROOM)
        self._known = 0

    @classmethod
    def of(cls, tokenizer: Any) -> PieceEncoder | None:
        """Make one for a tokenizer of Hugging Face ``tokenizers``; None if pieces will not do for it."""
        try:
            config: dict[str, Any] = json.loads(tokenizer.to_str())
        except Exception:  # a part of it is written in Python
            return None
        if not _is_byte_level(config) or tokenizer.num_special_tokens_to_add(False):
            return None
        if _looks_for_other_text(tokenizer.normalizer, config["added_tokens"]):
            return None
        split = {**config["pre_tokenizer"], "add_prefix_space": False}
        bare = {**config, "post_processor": None, "normalizer": None, "pre_tokenizer": split, "added_tokens": []}
        return cls(
            type(tokenizer).from_str(json.dumps(bare)),
            [token["content"] for token in config["added_tokens"]],
            bool(config["pre_tokenizer"]["add_prefix_space"]),
        )

    def encode(self, texts: list[str], encode: Callable[[list[str]], list[Any]]) -> list[Any]:
        """Return the ids of each text, by ``encode`` (the tokenizer itself) if pieces will not do."""
        ids, counts, missing = self._table.encode(texts)
        if missing:
            ids, counts, _ = self._table.encode(texts, self._learn(missing))
        ends = np.cumsum(np.maximum(counts, 0)).tolist()
        rows: list[Any] = [ids[end - count : end] for end, count in zip(ends, counts.tolist(), strict=True)]
        left = np.flatnonzero(counts < 0).tolist()
        if left:
            for position, row in zip(left, encode([texts[i] for i in left]), strict=True):
                rows[position] = row
        return rows

    def _learn(self, pieces: list[str]) -> _native.PieceTable:
        """Encode new pieces into the table; return a table of those that it has no room for."""
        others = _native.PieceTable([], False, 4 * len(pieces))
        for piece, encoding in zip(pieces, self._bare.encode_batch_fast(pieces), strict=True):
            keep = self._known < _ROOM // 2 and len(piece) <= _LONGEST
            (self._table if keep else others).add(piece, encoding.ids)
            self._known += keep
        return others


def _looks_for_other_text(normalizer: Any, added: list[dict[str, Any]]) -> bool:
    """Whether an added token is found by other text than its own: by ``...`` instead of ``…`` with NFKC, say."""
    if normalizer is None:
        return False
    contents = [token["content"] for token in added if token["normalized"]]
    return any(normalizer.normalize_str(content) != content for content in contents)


def _is_byte_level(config: dict[str, Any]) -> bool:
    split, model, normalizer = config["pre_tokenizer"], config["model"], config["normalizer"]
    return (
        split is not None
        and split["type"] == "ByteLevel"
        and split.get("use_regex", True)
        and model["type"] == "BPE"
        and not model.get("dropout")
        and (normalizer is None or normalizer["type"] in _HARMLESS)
        and config["truncation"] is None
        and config["padding"] is None
    )
