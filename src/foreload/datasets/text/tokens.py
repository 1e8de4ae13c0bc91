"""Tokenizers: texts to token ids, and padding."""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import default_collate

from foreload.batch.buffers import Buffers
from foreload.checks import Array, first_beyond_int64
from foreload.datasets.text.pieces import PieceEncoder
from foreload.forks.per_process import PerProcess
from foreload.protocol import BatchMemory

__all__ = ["IDS", "Encoder", "PaddingCollate", "Rows", "encoder_of", "take_ids"]

Rows = dict[str, list[Any]]  # by column, the ids of each text

# The column of a tokenizer that has but one, without a name.
IDS = ""

_TOKENS_MUST = "tokenizer must give a list of ints, or a tensor or array of one dimension"


def take_ids(buffers: BatchMemory, count: int, width: int) -> torch.Tensor:
    """Lend int64 of ``count`` x ``width``; raise a MemoryError that names ``max_length`` if there is no memory."""
    try:
        return buffers.take((count, width), torch.int64)
    except (MemoryError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise
        texts = "a text" if count == 1 else f"{count} texts"
        raise MemoryError(
            f"max_length: there is no memory for {texts} of {width} ids; give a smaller one, or smaller batches"
        ) from error


class Encoder(Protocol):
    """A tokenizer, as :class:`~foreload.TextDataset` uses it."""

    @property
    def collate(self) -> PaddingCollate:
        """The ``collate_fn`` that pads its ids."""
        ...

    def encode(self, texts: list[str]) -> Rows:
        """Return for each column the ids of each text, which may be more than wanted."""
        ...


@dataclass(frozen=True)
class PaddingCollate:
    """A ``collate_fn`` that pads texts to the longest of the batch.

    Args:
        pad: the padding id.
        left: pad before the ids instead of after them.
        type_pad: what ``token_type_ids`` are padded with; ``special_tokens_mask`` is padded with 1, every other
            column with 0.

    Gives ``(ids, lengths)``, both int64, or ``(ids, lengths, labels)``; for samples that are dicts a dict of
    padded tensors, or ``(dict, labels)``.

    >>> PaddingCollate(pad=9)([torch.tensor([1, 2, 3]), torch.tensor([4])])
    (tensor([[1, 2, 3],
            [4, 9, 9]]), tensor([3, 1]))
    """

    pad: int = 0
    left: bool = False
    type_pad: int = 0

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Collate samples."""
        trimmed = getattr(samples, "trimmed", None)
        if trimmed is not None:  # they are a batch already
            return trimmed(Buffers())
        labelled = isinstance(samples[0], tuple)
        texts = [sample[0] if labelled else sample for sample in samples]
        rows: Rows
        if isinstance(texts[0], Mapping):
            rows = {name: [text[name].numpy() for text in texts] for name in texts[0]}
        else:
            rows = {IDS: [text.numpy() for text in texts]}
        columns, lengths = self.padded(rows, max(map(len, next(iter(rows.values())))), Buffers())
        return self.batch(
            columns, lengths, default_collate([sample[1] for sample in samples]) if labelled else None
        )

    def padded(self, rows: Rows, width: int, buffers: BatchMemory) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Return tensors of ``width`` columns, and how many of them each row uses."""
        columns = {}
        for name, sequences in rows.items():
            out = take_ids(buffers, len(sequences), width)
            memory, pad = out.numpy(), self.pad_of(name)
            for row, values in zip(memory, sequences, strict=True):
                count = min(len(values), width)
                used, rest = (
                    (slice(width - count, None), slice(width - count))
                    if self.left
                    else (
                        slice(count),
                        slice(count, None),
                    )
                )
                row[used] = values[:count]
                row[rest] = pad
            columns[name] = out
        first = next(iter(rows.values()))
        lengths = [min(len(values), width) for values in first]
        return columns, torch.tensor(lengths, dtype=torch.int64, device="cpu")

    def pad_of(self, name: str) -> int:
        """Return the padding of a column."""
        if name in (IDS, "input_ids"):
            return self.pad
        return {"token_type_ids": self.type_pad, "special_tokens_mask": 1}.get(name, 0)

    def batch(self, columns: dict[str, torch.Tensor], lengths: torch.Tensor, labels: Any) -> Any:
        """Put padded columns into the form of a batch."""
        parts = (columns[IDS], lengths) if IDS in columns else (columns,)
        if labels is None:
            return parts if IDS in columns else columns
        return (*parts, labels)


class Characters:
    """The Unicode code points of a text."""

    collate = PaddingCollate()

    def __init__(self, most: int) -> None:
        self._most = most

    def encode(self, texts: list[str]) -> Rows:
        """See :class:`Encoder`."""
        # A JSON text may hold half a surrogate pair.
        coded = [text[: self._most].encode("utf-32-le", "surrogatepass") for text in texts]
        return {IDS: [np.frombuffer(code, "<u4") for code in coded]}


class Called:
    """A function that the user gave, called with each text."""

    collate = PaddingCollate()

    def __init__(self, function: Callable[[str], Any]) -> None:
        self._function = function

    def encode(self, texts: list[str]) -> Rows:
        """See :class:`Encoder`."""
        return {IDS: [self._checked(self._function(text)) for text in texts]}

    def _checked(self, ids: Any) -> Array:
        try:
            array = np.asarray(ids)
        except Exception as error:  # lists of different lengths, or a tensor on another device
            raise TypeError(f"{_TOKENS_MUST}, got {type(ids).__name__}: {error}") from error
        if array.shape == (0,):
            array = array.astype(np.int64)
        if (beyond := first_beyond_int64(ids, array)) is not None:
            raise ValueError(f"the token {ids[beyond]} does not fit into int64")
        if array.ndim != 1 or array.dtype.kind not in "iub":
            raise TypeError(f"{_TOKENS_MUST}, got {type(ids).__name__} of shape {array.shape} and {array.dtype}")
        return array


class Tokenizers:
    """A tokenizer of Hugging Face ``tokenizers``."""

    def __init__(self, tokenizer: Any, most: int) -> None:
        own = tokenizer.padding
        known = (tokenizer.token_to_id(token) for token in ("[PAD]", "<pad>"))
        pad = own["pad_id"] if own else next((i for i in known if i is not None), 0)
        self.collate = PaddingCollate(pad, bool(own) and own["direction"] == "left")
        self._pieces = PieceEncoder.of(tokenizer)
        self._tokenizer, self._pads = _truncating(tokenizer, most), own is not None

    def encode(self, texts: list[str]) -> Rows:
        """See :class:`Encoder`."""
        return {IDS: self._encode(texts) if self._pieces is None else self._pieces.encode(texts, self._encode)}

    def _encode(self, texts: list[str]) -> list[Any]:
        # The fast call does not record where in the text each token was.
        encodings = self._tokenizer.encode_batch_fast(texts)
        if not self._pads:
            return [one.ids for one in encodings]
        # Its own padding depends on the other texts of the same call.
        return [[i for i, real in zip(one.ids, one.attention_mask, strict=True) if real] for one in encodings]

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the words that were encoded so far."""
        return {**self.__dict__, "_pieces": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start with no words."""
        self.__dict__.update(state, _pieces=PieceEncoder.of(state["_tokenizer"]))


def _truncating(tokenizer: Any, most: int) -> Any:
    """Return a copy of a tokenizer that gives at most ``most`` ids, special tokens among them.

    Raises:
        ValueError: it cannot.
    """
    special, own = tokenizer.num_special_tokens_to_add(False), tokenizer.truncation
    if own is not None and own["max_length"] <= most:
        return tokenizer
    if most < special:
        raise ValueError(
            f"max_length must be {special} or more, got {most}: the tokenizer adds {special} special tokens to "
            "each text"
        )
    if own is None and not special:
        return tokenizer  # the first of its ids are what is wanted
    try:
        copy = type(tokenizer).from_str(tokenizer.to_str())
    except Exception as error:  # a part of it is written in Python
        raise ValueError(
            f"tokenizer: call its enable_truncation(max_length={most}), for it cannot be copied ({error})"
        ) from error
    own = own or {"strategy": "longest_first", "direction": "right"}
    copy.enable_truncation(most, strategy=own["strategy"], direction=own["direction"])
    return copy


class Transformers:
    """A tokenizer of Hugging Face ``transformers``."""

    def __init__(self, tokenizer: Any, most: int) -> None:
        self._tokenizer = tokenizer
        self._most = most
        longest = tokenizer.model_max_length
        if most > longest:
            raise ValueError(
                f"max_length={most} is more than the {longest} of the tokenizer's model_max_length; give that, or "
                "set it if the model takes longer texts"
            )
        pad = tokenizer.pad_token_id
        left = tokenizer.padding_side == "left"
        self.collate = PaddingCollate(0 if pad is None else pad, left, tokenizer.pad_token_type_id)
        # Each call changes it, so threads take turns; a fork may happen during one of them.
        self._locks = PerProcess[threading.Lock]()

    def encode(self, texts: list[str]) -> Rows:
        """See :class:`Encoder`."""
        with self._locks.get(threading.Lock):
            return dict(self._tokenizer(texts, truncation=True, max_length=self._most))


def encoder_of(tokenizer: Any, most: int) -> Encoder:
    """Return the encoder for a tokenizer.

    Raises:
        TypeError: it is not a tokenizer.
    """
    if tokenizer is None:
        return Characters(most)
    if isinstance(tokenizer, type):
        raise TypeError(f"tokenizer must be an instance, got the class {tokenizer.__name__}")
    for cls in type(tokenizer).__mro__:
        if cls.__name__ == "PreTrainedTokenizerBase" and cls.__module__.startswith("transformers."):
            return Transformers(tokenizer, most)
        if cls.__name__ == "BaseTokenizer" and cls.__module__.startswith("tokenizers."):
            return Tokenizers(tokenizer._tokenizer, most)
    library = sys.modules.get("tokenizers")
    if library is not None and isinstance(tokenizer, library.Tokenizer):
        return Tokenizers(tokenizer, most)
    if callable(tokenizer):
        return Called(tokenizer)
    raise TypeError(
        "tokenizer must be None for characters, a callable from text to ints, or a tokenizer of Hugging Face "
        f"(tokenizers.Tokenizer.from_file, transformers.AutoTokenizer.from_pretrained), got {tokenizer!r:.50}"
    )
