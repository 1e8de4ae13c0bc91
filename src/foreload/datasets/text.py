"""Texts in files."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import default_collate

from foreload import _native
from foreload.datasets.base import BaseDataset
from foreload.datasets.lines import LABEL, Field, open_texts
from foreload.datasets.tokens import IDS, Characters, PaddingCollate, Rows, encoder_of
from foreload.options import LoadingMode
from foreload.stages.batch import Batch
from foreload.stages.buffers import Buffers
from foreload.stages.collate import Collated, is_default_collate, pinned
from foreload.stages.failure import NothingLeft, OnError, SampleError, stand_ins

if TYPE_CHECKING:
    from foreload.stages.assemble import Making

__all__ = ["TextDataset"]

# Texts that a worker takes at a time: enough for a tokenizer to share out, few enough for the workers to.
_RUN = 64


class TextDataset(BaseDataset):
    r"""Texts in files as token ids: ``ids``, or ``(ids, label)`` where there are labels.

    ``data_path`` is a file of lines (each one a sample, empty ones too); JSON lines (``.jsonl``, ``.ndjson``,
    ``.json``); a table with a header (``.csv``, ``.tsv``, fields as Python's csv module reads them); or a folder
    of class folders of ``.txt`` files, each of which is one sample. All in UTF-8, with or without a byte-order
    mark. Of a file of many samples only the places at which they begin are held, in 4 bytes each; samples are
    read when they are asked for.

    A sample is an int64 tensor of ``max_length`` ids. A tokenizer of ``transformers`` gives a dict of them
    (``input_ids``, ``attention_mask``, ...), padded on its own ``padding_side``. Labels that are numbers stay
    what they are (of tables too, where all of them are), names become the position among the sorted names.

    Args:
        data_path: the file or folder.
        tokenizer: None for characters: the Unicode code point of each, padded with 0; a callable from text to
            ints; a tokenizer of Hugging Face ``tokenizers``, or of ``transformers``. Padding is with the
            tokenizer's own padding id, if it has one, else with 0.
        max_length: how many ids a sample has at most; the rest is cut off.
        loading_mode: ``LAZY`` reads samples when they are asked for; ``EAGER`` holds all of the text in memory
            that workers share, ``CACHED`` what fits into half of the memory that this process may use;
            ``STREAMING`` is as ``LAZY``: nothing is kept.
        padding: whether all samples are padded to ``max_length``. If not, each has its own length, and a batch is
            what :attr:`collate` makes; foreload's DataLoader uses it by itself, a stock one is given
            ``collate_fn=dataset.collate``.
        target_transform: called with each label.
        text_field, label_field: which field of JSON lines and of tables; for tables also its position, from 0 on.
            A table of which only positions are given has no header. Without a field ``"label"`` there are no
            labels, nor with ``label_field=None``.

    Attributes:
        classes: the names of the classes, sorted; empty where labels are numbers.
        class_to_idx: from name to target.
        targets: the target of every sample; empty without labels.
        collate: pads samples to the longest of a batch and gives ``(ids, lengths)`` or ``(ids, lengths, labels)``;
            of dicts, a dict or ``(dict, labels)``.

    Raises:
        FileNotFoundError: there is nothing at ``data_path``, or no ``.txt`` file in it.
        OSError: a file cannot be read, or has changed since the dataset was made; ``filename`` is its path.
        ValueError: an argument or a line makes no sense; the message names it. Text that is not UTF-8 is a
            UnicodeDecodeError, which is one too.
        TypeError: an argument is of a wrong type.
        MemoryError: ``EAGER`` needs more than the memory that this process may use.

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
        if isinstance(max_length, bool) or not hasattr(max_length, "__index__"):
            raise TypeError(f"max_length must be an int, got {max_length!r}")
        if max_length < 1:
            raise ValueError(f"max_length must be 1 or more, got {max_length}")
        if not isinstance(padding, bool):
            raise TypeError(f"padding must be True or False, got {padding!r}")
        self.tokenizer = tokenizer
        self.max_length = operator.index(max_length)
        self.padding = padding
        self.text_field = text_field
        self.label_field = label_field
        self._encoder = encoder_of(tokenizer, self.max_length)
        self.collate = self._encoder.collate
        super().__init__(data_path, None, target_transform, loading_mode)

    def index(self) -> Any:
        """Find the texts; called once."""
        return open_texts(self.data_path, self.text_field, self.label_field)

    @property
    def classes(self) -> list[str]:
        """The names of the classes, sorted."""
        classes: list[str] = self.entries.classes
        return classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """From the name of a class to its target."""
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
        position = self._position(index)
        batch = _TextAssembly(self, Buffers()).made([position])
        return batch.sample(0)

    @property
    def __getitems__(self) -> Callable[[Sequence[int]], Sequence[Any]] | None:
        """Load the samples of a batch; where they are padded, a stock DataLoader has nothing left to collate.

        None where a subclass loads samples in a way of its own.
        """
        return self._load_batch if self._is_own else None

    @property
    def _is_own(self) -> bool:
        cls = type(self)
        return all(
            getattr(cls, name) is getattr(TextDataset, name)
            for name in ("__getitem__", "__getitems__", "__prepare__", "__finish__", "read", "index")
        )

    def _load_batch(self, indices: Sequence[int]) -> Sequence[Any]:
        batch = _TextAssembly(self, Buffers()).made([self._position(index) for index in indices])
        if self.padding and self.target_transform is None and (IDS in batch.columns or batch.targets is None):
            return Collated(batch.padded(), len(indices))
        return [batch.sample(row) for row in range(len(indices))]

    def _position(self, index: int) -> int:
        position = operator.index(index)
        if not -len(self) <= position < len(self):
            raise IndexError(f"index {position} is out of range for {len(self)} samples")
        return position % len(self)

    def __finish__(self, index: int, prepared: Any) -> Any:
        """Turn a text that was read before into a sample."""
        return _Made.of(self, [index], self._encoder.encode([prepared]), Buffers()).sample(0)

    def _read_many(self, indices: Sequence[int] | np.ndarray[Any, Any]) -> list[str | Exception]:
        if self._kept is None:
            texts: list[str | Exception] = self.entries.read(indices)
            return texts
        texts = []
        for index in indices:
            try:
                texts.append(self._kept.load(int(index), self.read))
            except (OSError, ValueError) as error:
                texts.append(error)
        return texts

    @property
    def _is_native(self) -> bool:
        return isinstance(self._encoder, Characters) and self.entries.plain and self._kept is None

    @property
    def __collate__(self) -> PaddingCollate | None:
        """What foreload's DataLoader uses where it is given no ``collate_fn``."""
        return None if self.padding else self.collate

    def __assembly__(self, making: Making, key: tuple[int, int], buffers: Buffers) -> _TextAssembly | None:
        """Make whole batches for foreload's DataLoader, where nothing was overridden."""
        own = is_default_collate(making.collate_fn) if self.padding else making.collate_fn == self.collate
        if not own or not self._is_own or making._cache is not None:
            return None
        return _TextAssembly(self, buffers, making)


class _Made:
    """Some texts as rows of ids, with their targets.

    Attributes:
        columns: by name, the ids of each text: rows of ``max_length``.
        targets: of each, if there are any.
    """

    def __init__(self, dataset: TextDataset, indices: Any, columns: dict[str, torch.Tensor], lengths: Any) -> None:
        self._dataset = dataset
        self.columns = columns
        self.lengths = lengths
        targets = dataset.entries.targets
        self.targets = None if targets is None else torch.from_numpy(targets[np.asarray(indices)])

    @classmethod
    def of(cls, dataset: TextDataset, indices: Any, rows: Rows, buffers: Buffers) -> _Made:
        """Pad what a tokenizer gave."""
        return cls(dataset, indices, *dataset.collate.padded(rows, dataset.max_length, buffers))

    def sample(self, row: int) -> Any:
        """Give one of them as ``dataset[index]`` does."""
        dataset, length = self._dataset, int(self.lengths[row])
        used = slice(-length or dataset.max_length, None) if dataset.collate.left else slice(length)
        columns = {
            name: rows[row] if dataset.padding else rows[row][used].clone() for name, rows in self.columns.items()
        }
        text = columns.get(IDS, columns)
        return text if self.targets is None else (text, self._label(row))

    def _label(self, row: int) -> Any:
        assert self.targets is not None
        transform, target = self._dataset.target_transform, self.targets[row].item()
        return target if transform is None else transform(target)

    def _labels(self) -> Any:
        if self.targets is None or self._dataset.target_transform is None:
            return self.targets
        return default_collate([self._label(row) for row in range(len(self.targets))])

    def padded(self) -> Any:
        """Give all of them as ``default_collate`` would."""
        text: Any = self.columns.get(IDS, self.columns)
        return text if self.targets is None else [text, self._labels()]

    def trimmed(self, buffers: Buffers) -> Any:
        """Give all of them as the dataset's own ``collate`` would."""
        collate, width = self._dataset.collate, int(self.lengths.max())
        columns = {}
        for name, rows in self.columns.items():
            used = rows[:, rows.shape[1] - width :] if collate.left else rows[:, :width]
            columns[name] = buffers.take((len(rows), width), rows.dtype).copy_(used)
        return collate.batch(columns, self.lengths, self._labels())

    def chosen(self, rows: list[int]) -> None:
        """Leave out all but these."""
        self.columns = {name: column[rows] for name, column in self.columns.items()}
        self.lengths = self.lengths[rows]
        self.targets = None if self.targets is None else self.targets[rows]


class _TextAssembly:
    """Batches of texts; see :class:`foreload.stages.batch.Assembly`."""

    depth: int | None = None

    def __init__(self, dataset: TextDataset, buffers: Buffers, making: Making | None = None) -> None:
        self._dataset = dataset
        self._buffers = buffers
        self._pin_device = None if making is None else making._pin_device
        self._on_error: OnError = "raise" if making is None else making.on_error
        self._errors = [] if making is None else making.errors

    def start(self, indices: Any) -> Batch:
        """See :class:`~foreload.stages.batch.Assembly`."""
        work = self._work(indices)

        def take() -> Any:
            made = self._checked(work)
            batch = made.padded() if self._dataset.padding else made.trimmed(self._buffers)
            return pinned(batch, self._pin_device)

        return Batch(work.job(), take)

    def made(self, indices: Any) -> _Made:
        """Make a batch in the calling thread."""
        work = self._work(indices)
        work.job().run_here()
        return self._checked(work)

    def _work(self, indices: Any) -> _Characters | _Encoding:
        where = np.asarray(indices, np.int64)
        count = len(self._dataset)
        if not len(where):
            raise IndexError("the batch sampler gave a batch without samples, which cannot be collated")
        if outside := where[(where < -count) | (where >= count)].tolist():
            raise IndexError(f"index {outside[0]} is out of range for {count} samples")
        where = np.where(where < 0, where + count, where)
        work = _Characters if self._dataset._is_native else _Encoding
        return work(self._dataset, where, self._buffers)

    def _checked(self, work: _Characters | _Encoding) -> _Made:
        """Give the batch, after some of it may have failed."""
        failures = dict(work.failures())
        if not failures:
            return work.made()
        for position, error in failures.items():
            index = int(work.indices[position])
            if self._on_error == "raise" or not isinstance(error, Exception):
                error.add_note(f"foreload: while loading sample {index} (position {position} of its batch)")
                raise error
            self._errors.append(SampleError.of(index, error, self._on_error))
        rows = stand_ins([position in failures for position in range(len(work.indices))], self._on_error)
        if not rows:
            raise NothingLeft
        made = work.made()
        made.chosen(rows)
        return made


class _Characters:
    """Texts whose characters the native core reads."""

    def __init__(self, dataset: TextDataset, indices: Any, buffers: Buffers) -> None:
        self._dataset = dataset
        self.indices = indices
        self._ids = buffers.take((len(indices), dataset.max_length), torch.int64)
        self._lengths = torch.zeros(len(indices), dtype=torch.int64)
        self._job = _native.CharacterJob(
            dataset.entries.source, indices, self._ids.numpy(), self._lengths.numpy(), _RUN
        )

    def job(self) -> _native.Job:
        """Give what makes it."""
        return self._job

    def failures(self) -> list[tuple[int, BaseException]]:
        """Tell which positions failed, and why."""
        failure = self._dataset.entries.failure
        return [
            (position, failure(int(self.indices[position]), error)) for position, error in self._job.failures()
        ]

    def made(self) -> _Made:
        """Give the result."""
        return _Made(self._dataset, self.indices, {IDS: self._ids}, self._lengths)


class _Encoding:
    """Texts that a tokenizer turns into numbers, a run of them at a time."""

    def __init__(self, dataset: TextDataset, indices: Any, buffers: Buffers) -> None:
        self._dataset = dataset
        self.indices = indices
        self._buffers = buffers
        self._samples: list[dict[str, Any] | None] = [None] * len(indices)
        self._failures: dict[int, BaseException] = {}
        self._made: _Made | None = None

    def job(self) -> _native.Job:
        """Give what makes it. It holds this, so this must not hold it: nothing would end such a cycle."""
        return _native.PythonJob(len(self.indices), _RUN, self._run, self._finish)

    def _run(self, begin: int, end: int) -> None:
        try:
            texts = dict(enumerate(self._dataset._read_many(self.indices[begin:end]), begin))
            for position, text in list(texts.items()):
                if isinstance(text, Exception):
                    self._failures[position] = texts.pop(position)  # type: ignore[assignment]
            if texts:
                self._encode(texts)  # type: ignore[arg-type]
        except BaseException as error:
            self._failures[begin] = error

    def _encode(self, texts: dict[int, str]) -> None:
        try:
            rows = self._dataset._encoder.encode(list(texts.values()))
        except Exception as error:
            if len(texts) == 1:
                self._failures[next(iter(texts))] = error
                return
            for position, text in texts.items():  # the others need not suffer for one of them
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
            self._made = _Made.of(self._dataset, self.indices, rows, self._buffers)
        except BaseException as error:
            self._failures.setdefault(0, error)

    def failures(self) -> list[tuple[int, BaseException]]:
        """Tell which positions failed, and why."""
        return sorted(self._failures.items())

    def made(self) -> _Made:
        """Give the result."""
        if self._made is None:
            raise NothingLeft
        return self._made
