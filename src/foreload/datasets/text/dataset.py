"""Texts in files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from foreload import _native
from foreload.batch.buffers import Buffers
from foreload.batch.collate import is_default_collate
from foreload.batch.collated import Collated, own_getitems
from foreload.batch.generators.keyed import loading, row_keys
from foreload.checks import check_index, check_int, inherits
from foreload.datasets.base import BaseDataset
from foreload.datasets.text.batches import TextAssembly, TextBatch, TextSamples, note_text
from foreload.datasets.text.lines import LABEL, Field, open_texts
from foreload.datasets.text.tokens import IDS, Called, Characters, PaddingCollate, encoder_of
from foreload.machine import granted_memory
from foreload.options import LoadingMode
from foreload.protocol import BatchMemory, BatchOptions, LoaderDefaults, NativeBatches

__all__ = ["TextDataset"]


class TextDataset(BaseDataset, NativeBatches, LoaderDefaults):
    r"""Texts in files as token ids: ``ids``, or ``(ids, label)`` where there are labels.

    ``data_path`` is a file of lines (each one a sample, empty ones too); JSON lines (``.jsonl``, ``.ndjson``,
    ``.json``); a table with a header (``.csv``, ``.tsv``, records and fields of any length as Python's csv module
    reads them, without the empty ones; one with more filled fields than the header is an error); or a folder of
    class folders of ``.txt`` files, each of which is one sample (hidden files and folders do not count). All in
    UTF-8, with or without a byte-order mark. Lines end in ``\n`` or ``\r\n``, records in ``\r`` too. Of a file of
    many samples only the places at which they begin are held, in 4 bytes each; samples are read when they are
    asked for.

    A sample is an int64 tensor of ``max_length`` ids. A tokenizer of ``transformers`` gives a dict of them
    (``input_ids``, ``attention_mask``, ...). Labels that are numbers stay what they are (of tables too, where all
    of them are finite and no two are written in different ways: ``01`` and ``1`` are names), names become the
    position among the sorted names. A label or token that int64 does not hold is an
    error.

    Args:
        data_path: the file or folder.
        tokenizer: None for characters: the Unicode code point of each, padded with 0; a callable from text to
            ints; a tokenizer of Hugging Face ``tokenizers``, or of ``transformers``. It pads on its own side, with
            its own padding id, if it has one, else with 0; and cuts on its own side, so that special tokens stay.
        max_length: how many ids a sample has at most; the rest is cut off. A tokenizer that is set to fewer gives
            fewer, and one of ``transformers`` takes no more than its ``model_max_length``.
        loading_mode: ``LAZY`` reads samples when they are asked for; ``EAGER`` holds all of the text in memory
            that workers share, ``CACHED`` what fits into half of the memory that this process may use;
            ``STREAMING`` is as ``LAZY``: nothing is kept (see also :meth:`stream`).
        padding: whether all samples are padded to ``max_length``. If not, each has its own length, and a batch is
            what :attr:`collate` makes; foreload's DataLoader uses it by itself, a stock one is given
            ``collate_fn=dataset.collate``.
        target_transform: called with each label.
        text_field, label_field: which field of JSON lines and of tables; for tables also its position, from 0 on.
            A table of which only positions are given has no header. Without a field ``"label"`` there are no
            labels, nor with ``label_field=None``; of JSON lines the first one tells, and the others must be alike.
            (Lines and folders have no fields: asking for one is an error.)

    Attributes:
        classes: the names of the classes, sorted; empty where labels are numbers.
        class_to_idx: from name to target.
        targets: the target of every sample; empty without labels.
        collate: pads samples to the longest of a batch and gives ``(ids, lengths)`` or ``(ids, lengths, labels)``;
            of dicts, a dict or ``(dict, labels)``.

    Raises:
        FileNotFoundError: ``data_path`` does not exist, or no ``.txt`` file in it.
        OSError: a file cannot be read, or has changed since the dataset was made; ``filename`` is its path.
            (Files of a folder, which are one sample each, may change: they are read as they are then.)
        ValueError: an argument or a line makes no sense; the message names it. Text that is not UTF-8 is a
            UnicodeDecodeError, which is one too.
        TypeError: an argument is of a wrong type.
        MemoryError: ``EAGER`` needs more than the memory that this process may use, or there is none for a batch.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "lines.txt"
    >>> _ = file.write_text("hi\nthere\n")
    >>> texts = TextDataset(file, max_length=4)
    >>> texts[0], len(texts)
    (tensor([104, 105,   0,   0]), 2)
    >>> TextDataset(file, lambda text: [len(text)], padding=False)[1]
    tensor([5])
    """

    collate = PaddingCollate()

    def __init__(
        self,
        data_path: str | Path,
        tokenizer: Any = None,
        max_length: int = 512,
        loading_mode: LoadingMode = LoadingMode.LAZY,
        *,
        padding: bool = True,
        target_transform: Callable[[Any], Any] | None = None,
        text_field: Field = "text",
        label_field: Field | None = LABEL,
    ) -> None:
        if not isinstance(padding, bool):
            raise TypeError(f"padding must be True or False, got {padding!r}")
        self.tokenizer = tokenizer
        self.max_length = _checked_length(max_length)
        self.padding = padding
        self.text_field = text_field
        self.label_field = label_field
        self.encoder = encoder_of(tokenizer, self.max_length)
        self.collate = self.encoder.collate
        super().__init__(data_path, None, target_transform, loading_mode)

    def index(self) -> Any:
        """Find the texts. Called once."""
        texts = open_texts(self.data_path, self.text_field, self.label_field)
        if self.target_transform is not None and texts.targets is None:
            raise ValueError(
                f"target_transform is called with labels, but the texts of {str(self.data_path)!r} have none; "
                "leave it out, or name their field by label_field"
            )
        return texts

    def user_code(self) -> Iterable[Any]:
        """Return a tokenizer that is a plain function, and the target transform."""
        # Other tokenizers are called by one thread at a time where they do not allow more.
        return (self.tokenizer if isinstance(self.encoder, Called) else None, self.target_transform)

    @property
    def classes(self) -> list[str]:
        """The names of the classes, sorted."""
        classes: list[str] = self.entries.classes
        return classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The target of each class, by name."""
        return {name: index for index, name in enumerate(self.classes)}

    @property
    def targets(self) -> list[Any]:
        """The target of every sample."""
        return [] if self.entries.targets is None else list(self.entries.targets.tolist())

    def read(self, index: int) -> str:
        """Load the text of sample ``index``."""
        (text,) = self.entries.read([index])
        if isinstance(text, Exception):
            raise text
        return str(text)

    def _keep(self) -> Any:
        if not isinstance(self.entries.source, _native.LineFile):
            return super()._keep()
        if self.loading_mode is LoadingMode.EAGER and self.entries.source.size > self.memory:
            raise MemoryError(
                f"{str(self.data_path)!r} has {self.entries.source.size:,} bytes, which do not fit into "
                f"{self.memory:,}; use LoadingMode.CACHED, which keeps what fits"
            )
        if self.loading_mode in (LoadingMode.EAGER, LoadingMode.CACHED):
            self.entries.keep(self.memory, everything=self.loading_mode is LoadingMode.EAGER)
        return None

    def __getitem__(self, index: int) -> Any:
        """Load one sample."""
        if not inherits(self, TextDataset, "prepare_sample", "finish_sample"):
            return super().__getitem__(index)
        return TextAssembly(self, Buffers()).made([check_index(index, len(self.entries))]).sample(0)

    @own_getitems
    def __getitems__(self) -> Callable[[Sequence[int]], Sequence[Any]] | None:
        """Load the samples of a batch; if they are padded, a stock DataLoader has nothing left to collate.

        None if a subclass loads samples in another way.
        """
        own = inherits(self, TextDataset, "__getitem__", "prepare_sample", "finish_sample")
        return self._load_batch if own else None

    def _load_batch(self, indices: Sequence[int]) -> Sequence[Any]:
        if not len(indices):
            return []
        key = row_keys(self._load_batch, len(indices))
        is_trimmed = key is not None and loading.collate_fn == self.collate
        batch = TextAssembly(self, Buffers()).made(indices, key)
        if self.padding and self.target_transform is None and (IDS in batch.columns or batch.targets is None):
            return Collated(batch.padded(), len(indices), numbers=(1,))
        # (Code of the user's may want a list: to sort it, say.)
        return TextSamples(batch) if is_trimmed else [batch.sample(row) for row in range(len(indices))]

    def finish_sample(self, index: int, prepared: Any) -> Any:
        """Turn a text into a sample."""
        try:
            rows = self.encoder.encode([prepared])
        except Exception as error:
            note_text(error, self, index)
            raise
        return TextBatch.of(self, [index], rows, Buffers()).sample(0)

    def read_many(self, indices: Sequence[int] | np.ndarray[Any, Any]) -> list[str | Exception]:
        """Load several texts; in place of one that fails, its exception."""
        if not inherits(self, TextDataset, "prepare_sample"):
            return list(super().read_many([int(index) for index in indices]))
        if self._kept is None and inherits(self, TextDataset, "read"):
            texts: list[str | Exception] = self.entries.read(indices)
            return texts
        texts = []
        for index in map(int, indices):
            try:
                texts.append(self.read(index) if self._kept is None else self._kept.load(index, self.read))
            except Exception as error:
                texts.append(error)
        return texts

    @property
    def is_native(self) -> bool:
        """Whether native code reads the files and makes the rows."""
        plain = isinstance(self.encoder, Characters) and self.entries.plain
        return plain and self._kept is None and inherits(self, TextDataset, "read")

    @property
    def default_collate(self) -> PaddingCollate | None:
        """The ``collate_fn`` of a foreload DataLoader that is given none."""
        return None if self.padding else self.collate

    def batch_assembly(
        self, spec: BatchOptions, key: tuple[int, int], buffers: BatchMemory
    ) -> TextAssembly | None:
        """Make whole batches for foreload's DataLoader, unless a subclass loads samples itself."""
        own = is_default_collate(spec.collate_fn) if self.padding else spec.collate_fn == self.collate
        if not own or spec.cache is not None or self.__getitems__ != self._load_batch:
            return None
        if any(code is not None for code in self.user_code()):  # which may draw random numbers for each sample
            return None
        return TextAssembly(self, buffers, spec)


def _checked_length(max_length: Any) -> int:
    """Return ``max_length``; raise ValueError or TypeError unless memory holds a sample of as many ids."""
    number = check_int("max_length", max_length, 1)
    size, most = number * torch.int64.itemsize, granted_memory()
    if size > most:
        raise ValueError(
            f"max_length={number}: one sample would take {size:,} bytes, more than the {most:,} that this process "
            "may use; give the most ids that a text may have"
        )
    return number
