"""Batches of texts as rows of ids, by native code or a tokenizer."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import default_collate

from foreload import _native
from foreload.batch.assembly import note_sample
from foreload.batch.collate import pinned
from foreload.batch.failure import EmptyBatch, SampleError, note_source, replacement_positions
from foreload.checks import Array
from foreload.datasets.text.tokens import IDS, Called, Encoder, PaddingCollate, Rows, take_ids
from foreload.options import OnError
from foreload.order.index import positions_of, require_nonempty
from foreload.protocol import Batch, BatchMemory, BatchOptions
from foreload.record.spans import Stage

__all__ = ["EncodedTexts", "TextAssembly", "TextBatch", "TextSamples", "note_text"]

Key = Callable[[int], None]

# Texts that a worker takes at a time: enough for a tokenizer's own threads, few enough for all workers to help.
_RUN = 64


class EncodedTexts(Protocol):
    """The part of a :class:`~foreload.TextDataset` that batches are made from; see its attributes."""

    entries: Any
    encoder: Encoder
    collate: PaddingCollate
    max_length: int
    padding: bool
    target_transform: Callable[[Any], Any] | None

    @property
    def is_native(self) -> bool:
        """Whether native code reads the files and makes the rows."""
        ...

    def read_many(self, indices: Sequence[int] | Array) -> list[str | Exception]:
        """Load several texts; in place of one that fails, its exception."""
        ...

    def __len__(self) -> int:
        """Count the texts."""
        ...


def note_text(error: BaseException, dataset: EncodedTexts, index: int) -> None:
    """Add the file and line of a text to an error of its tokenizer."""
    error.add_note(f"The text is that of {dataset.entries.place(index)}.")
    note_source(error, os.fsdecode(dataset.entries.source.path(index)))


class TextBatch:
    """Some texts as rows of ids, with their targets.

    Attributes:
        columns: by name, the ids of each text: rows of ``max_length``.
        targets: of each, if there are any.
        labels: what ``target_transform`` made of them, if that was done already.
    """

    def __init__(
        self, dataset: EncodedTexts, indices: Any, columns: dict[str, torch.Tensor], lengths: Any
    ) -> None:
        self._dataset = dataset
        self.columns = columns
        self.lengths = lengths
        targets = dataset.entries.targets
        self.targets = None if targets is None else torch.from_numpy(targets[np.asarray(indices)])
        self.labels: list[Any] | None = None

    @classmethod
    def of(cls, dataset: EncodedTexts, indices: Any, rows: Rows, buffers: BatchMemory) -> TextBatch:
        """Pad the ids of a tokenizer."""
        return cls(dataset, indices, *dataset.collate.padded(rows, dataset.max_length, buffers))

    def sample(self, row: int) -> Any:
        """Return one sample, as ``dataset[index]`` does."""
        dataset, length = self._dataset, int(self.lengths[row])
        used = slice(-length or dataset.max_length, None) if dataset.collate.left else slice(length)
        columns = {
            name: rows[row] if dataset.padding else rows[row][used].clone() for name, rows in self.columns.items()
        }
        text = columns.get(IDS, columns)
        return text if self.targets is None else (text, self._label(row))

    def label(self, key: Key) -> None:
        """Call ``target_transform`` for each text, with the generators keyed for it."""
        if self.labels is None and self.targets is not None and self._dataset.target_transform is not None:
            labels = []
            for row in range(len(self.targets)):
                key(row)
                labels.append(self._label(row))
            self.labels = labels

    def _label(self, row: int) -> Any:
        if self.labels is not None:
            return self.labels[row]
        assert self.targets is not None
        transform, target = self._dataset.target_transform, self.targets[row].item()
        return target if transform is None else transform(target)

    def _labels(self) -> Any:
        if self.targets is None or self._dataset.target_transform is None:
            return self.targets
        return default_collate([self._label(row) for row in range(len(self.targets))])

    def padded(self) -> Any:
        """Return the batch that ``default_collate`` would make."""
        text: Any = self.columns.get(IDS, self.columns)
        return text if self.targets is None else [text, self._labels()]

    def trimmed(self, buffers: BatchMemory) -> Any:
        """Return the batch that the dataset's own ``collate`` would make."""
        collate, width = self._dataset.collate, int(self.lengths.max())
        columns = {}
        for name, rows in self.columns.items():
            used = rows[:, rows.shape[1] - width :] if collate.left else rows[:, :width]
            columns[name] = buffers.take((len(rows), width), rows.dtype).copy_(used)
        return collate.batch(columns, self.lengths, self._labels())

    def chosen(self, rows: list[int]) -> None:
        """Keep these rows only."""
        self.columns = {name: column[rows] for name, column in self.columns.items()}
        self.lengths = self.lengths[rows]
        self.targets = None if self.targets is None else self.targets[rows]
        self.labels = None if self.labels is None else [self.labels[row] for row in rows]


class TextSamples(Sequence[Any]):
    """The samples of a batch, which :class:`PaddingCollate` puts together as a whole."""

    def __init__(self, batch: TextBatch) -> None:
        self._batch = batch

    def __len__(self) -> int:
        """Count them."""
        return len(self._batch.lengths)

    def __getitem__(self, row: Any) -> Any:
        """Return one, or a list of them for a slice."""
        if isinstance(row, slice):
            return [self._batch.sample(each) for each in range(*row.indices(len(self)))]
        return self._batch.sample(range(len(self))[row])

    def trimmed(self, buffers: BatchMemory) -> Any:
        """Return what the collation of the samples gives."""
        return self._batch.trimmed(buffers)


class TextAssembly:
    """Batches of texts; an :class:`~foreload.protocol.Assembly`."""

    depth: int | None = None

    def __init__(self, dataset: EncodedTexts, buffers: BatchMemory, spec: BatchOptions | None = None) -> None:
        self._dataset = dataset
        self._buffers = buffers
        self._pin_device = None if spec is None else spec.pin_device
        self._on_error: OnError = "raise" if spec is None else spec.on_error
        self._errors = [] if spec is None else spec.errors

    def start(self, indices: Any) -> Batch:
        """See :class:`~foreload.protocol.Assembly`."""
        work = self._work(indices)

        def take() -> Any:
            made = self._checked(work)
            batch = made.padded() if self._dataset.padding else made.trimmed(self._buffers)
            return pinned(batch, self._pin_device)

        return Batch(work.job(), take)

    def made(self, indices: Any, key: Key | None = None) -> TextBatch:
        """Make a batch in the calling thread.

        Args:
            indices: of the samples.
            key: keys the generators for the sample at a position, before code of the user's that may draw.
        """
        work = self._work(indices, key)
        work.job().run_here()
        batch = self._checked(work)
        if key is not None:
            batch.label(key)
        return batch

    def _work(self, indices: Any, key: Key | None = None) -> _Characters | _Encoding:
        where = require_nonempty(positions_of(indices, len(self._dataset.entries)))
        if self._dataset.is_native:
            return _Characters(self._dataset, where, self._buffers)
        return _Encoding(self._dataset, where, self._buffers, key)

    def _checked(self, work: _Characters | _Encoding) -> TextBatch:
        """Return the batch, with failures treated as the loader wants."""
        failures = dict(work.failures())
        if not failures:
            return work.made()
        for position, error in failures.items():
            index = int(work.indices[position])
            source = os.fsdecode(self._dataset.entries.source.path(index))
            if self._on_error == "raise" or not isinstance(error, Exception):
                note_sample(error, index, position)
                note_source(error, source)
                raise error
            self._errors.append(SampleError.of(index, error, self._on_error, source))
        rows = replacement_positions(
            [position in failures for position in range(len(work.indices))], self._on_error
        )
        if not rows:
            raise EmptyBatch
        made = work.made()
        made.chosen(rows)
        return made


class _Characters:
    """The work on a batch of characters: native code reads them."""

    def __init__(self, dataset: EncodedTexts, indices: Any, buffers: BatchMemory) -> None:
        self._dataset = dataset
        self.indices = indices
        self._ids = take_ids(buffers, len(indices), dataset.max_length)
        self._lengths = torch.zeros(len(indices), dtype=torch.int64, device="cpu")
        self._job = _native.CharacterJob(
            dataset.entries.source, indices, self._ids.numpy(), self._lengths.numpy(), _RUN
        )

    def job(self) -> _native.Job:
        """Return the job."""
        return self._job

    def failures(self) -> list[tuple[int, BaseException]]:
        """Return the positions that failed, each with its error."""
        failure = self._dataset.entries.failure
        return [
            (position, failure(int(self.indices[position]), error)) for position, error in self._job.failures()
        ]

    def made(self) -> TextBatch:
        """Return the batch."""
        return TextBatch(self._dataset, self.indices, {IDS: self._ids}, self._lengths)


class _Encoding:
    """The work on a batch for a tokenizer, a run of texts at a time."""

    def __init__(self, dataset: EncodedTexts, indices: Any, buffers: BatchMemory, key: Key | None = None) -> None:
        self._dataset = dataset
        self.indices = indices
        self._buffers = buffers
        self._key = key
        self._is_called = isinstance(dataset.encoder, Called)
        has_labels = dataset.target_transform is not None and dataset.entries.targets is not None
        self._labels: list[Any] | None = [None] * len(indices) if has_labels and self._is_called else None
        self._samples: list[dict[str, Any] | None] = [None] * len(indices)
        self._failures: dict[int, BaseException] = {}
        self._made: TextBatch | None = None

    def job(self) -> _native.Job:
        """Make the job, which holds this object: the garbage collector could not see a reference back."""
        return _native.PythonJob(len(self.indices), _RUN, self._run, self._finish, Stage.decode)

    def _run(self, begin: int, end: int) -> None:
        try:
            texts = dict(enumerate(self._dataset.read_many(self.indices[begin:end]), begin))
            for position, text in list(texts.items()):
                if isinstance(text, Exception):
                    self._failures[position] = texts.pop(position)  # type: ignore[assignment]
            if self._is_called:
                self._call(texts)  # type: ignore[arg-type]
            elif texts:
                self._encode(texts)  # type: ignore[arg-type]
        except BaseException as error:  # an error of all texts that were not encoded
            for position in range(begin, end):
                if self._samples[position] is None:
                    self._failures.setdefault(position, error)

    def _call(self, texts: dict[int, str]) -> None:
        """Call a function for each text, and what makes its label: both may draw random numbers."""
        dataset, key = self._dataset, self._key
        transform, targets = dataset.target_transform, dataset.entries.targets
        for position, text in texts.items():
            if key is not None:
                key(position)
            try:
                ids = dataset.encoder.encode([text])[IDS][0]
                if transform is not None and self._labels is not None:
                    self._labels[position] = transform(targets[self.indices[position]].item())
                self._samples[position] = {IDS: ids}
            except Exception as error:
                note_text(error, dataset, int(self.indices[position]))
                self._failures[position] = error

    def _encode(self, texts: dict[int, str]) -> None:
        try:
            rows = self._dataset.encoder.encode(list(texts.values()))
        except Exception as error:
            if len(texts) == 1:
                (position,) = texts
                note_text(error, self._dataset, int(self.indices[position]))
                self._failures[position] = error
                return
            for position, text in texts.items():  # find the one that fails, and encode the others
                self._encode({position: text})
            return
        for row, position in enumerate(texts):
            self._samples[position] = {name: column[row] for name, column in rows.items()}

    def _finish(self) -> None:
        names = next((sample for sample in self._samples if sample is not None), None)
        if names is None:
            return
        rows = {name: [() if sample is None else sample[name] for sample in self._samples] for name in names}
        try:
            self._made = TextBatch.of(self._dataset, self.indices, rows, self._buffers)
            self._made.labels = self._labels
        except BaseException as error:
            self._failures.setdefault(0, error)

    def failures(self) -> list[tuple[int, BaseException]]:
        """Return the positions that failed, each with its error."""
        return sorted(self._failures.items())

    def made(self) -> TextBatch:
        """Return the batch."""
        if self._made is None:
            raise EmptyBatch
        return self._made
