"""Lines, tables, JSON lines and folders of texts, against Python's own modules."""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from foreload import _native
from foreload.options import LoadingMode
from tests.datasets.text.conftest import LINES, code_points, write


def test_lines_are_padded_and_cut(lines: Path) -> None:
    texts = fl.TextDataset(lines, max_length=10)
    assert len(texts) == len(LINES)
    for index, line in enumerate(LINES):
        assert texts[index].dtype is torch.int64
        assert texts[index].tolist() == texts[index - len(LINES)].tolist() == code_points(line, 10)
    free = fl.TextDataset(lines, max_length=10, padding=False)
    assert [free[i].tolist() for i in range(len(free))] == [code_points(line, len(line))[:10] for line in LINES]
    assert fl.TextDataset(lines)[0].shape == (512,)
    for index in (6, -7):
        with pytest.raises(IndexError, match=f"index {index} is out of range for 6"):
            texts[index]


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12), max_size=8
    ),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_any_lines(tmp_path_factory: Any, content: list[str], end: str, last: bool, mark: bool) -> None:
    text = end.join(content) + (end if last and content else "")
    expected = content if last or not content or content[-1] else content[:-1]
    file = write(tmp_path_factory.mktemp("any") / "lines.txt", ("\ufeff" if mark else "") + text)
    texts = fl.TextDataset(file, max_length=12, padding=False)
    if content and content[0].startswith("\ufeff") and not mark:
        return  # that is a byte-order mark
    assert [texts.read(i) for i in range(len(texts))] == expected
    assert [texts[i].tolist() for i in range(len(texts))] == [[ord(c) for c in line] for line in expected]


@given(
    st.lists(
        st.tuples(st.text(alphabet='ab,"\n\r\té', max_size=8), st.sampled_from(["one", "two", "3", 'x"y'])),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([",", "\t"]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
@settings(max_examples=80, deadline=None)
def test_tables_are_read_as_csv_reads_them(
    tmp_path_factory: Any, rows: list[tuple[str, str]], delimiter: str, end: str, quoting: Any
) -> None:
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, lineterminator=end, quoting=quoting).writerows([("text", "label"), *rows])
    name = "table.csv" if delimiter == "," else "table.tsv"
    file = write(tmp_path_factory.mktemp("table") / name, out.getvalue())
    read = list(csv.reader(io.StringIO(out.getvalue(), newline=""), delimiter=delimiter))[1:]
    texts = fl.TextDataset(file, max_length=8)
    assert [texts.read(i) for i in range(len(texts))] == [row[0] for row in read] == [row[0] for row in rows]
    names = [label for _, label in rows]
    if all(label == "3" for label in names):
        assert (texts.targets, texts.classes) == ([3] * len(rows), [])
    else:
        assert texts.classes == sorted(set(names))
        assert [texts.classes[target] for target in texts.targets] == names


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["01", "1", "2"], "'01' and '1' would be the same one"),
        (["1", "+1"], "'1' and .* would be the same one"),
        (["1000", "7", "1e3"], "'1000' and '1e3'"),
        (["5", "5.0", "0.5"], "'5' and '5.0' would be the same one; write it in one way"),
        (["0", "00", "-0"], "'0' and '00'"),
        (["1e400", "1"], "'1e400' is too large"),
        (["-1e400", "1.5"], "'-1e400' is too large"),
        (["0.5", "nan", "1.5"], "'nan' is none; remove those lines"),
        (["3", "N/A"], "'N/A' is none"),
    ],
)
def test_labels_that_might_be_no_numbers_are_names(tmp_path: Path, labels: list[str], words: str) -> None:
    table = write(tmp_path / "a.csv", "text,label\n" + "".join(f"x,{label}\n" for label in labels))
    with pytest.warns(UserWarning, match=rf"'label': the labels are taken for names.*{words}"):
        texts = fl.TextDataset(table)
    assert texts.classes == sorted(labels)
    assert [texts.classes[target] for target in texts.targets] == labels


@pytest.mark.parametrize(
    "labels",
    [["-0.00", "0.00", "0.25"], [" 10", "9", "9 "], ["007", "1", "10"], ["1e3", "-2", ".5"], ["3", "5.0"]],
)
def test_labels_that_are_numbers_stay_what_they_are(tmp_path: Path, labels: list[str]) -> None:
    table = write(tmp_path / "a.csv", "text,label\n" + "".join(f"x,{label}\n" for label in labels))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        texts = fl.TextDataset(table)
        assert fl.TextDataset(write(tmp_path / "b.csv", "text,label\nx,nan\nx,inf\n")).classes == ["inf", "nan"]
    assert (texts.targets, texts.classes) == (list(map(float, labels)), [])


def test_names_that_differ_only_in_spaces_are_warned_of(tmp_path: Path) -> None:
    table = write(tmp_path / "a.csv", "text,label\na,cat\nb, cat\nc,dog\n")
    with pytest.warns(UserWarning, match=r"'label': ' cat' and 'cat' are different classes; remove the spaces"):
        assert fl.TextDataset(table).targets == [1, 0, 2]


def test_only_fields_that_the_header_lacks_are_refused(tmp_path: Path) -> None:
    more = write(tmp_path / "more.csv", "text,label\na,1,,\nb,2,\n")
    assert [fl.TextDataset(more).read(i) for i in range(2)] == ["a", "b"]
    ragged = write(tmp_path / "ragged.csv", "a,b\nc,d,e\n")
    texts = pickle.loads(pickle.dumps(fl.TextDataset(ragged, text_field=1, label_field=None)))
    assert [texts.read(i) for i in range(2)] == ["b", "d"]


def test_fields_of_tables(tmp_path: Path) -> None:
    table = write(tmp_path / "a.csv", "id,review,stars\n1,good,5\n\n2,bad,0.5\n")
    named = fl.TextDataset(table, max_length=4, text_field="review", label_field="stars")
    assert [(x.tolist(), y) for x, y in named] == [(code_points("good", 4), 5.0), (code_points("bad", 4), 0.5)]
    assert named.targets == [5.0, 0.5]
    bare = write(tmp_path / "b.tsv", "ham\thi there\nspam\tbuy\n")
    placed = fl.TextDataset(bare, max_length=2, text_field=1, label_field=0, target_transform=lambda y: -y)
    assert [(x.tolist(), y) for x, y in placed] == [(code_points("hi", 2), 0), (code_points("bu", 2), -1)]
    assert (placed.classes, placed.class_to_idx, placed.targets) == (
        ["ham", "spam"],
        {"ham": 0, "spam": 1},
        [0, 1],
    )
    unlabelled = fl.TextDataset(bare, max_length=2, text_field=-1)
    assert [x.tolist() for x in unlabelled] == [code_points("hi", 2), code_points("bu", 2)]
    assert unlabelled.targets == unlabelled.classes == []


def test_json_lines(tmp_path: Path) -> None:
    rows = [
        {"text": "eins\nzwei", "label": "b"},
        {"text": "", "label": "a"},
        {"label": "b", "text": "\ud83d drei"},
    ]
    file = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
    texts = fl.TextDataset(file, max_length=9)
    assert [(x.tolist(), y) for x, y in texts] == [
        (code_points(str(row["text"]), 9), "ab".index(row["label"])) for row in rows
    ]
    numbers = write(tmp_path / "b.jsonl", '{"t": "x", "y": 3}\r\n{"t": "y", "y": 4}')
    assert [y for _, y in fl.TextDataset(numbers, text_field="t", label_field="y")] == [3, 4]
    assert [x.tolist() for x in fl.TextDataset(numbers, text_field="t", max_length=1)] == [[ord("x")], [ord("y")]]
    assert len(fl.TextDataset(write(tmp_path / "c.jsonl", ""))) == 0


@pytest.mark.parametrize("mode", list(LoadingMode))
def test_folders_of_files(folder: Path, mode: LoadingMode) -> None:
    texts = fl.TextDataset(folder, max_length=8, loading_mode=mode)
    assert texts.classes == ["neg", "pos"]
    expected = [("bad\nvery", 0), ("good", 1), ("fine\n", 1)]
    for _ in range(2):
        assert [(x.tolist(), y) for x, y in texts] == [(code_points(text, 8), target) for text, target in expected]
    (x, y), *_ = fl.DataLoader(texts, batch_size=3)
    assert (x.tolist(), y.tolist()) == ([code_points(text, 8) for text, _ in expected], [0, 1, 1])
    assert [x.tolist() for x in fl.TextDataset(folder / "pos", max_length=5)] == [
        code_points("good", 5),
        code_points("fine\n", 5),
    ]


@pytest.mark.parametrize("mode", list(LoadingMode))
@pytest.mark.parametrize("context", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_every_mode_in_every_kind_of_process(lines: Path, mode: LoadingMode, context: str) -> None:
    texts = fl.TextDataset(lines, max_length=6, loading_mode=mode)
    expected = [code_points(line, 6) for line in LINES]
    loader = TorchDataLoader(texts, batch_size=2, num_workers=1, multiprocessing_context=context)
    assert [row for batch in loader for row in batch.tolist()] == expected
    assert [x.tolist() for x in pickle.loads(pickle.dumps(texts))] == expected
    if mode is LoadingMode.EAGER:
        lines.unlink()
        assert [x.tolist() for x in texts] == expected
        assert [row for batch in loader for row in batch.tolist()] == expected


def test_cached_keeps_what_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "big.txt", "".join(f"line {i}\n" for i in range(40000)))
    monkeypatch.setattr("foreload.datasets.base.granted_memory", lambda: 200_000)
    texts = fl.TextDataset(file, max_length=12, loading_mode=LoadingMode.CACHED)
    kept = lambda: texts.entries.source.kept
    assert kept() == 0
    for _ in range(2):
        for start, batch in enumerate(fl.DataLoader(texts, batch_size=1000)):
            assert batch[7].tolist() == code_points(f"line {1000 * start + 7}", 12)
    assert 30_000 < kept() <= 100_000
    with pytest.raises(MemoryError, match="CACHED, which keeps what fits"):
        fl.TextDataset(file, loading_mode=LoadingMode.EAGER)


def test_a_subclass_is_asked_for_its_samples(lines: Path) -> None:
    class Upper(fl.TextDataset):
        def read(self, index: int) -> str:
            return super().read(index).upper()

    class Halved(fl.TextDataset):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index)[::2]

    class Reversed(fl.TextDataset):
        def finish_sample(self, index: int, prepared: Any) -> Any:
            return super().finish_sample(index, prepared[::-1])

    for cls, expected in ((Upper, "HELLO "), (Halved, "hlo"), (Reversed, "olleh ")):
        data = cls(lines, max_length=5)
        assert data[0].tolist() == code_points(expected.strip(), 3 if cls is Halved else 5)
        for loader in (TorchDataLoader, fl.DataLoader):
            first, *_ = loader(data, batch_size=2)
            assert first[0].tolist() == data[0].tolist()


@pytest.mark.parametrize("together", [False, True])
def test_texts_that_a_subclass_cannot_read_together_are_none(lines: Path, together: bool) -> None:
    class Together(fl.TextDataset):
        def read_many(self, indices: Any) -> Any:
            if 2 in indices:
                raise ValueError("not these")
            return super().read_many(indices)

    tokenizer: Any = lambda text: [1, *map(ord, text)]
    if together:
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 1}, unk_token="?"))
    data = Together(lines, tokenizer, 4)
    loader = fl.DataLoader(data, 2, num_workers=0, on_error="skip")
    rows = [row for batch in loader for row in batch]
    lost = [2, 3] if together else [2]  # one after the other, a function's text 3 can be read
    assert [error.index for error in loader.errors] == lost
    assert len(rows) == len(data) - len(lost)
    assert together or all(row[0] == 1 for row in rows)
    with pytest.raises(ValueError, match="not these"):
        list(fl.DataLoader(data, 2, num_workers=0))


def test_the_index_takes_four_bytes_a_line(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "x\n" * 100_000)
    source = _native.LineFile(os.fsencode(file), "lines", ",", 2, lambda _: None)
    assert len(source) == 100_000
    assert source.index_bytes <= 4 * 100_100


@pytest.mark.parametrize("split", ["lines", "filled", "records"])
def test_indexing_tells_how_far_it_is_and_can_be_ended(tmp_path: Path, split: str) -> None:
    path = tmp_path / "large.txt"
    path.write_bytes((b"some words, and some more" * 41 + b"\n") * (100 << 10))
    told: list[int] = []
    lines = _native.LineFile(os.fsencode(path), split, ",", 2, told.append)
    assert len(lines) == 100 << 10
    assert told
    assert told == sorted(told)
    assert told[-1] <= path.stat().st_size

    def end(done: int) -> None:
        raise KeyboardInterrupt(done)

    with pytest.raises(KeyboardInterrupt):
        _native.LineFile(os.fsencode(path), split, ",", 2, end)


@pytest.mark.parametrize("column", [" label", "Label"])
def test_a_column_that_is_nearly_that_of_the_labels_is_pointed_out(tmp_path: Path, column: str) -> None:
    path = write(tmp_path / "a.csv", f"text,{column}\na,1\nb,2\n".encode())
    with pytest.warns(
        UserWarning, match=f"no labels, but it has a column '{column}'; give label_field='{column}'"
    ):
        assert fl.TextDataset(path, max_length=1)[0].tolist() == [ord("a")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fl.TextDataset(path, label_field=column)[1][1] == 2
        assert len(fl.TextDataset(path, label_field=None)) == 2


def test_labels_that_begin_after_the_first_record_are_not_left_out_silently(tmp_path: Path) -> None:
    lines = ['{"text": "a"}', '{"text": "b", "label": 1}']
    path = write(tmp_path / "a.jsonl", "\n".join(lines))
    texts = fl.TextDataset(path, max_length=1)
    with pytest.raises(ValueError, match=r"a.jsonl:2 has a field 'label', which the first .* label_field=None"):
        texts[1]
    unlabelled = fl.TextDataset(path, max_length=1, label_field=None)
    assert [unlabelled[index].tolist() for index in range(2)] == [[ord("a")], [ord("b")]]
