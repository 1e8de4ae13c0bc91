"""Texts by number: the lines of a file, JSON lines, tables, folders of files."""

from __future__ import annotations

import json
import multiprocessing.reduction
import os
import reprlib
from collections.abc import Iterator, Sequence
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any

import numpy as np

from foreload import _native
from foreload.checks import Array, check_regular_file
from foreload.datasets.folders import class_folders, sorted_files
from foreload.datasets.text.labels import Labels
from foreload.errors import warn_user
from foreload.machine import granted_cores
from foreload.record.progress import ProgressBar, track, track_threads

__all__ = ["LABEL", "Field", "Texts", "open_texts"]

Field = str | int

# The default field of the label; if it is missing, there are no labels.
LABEL = "label"

_JSON = (".jsonl", ".ndjson", ".jsonlines", ".json")
_TABLES = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
_RUN = 4096

_ONE_PER_LINE = "each line must be one object; write the records of an array, or of many lines, so"


class Texts:
    """Texts by their number: the lines of a file, or what a subclass makes of them.

    Attributes:
        source: reads them.
        targets: of each text, if there are labels (int64 or float64).
        classes: the names that targets stand for, sorted; empty if labels are numbers.
    """

    # Whether a text is simply its bytes, which native code can decode.
    plain = True

    def __init__(self, source: _native.TextSource) -> None:
        self.source = source
        self.targets: Array | None = None
        self.classes: list[str] = []
        self._budget: int | None = None

    def __len__(self) -> int:
        """Count the texts."""
        return len(self.source)

    def text(self, index: int, data: bytes) -> str:
        """Decode the bytes of a text.

        Raises:
            UnicodeDecodeError, ValueError: they are not valid; the message names file and line.
        """
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise UnicodeDecodeError(
                error.encoding,
                error.object,
                error.start,
                error.end,
                f"{error.reason} ({self.place(index)}; texts must be in UTF-8: convert the file)",
            ) from None

    def read(self, indices: Sequence[int] | Array) -> list[str | Exception]:
        """Return several texts; in place of one that fails, its exception."""
        data, failures = self.source.read(np.ascontiguousarray(indices, np.int64))
        texts: list[str | Exception] = []
        failed = dict(failures)
        for position, (index, content) in enumerate(zip(indices, data, strict=True)):
            try:
                texts.append(
                    self.failure(int(index), failed[position]) if content is None else self.text(index, content)
                )
            except ValueError as error:
                texts.append(error)
        return texts

    def failure(self, index: int, error: Exception) -> Exception:
        """Return an error of native code, with the text that it is about."""
        if isinstance(error, OSError):
            return OSError(error.errno, f"{error.strerror}, loading sample {index}", error.filename)
        if isinstance(error, MemoryError):
            return MemoryError(f"{self.place(index)}: there is no memory for the text")
        (content,), failures = self.source.read(np.array([index]))
        if failures:
            return ValueError(f"{self.place(index)}: the record {error}")
        try:
            self.text(index, content)
        except UnicodeDecodeError as named:
            return named
        return error

    def place(self, index: int) -> str:
        """Return ``file``, or ``file:line`` if it holds several texts."""
        path = os.fsdecode(self.source.path(index))
        return f"{path}:{self.source.line_of(index)}" if isinstance(self.source, _native.LineFile) else path

    def keep(self, budget: int, *, everything: bool) -> None:
        """Keep up to ``budget`` bytes of the file in shared memory: as it is read, or ``everything`` now."""
        assert isinstance(self.source, _native.LineFile)
        self._budget = budget
        source = self.source = self.source.keep(budget)
        if not everything:
            return
        parts = -(-source.size // (64 << 20))
        for _ in track_threads(lambda part: source.load(part, parts), range(parts), "reading text", after=1):
            pass

    def __getstate__(self) -> dict[str, Any]:
        """Share kept text with a process that is being spawned; any other copy starts with none."""
        file = getattr(self.source, "file", -1)
        shared = multiprocessing.reduction.DupFd(file) if get_spawning_popen() is not None and file >= 0 else None
        return {**self.__dict__, "shared": shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Map the shared text."""
        shared = state.pop("shared")
        self.__dict__.update(state)
        if self._budget is None:
            return
        assert isinstance(self.source, _native.LineFile)
        file = -1 if shared is None else shared.detach()
        self.source = self.source.keep(self._budget, file)
        if file >= 0:
            os.close(file)


class _JsonTexts(Texts):
    """Texts in a field of JSON lines."""

    plain = False

    def __init__(self, source: _native.LineFile, text_field: str, label_field: str | None) -> None:
        super().__init__(source)
        self._text_field = text_field
        self._leaves_out: str | None = None  # a field that the first record lacks, so that none may have it
        if len(self) == 0 or label_field is None:
            return
        (content,), failures = source.read(np.array([0]))
        if failures:
            raise self.failure(0, failures[0][1])
        first = self._record(0, content)
        self._value(0, first, text_field)
        if label_field == LABEL and LABEL not in first:
            self._leaves_out = LABEL
            return
        labels = Labels(self.place, label_field)
        for index, data in _contents(self):
            labels.add(index, self._value(index, self._record(index, data), label_field))
        self.targets, self.classes = labels.targets()

    def text(self, index: int, data: bytes) -> str:
        record = self._record(index, data)
        if self._leaves_out in record:
            raise ValueError(
                f"{self.place(index)} has a field {self._leaves_out!r}, which the first record lacks; give "
                "every record one, or label_field=None, which leaves the labels out"
            )
        value = self._value(index, record, self._text_field)
        if not isinstance(value, str):
            raise ValueError(
                f"{self.place(index)}: {self._text_field!r} must be a string, got {reprlib.repr(value)}"
            )
        return value

    def _record(self, index: int, data: bytes) -> dict[str, Any]:
        text = super().text(index, data)
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{self.place(index)} is not JSON: {error}; {_ONE_PER_LINE}") from None
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, or nested as deeply
            raise ValueError(f"{self.place(index)} is JSON that Python cannot read: {error}") from None
        if not isinstance(record, dict):
            raise ValueError(
                f"{self.place(index)} must be a JSON object, got {reprlib.repr(record)}; {_ONE_PER_LINE}"
            )
        return record

    def _value(self, index: int, record: dict[str, Any], field: str) -> Any:
        try:
            return record[field]
        except KeyError:
            raise ValueError(
                f"{self.place(index)} has no field {field!r}; its fields are {', '.join(map(repr, record))}"
            ) from None


def _contents(texts: Texts) -> Iterator[tuple[int, bytes]]:
    """Read all texts, in order."""
    runs = range(0, len(texts), _RUN)
    for start in track(runs, "reading labels", total=len(runs), after=1):
        data, failures = texts.source.read(np.arange(start, min(len(texts), start + _RUN)))
        for position, error in failures:
            raise texts.failure(start + position, error)
        yield from enumerate(data, start)


def open_texts(path: Path, text_field: Field, label_field: Field | None) -> Texts:
    """Find the texts at ``path``.

    Raises:
        FileNotFoundError: it is a folder without a ``.txt`` file.
        OSError: a file cannot be read.
        ValueError, TypeError: a file is of another format than its name says, or lacks a field.
    """
    if path.is_dir():
        _refuse_fields(path, text_field, label_field)
        return _open_folder(path)
    suffix = path.suffix.lower()
    if suffix in _PACKED:
        raise ValueError(
            f"data_path: {str(path)!r} is compressed, so that no line can be found in it; unpack it first"
        )
    if suffix in _TABLES:
        return _open_table(path, _TABLES[suffix], text_field, label_field)
    if suffix in _JSON:
        for name, field in (("text_field", text_field), ("label_field", label_field)):
            if not isinstance(field, str) and not (field is None and name == "label_field"):
                raise TypeError(f"{name} must be a str for JSON lines, got {field!r}")
        return _JsonTexts(_lines(path, "filled"), text_field, label_field)  # type: ignore[arg-type]
    _refuse_fields(path, text_field, label_field)
    return Texts(_lines(path, "lines"))


def _refuse_fields(path: Path, text_field: Field, label_field: Field | None) -> None:
    """Raise ValueError for a field that was asked for, of texts that have none."""
    for name, field, default in (("text_field", text_field, "text"), ("label_field", label_field, LABEL)):
        if field not in (default, None):
            raise ValueError(
                f"{name}={field!r}: the texts of {str(path)!r} have no fields; {', '.join(_TABLES)} and "
                f"{', '.join(_JSON)} have"
            )


def _lines(path: Path, split: str, delimiter: str = ",") -> _native.LineFile:
    check_regular_file(str(path), "; copy what it gives to a file")
    mebibytes = -(-path.stat().st_size >> 20)
    if mebibytes == 0:
        with path.open("rb") as file:
            if file.read(1):
                raise ValueError(
                    f"data_path: the system gives no size for {str(path)!r}; copy it to a regular file"
                )
    with ProgressBar(f"indexing {path.name} (MiB)", mebibytes, after=1) as progress:
        done = 0

        def scanned(size: int) -> None:
            nonlocal done
            progress.advance((size >> 20) - done)
            done = size >> 20

        found = _native.LineFile(os.fsencode(path), split, delimiter, granted_cores(), scanned)
        progress.advance(mebibytes - done)
        return found


def _warn_of_similar(columns: list[str], path: Path) -> None:
    """Warn of a column that looks as if it were meant to hold the labels, which are otherwise left out."""
    similar = [column for column in columns if column.strip().lower() == LABEL]
    if similar:
        warn_user(
            f"{str(path)!r} has no column {LABEL!r}, so its samples have no labels, but it has a column "
            f"{similar[0]!r}; give label_field={similar[0]!r} to use it, or label_field=None if it is none"
        )


def _open_table(path: Path, delimiter: str, text_field: Field, label_field: Field | None) -> Texts:
    records = _lines(path, "records", delimiter)
    if not len(records) and isinstance(text_field, str):
        raise ValueError(
            f"data_path: {str(path)!r} is empty; the first line of a table has the names of its columns, such as "
            f"{text_field!r}"
        )
    (first,), _ = records.read(np.array([0])) if len(records) else ([b""], None)
    columns = [field.decode(errors="replace") for field in _native.split_record(first, delimiter)]
    if label_field == LABEL and LABEL not in columns:
        label_field = None
        _warn_of_similar(columns, path)
    # Names of fields stand in the first line.
    header = isinstance(text_field, str) or isinstance(label_field, str)
    text = _column("text_field", text_field, columns, path)
    count = len(columns) if header else None
    texts = Texts(records.part(int(header and len(records) > 0), text, count))
    if label_field is None:
        return texts
    label = _column("label_field", label_field, columns, path)
    source = records.part(int(header), label, count)
    labels, column = Labels(texts.place, label_field), Texts(source)
    for index, data in _contents(column):
        labels.add(index, column.text(index, data))
    texts.targets, texts.classes = labels.targets(numbers_as_text=True)
    return texts


def _column(name: str, field: Field, columns: list[str], path: Path) -> int:
    if isinstance(field, str):
        if columns.count(field) > 1:
            places = ", ".join(str(place) for place, column in enumerate(columns) if column == field)
            raise ValueError(
                f"{name}: there are several columns {field!r} in {str(path)!r}; rename all but one in the file, "
                f"or give positions for text_field and label_field: {places}"
            )
        if field in columns:
            return columns.index(field)
    elif isinstance(field, (int, np.integer)) and not isinstance(field, bool):
        if -len(columns) <= field < len(columns):
            return int(field) % len(columns)
    else:
        raise TypeError(f"{name} must be the name or the position of a column, got {field!r}")
    raise ValueError(
        f"{name}: there is no column {field!r} in {str(path)!r}; its columns are {', '.join(map(repr, columns))}"
    )


def _open_folder(root: Path) -> Texts:
    folders = class_folders(root)
    found = {name: _text_files(root / name, root) for name in folders}
    if not folders:
        files = _text_files(root)
        if not files:
            raise FileNotFoundError(f"data_path: no .txt file in {str(root)!r}")
        return Texts(_native.WholeFiles(files))
    if empty := [name for name, files in found.items() if not files]:
        raise FileNotFoundError(
            f"data_path: no .txt file in class folder(s) {', '.join(map(repr, empty[:5]))} of {str(root)!r}"
        )
    texts = Texts(_native.WholeFiles([file for files in found.values() for file in files]))
    texts.targets = np.repeat(np.arange(len(folders)), [len(files) for files in found.values()])
    texts.classes = folders
    return texts


def _text_files(folder: Path, root: Path | None = None) -> list[bytes]:
    return list(map(os.fsencode, sorted_files(folder, (".txt",), root)))
