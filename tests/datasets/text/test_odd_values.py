"""Odd tables, against Python's csv module; JSON that is not plain, and labels that int64 does not hold."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import foreload as fl
from tests.datasets.text.conftest import code_points, write

# Odd tables, against Python's csv module.


def table_of(content: bytes, delimiter: str = ",") -> list[list[str]]:
    """The rows that Python's csv module reads, without the empty ones."""
    limit = csv.field_size_limit(1 << 30)
    try:
        text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")
        return [row for row in csv.reader(text, delimiter=delimiter) if row]
    finally:
        csv.field_size_limit(limit)


def check_table(file: Path, content: bytes, delimiter: str = ",") -> None:
    rows = table_of(content, delimiter)
    write(file, content)
    if not rows:
        assert len(fl.TextDataset(file, text_field=0, label_field=None)) == 0
        return
    for column in range(max(map(len, rows))):
        if column < len(rows[0]):
            texts = fl.TextDataset(file, max_length=4, text_field=column, label_field=None)
            assert len(texts) == len(rows)
            read = texts.entries.read(range(len(rows)))
            for given, row in zip(read, rows, strict=True):
                assert given == row[column] if column < len(row) else isinstance(given, ValueError)


@given(
    st.lists(st.sampled_from(['"', ",", "\r", "\n", "\r\n", " ", "a", '""', "é", "\0", "\t"]), max_size=14),
    st.booleans(),
    st.sampled_from([",", "\t"]),
)
@settings(max_examples=4 * settings.default.max_examples)
def test_any_table_is_read_as_csv_reads_it(
    tmp_path_factory: Any, parts: list[str], mark: bool, delimiter: str
) -> None:
    file = tmp_path_factory.mktemp("odd") / ("a.csv" if delimiter == "," else "a.tsv")
    check_table(file, (("\ufeff" if mark else "") + "".join(parts)).encode(), delimiter)


@pytest.mark.parametrize(
    "content",
    [
        b"a,b\rc,d\re,f",
        b"a,b\rc,d\r\ne,f\nx,y\r",
        b"a,b\r\r\n\n\rc,d\r\r\r",
        b'a,b\n"open,to the end\nof the file\n',
        b'a,b\n"open to the end\r\n\r\n',
        b'a,b\nlast,"',
        b'a,b\nlast,""',
        b'a,b\nlast,"""',
        b'a,b\nin the "middle" of,5" disk\n',
        b'a,b\n"closed"and more,"twice" "quoted"\n',
        b'a,b\n"doubled "" quote","""\n"""\n',
        b'a,b\n"one\rtwo\nthree\r\nfour\n\rfive",x\r\n',
        b"a,b\nnul\0byte,\0\n\0\n",
        b"a,b,,\nc,d,,\n",
        b"\r\n\r\n\ra,b\r\n",
        b'\xef\xbb\xbf"a",b\rc,d\r',
        b'a,b\n"' + b"long," * 60_000 + b'",x\n' + b"y" * 300_000 + b",z",
        b' "a",b \n ,"b" ""\n',
        b'"\r"\n"\n"\r"\r\n"\r\n',
    ],
)
def test_odd_tables_are_read_as_csv_reads_them(tmp_path: Path, content: bytes) -> None:
    check_table(tmp_path / "a.csv", content)
    check_table(tmp_path / "a.tsv", content.replace(b",", b"\t"), "\t")


def test_blocks_do_not_matter_to_tables(tmp_path: Path) -> None:
    for shift in range(4):
        rows = b"".join(b'"%d\r\n","x"\r' % i for i in range(30_000))
        check_table(tmp_path / f"{shift}.csv", b"a" * shift + b",b\r" + rows)


def test_errors_count_the_lines_that_python_counts(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", b'text,label\r"a\rb",1\r\nshort\rc,2')
    with pytest.raises(ValueError, match=r"a\.csv:4: the record has 1 fields, and field 2"):
        fl.TextDataset(file)


def test_columns_of_one_name_must_be_told_apart(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "text,label,text\na,1,b\n")
    with pytest.raises(ValueError, match=r"text_field: there are several columns 'text' in .*a\.csv.*: 0, 2"):
        fl.TextDataset(file)
    assert fl.TextDataset(file, text_field=2, label_field=None).read(1) == "b"


# Numbers that int64 does not hold, and JSON that is not plain.


BEYOND = ["9223372036854775808", "-9223372036854775809", "18446744073709551616", "1" + "0" * 400]


@pytest.mark.parametrize("number", [*BEYOND, "+" + "9" * 5000])
def test_labels_of_tables_beyond_int64_are_refused(tmp_path: Path, number: str) -> None:
    file = write(tmp_path / "a.csv", f"text,label\na,1\nb,{number}\n")
    with pytest.raises(ValueError, match=r"a\.csv:3: 'label' does not fit into int64"):
        fl.TextDataset(file)


@pytest.mark.parametrize("number", BEYOND)
def test_labels_of_json_lines_beyond_int64_are_refused(tmp_path: Path, number: str) -> None:
    file = write(tmp_path / "a.jsonl", f'{{"text": "a", "label": 1}}\n\n{{"text": "b", "label": {number}}}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl:3: 'label' does not fit into int64"):
        fl.TextDataset(file)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_labels_are_never_rounded(tmp_path: Path, name: str) -> None:
    def write_labels(labels: list[str]) -> Path:
        if name == "a.csv":
            return write(tmp_path / name, "text,label\n" + "".join(f"a,{label}\n" for label in labels))
        return write(tmp_path / name, "".join(f'{{"text": "a", "label": {label}}}\n' for label in labels))

    ends = [str(-(1 << 63)), str((1 << 63) - 1), "0"]
    texts = fl.TextDataset(write_labels(ends))
    assert texts.targets == list(map(int, ends))
    (_, labels), *_ = fl.DataLoader(texts, batch_size=3)
    assert labels.tolist() == list(map(int, ends))
    assert fl.TextDataset(write_labels(["9007199254740992", "0.5"])).targets == [2.0**53, 0.5]
    with pytest.raises(ValueError, match=rf"{name}:[23]: 'label' does not fit into float64.*9007199254740993"):
        fl.TextDataset(write_labels(["0.5", "9007199254740993"]))


def test_json_is_what_json_reads(tmp_path: Path) -> None:
    lines = [
        '{"text": "a", "text": "twice", "label": 1, "meta": {"a": [1, {"b": null}]}}',
        '{"text": "\\ud800 alone", "label": NaN}',
        '{"label": -Infinity, "text": "\\u0000", "more": [[[[]]]]}',
        '{"label": 1e400, "text": "x", "huge": 123456789012345678901234567890}',
    ]
    texts = fl.TextDataset(write(tmp_path / "a.jsonl", "\n".join(lines)), max_length=7)
    records = [json.loads(line) for line in lines]
    assert [texts.read(i) for i in range(4)] == [record["text"] for record in records]
    assert str(texts.targets) == str([float(record["label"]) for record in records])
    assert [x.tolist() for x, _ in texts] == [code_points(record["text"], 7) for record in records]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"text": "b", "more": ' + "[" * 100_000 + "]" * 100_000 + "}", r"a\.jsonl:2 is JSON that Python cannot"),
        ('{"text": "b", "more": ' + '{"a":' * 100_000 + "1" + "}" * 100_001, r"a\.jsonl:2 is JSON that Python"),
        ('{"text": "b", "more": ' + "9" * 5000 + "}", r"a\.jsonl:2 is JSON that Python cannot read: .*digits"),
        ('{"text": ' + "[" * 500 + "]" * 500 + "}", r"a\.jsonl:2: 'text' must be a string, got \[\[\["),
        ('{"text": {"text": "b"}}', r"a\.jsonl:2: 'text' must be a string, got \{'text': 'b'\}"),
        ("[" * 500 + "]" * 500, r"a\.jsonl:2 must be a JSON object, got \[\[\["),
        ('{"text": NaN}', r"a\.jsonl:2: 'text' must be a string, got nan"),
        ('{"text": "b"} {"text": "c"}', r"a\.jsonl:2 is not JSON: Extra data"),
        ('{"text": "b\x00"}', r"a\.jsonl:2 is not JSON: Invalid control character"),
        ('\ufeff{"text": "b"}', r"a\.jsonl:2 is not JSON"),
    ],
)
def test_json_that_cannot_be_read_costs_only_its_own_sample(tmp_path: Path, line: str, words: str) -> None:
    file = write(tmp_path / "a.jsonl", f'{{"text": "a"}}\n{line}\n{{"text": "c"}}\n')
    texts = fl.TextDataset(file, max_length=1)
    with pytest.raises(ValueError, match=words):
        texts[1]
    loader = fl.DataLoader(texts, batch_size=3, on_error="skip")
    assert [batch.tolist() for batch in loader] == [[[ord("a")], [ord("c")]]]
    assert "a.jsonl:2" in loader.errors[0].error


@pytest.mark.parametrize("label", ["[1, 2]", '{"name": "x"}', "null", "[" * 300 + "]" * 300])
def test_nested_labels_are_refused(tmp_path: Path, label: str) -> None:
    file = write(tmp_path / "a.jsonl", f'{{"text": "a", "label": 1}}\n{{"text": "b", "label": {label}}}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl:2: 'label' must be a name or a number, got"):
        fl.TextDataset(file)


@pytest.mark.parametrize(
    "ids", [[[1, 2], [3]], torch.ones(2, dtype=torch.int64, device="meta")], ids=["lists", "meta"]
)
def test_what_no_array_is_made_of_is_no_tokens(ids: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("meow\n")
    with pytest.raises(
        TypeError, match="tokenizer must give a list of ints, or a tensor or array of one dimension"
    ):
        fl.TextDataset(tmp_path / "a.txt", lambda text: ids)[0]
