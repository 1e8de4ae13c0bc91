"""Texts that change or cannot be read, wrong arguments and limits are errors that name them."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import tokenizers
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from tests.datasets.text.conftest import LINES, code_points, words, write
from tests.programs import python


@pytest.mark.parametrize("change", ["removed", "replaced", "shorter", "longer", "same size"])
def test_a_file_that_changes_is_an_error_that_names_it(lines: Path, change: str) -> None:
    texts = fl.TextDataset(lines, max_length=6)
    copy = pickle.dumps(texts)
    texts[0]
    content = lines.read_bytes()
    if change == "removed":
        lines.unlink()
    elif change == "replaced":
        write(lines.with_suffix(".new"), content[::-1])
        os.utime(lines.with_suffix(".new"), ns=(1, 1))
        lines.with_suffix(".new").rename(lines)
    else:
        lines.write_bytes(
            {"shorter": content[:9], "longer": content + b"more", "same size": content[::-1]}[change]
        )
        os.utime(lines, ns=(1, 1))
    for dataset in (texts, pickle.loads(copy)):
        with pytest.raises(OSError, match="sample 1") as caught:
            dataset[1]
        assert caught.value.filename == str(lines)
        with pytest.raises(OSError):
            list(fl.DataLoader(dataset, batch_size=2))


def test_what_is_not_utf8_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", b"fine\nnot \xff so\nlong enough\xff\n")
    texts = fl.TextDataset(file, max_length=6)
    for load in (lambda: texts[1], lambda: list(TorchDataLoader(texts, batch_size=3)), lambda: texts.read(1)):
        with pytest.raises(UnicodeDecodeError, match=r"byte 0xff in position 4.*a\.txt:2"):
            load()
    assert texts[2].tolist() == code_points("long enough", 6)
    for tokenizer in (None, words):
        data = fl.TextDataset(file, tokenizer, 5, padding=False)
        loader = fl.DataLoader(data, batch_size=2, on_error="skip")
        (_, lengths), *_ = loader
        assert lengths.tolist() == [4 if tokenizer is None else 1]
        assert "a.txt:2" in str(loader.errors[0])
        assert loader.errors[0].source == str(file)
        assert loader.errors[0].index == 1
    replaced = fl.DataLoader(fl.TextDataset(file, max_length=5), batch_size=3, on_error="replace")
    assert [row.tolist() for row in next(iter(replaced))] == [
        code_points("fine", 5),
        code_points("long ", 5),
        code_points("long ", 5),
    ]


def test_the_file_of_a_text_is_named_whatever_its_tokenizer_raises(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        write(tmp_path / name / "1.txt", b"some")
    failure = FileNotFoundError(2, "No such file", "vocab.txt")

    def missing(text: str) -> list[int]:
        raise failure

    loader = fl.DataLoader(fl.TextDataset(tmp_path, missing), batch_size=1, num_workers=0, on_error="skip")
    assert list(loader) == []
    assert [error.source for error in loader.errors] == [str(tmp_path / name / "1.txt") for name in "ab"]


@pytest.mark.parametrize(
    ("name", "content", "error", "words"),
    [
        ("a.jsonl", '{"text": "a"}\n\nnot json', ValueError, r"a\.jsonl:3 is not JSON"),
        ("a.jsonl", '{"text": "a"}\n[1]\n', ValueError, r"a\.jsonl:2 must be a JSON object"),
        ("a.jsonl", '{"text": "a"}\n{"txt": "b"}\n', ValueError, r"a\.jsonl:2 has no field 'text'.*'txt'"),
        ("a.jsonl", '{"text": "a"}\n{"text": 5}\n', ValueError, r"a\.jsonl:2: 'text' must be a string, got 5"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n', UnicodeDecodeError, r"a\.jsonl:2"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}\n', ValueError, r"a\.jsonl:2 has no field 'label'"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": "x"}', ValueError, r"jsonl:2, 'x'"),
        (
            "a.jsonl",
            '{"text": "a", "label": [1]}\n',
            ValueError,
            r"a\.jsonl:1: 'label' must be a name or a number",
        ),
        ("a.jsonl", '{"txt": "a"}\n', ValueError, r"a\.jsonl:1 has no field 'text'; its fields are 'txt'"),
        ("a.csv", "id,review\n1,x\n", ValueError, r"text_field: there is no column 'text'.*'id', 'review'"),
        ("a.csv", 'text,label\n"a\nb",1\nc\n', ValueError, r"a\.csv:4: the record has 1 fields, and field 2"),
        (
            "a.csv",
            "text,label\na,1\nhello, world,1\n",
            ValueError,
            r"a\.csv:3: the record has 3 fields, and the header 2; quote a field that has ',' in it",
        ),
        ("a.tsv", "id\ttext\n1\ta\tb\n", ValueError, r"a\.tsv:2: the record has 3 fields.* that has '\\t' in it"),
        ("a.csv", "text,label\na,\n", ValueError, r"a\.csv:2: 'label' must be a name or a number, got ''"),
        ("a.csv", "", ValueError, "is empty; the first line of a table"),
        ("a.txt.gz", b"\x1f\x8b", ValueError, "unpack it first"),
    ],
)
def test_wrong_files(tmp_path: Path, name: str, content: Any, error: type[Exception], words: str) -> None:
    file = write(tmp_path / name, content)
    with pytest.raises(error, match=words):
        list(fl.DataLoader(fl.TextDataset(file, max_length=3), batch_size=2))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"max_length": 0}, ValueError, "max_length must be 1 or more, got 0"),
        ({"max_length": 2.5}, TypeError, "max_length must be an int"),
        (
            {"max_length": 10**12},
            ValueError,
            "max_length=10{12}: one sample would take 8,000,000,000,000 bytes, more",
        ),
        ({"max_length": 10**30}, ValueError, "max_length=10{30}: one sample would take"),
        ({"padding": "longest"}, TypeError, "padding must be True or False"),
        ({"tokenizer": "bert-base-uncased"}, TypeError, "tokenizer must be None.*from_pretrained"),
        ({"tokenizer": tokenizers.Tokenizer}, TypeError, "an instance, got the class Tokenizer"),
        ({"target_transform": 5}, TypeError, "target_transform must be callable"),
        ({"data_path": "/nowhere/a.txt"}, FileNotFoundError, "/nowhere/a.txt"),
        ({"data_path": 5}, TypeError, "data_path must be a str or a Path"),
        ({"data_path": "/dev/null"}, OSError, "regular file"),
        ({"loading_mode": "quick"}, ValueError, "quick"),
    ],
)
def test_wrong_arguments(lines: Path, arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        fl.TextDataset(**{"data_path": lines, **arguments})


def test_wrong_folders_tokens_and_fields(tmp_path: Path, lines: Path, folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no \.txt file in"):
        fl.TextDataset(tmp_path / "empty")
    (folder / "none").mkdir()
    with pytest.raises(FileNotFoundError, match=r"class folder.*'none'"):
        fl.TextDataset(folder)
    for tokens in (["a"], [0.5], [[1]], None, 7, {"input_ids": [1]}):
        with pytest.raises(TypeError, match="tokenizer must give a list of ints"):
            fl.TextDataset(lines, lambda text, tokens=tokens: tokens)[0]
    table = write(tmp_path / "a.csv", "text,y\na,1\n")
    with pytest.raises(ValueError, match=r"label_field: there is no column 'z'.*'text', 'y'"):
        fl.TextDataset(table, label_field="z")
    with pytest.raises(ValueError, match="text_field: there is no column 2"):
        fl.TextDataset(table, text_field=2)
    with pytest.raises(TypeError, match="text_field must be a str for JSON lines"):
        fl.TextDataset(write(tmp_path / "a.jsonl", "{}"), text_field=0)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(lines: Path) -> None:
    lines.chmod(0)
    with pytest.raises(PermissionError) as caught:
        fl.TextDataset(lines)
    assert caught.value.filename == str(lines)


# Numbers that int64 does not hold, and JSON that is not plain.


@pytest.mark.parametrize(
    "ids",
    [
        [1 << 63],
        [1, (1 << 63), -1],
        (5, 1 << 64),
        [-(1 << 63) - 1],
        np.array([1, 1 << 63], np.uint64),
        torch.tensor([2**64 - 1], dtype=torch.uint64),
    ],
)
def test_tokens_beyond_int64_are_refused(lines: Path, ids: Any) -> None:
    data = fl.TextDataset(lines, lambda text: ids if "x" in text else [1], 3)
    whole = max(np.asarray(ids).tolist() if isinstance(ids, torch.Tensor) else map(int, ids), key=abs)
    for load in (
        lambda: data[3],
        lambda: list(TorchDataLoader(data, batch_size=6)),
        lambda: list(fl.DataLoader(data, batch_size=6)),
        lambda: list(fl.DataLoader(data, batch_size=6, cache="1MiB")),
    ):
        with pytest.raises(ValueError, match=f"the token {whole} does not fit into int64") as caught:
            load()
        assert f"{lines}:4" in "".join(caught.value.__notes__)
    loader = fl.DataLoader(data, batch_size=6, on_error="skip")
    assert [batch[:, 0].tolist() for batch in loader] == [[1] * 5]


@pytest.mark.parametrize("dtype", ["u1", "u2", ">u2", "u4", ">u4", "u8", ">u8", "i1", "i2", "i8"])
def test_tokens_of_any_width_are_read_right(lines: Path, dtype: str) -> None:
    most = min(np.iinfo(dtype).max, np.iinfo(np.int64).max)
    data = fl.TextDataset(lines, lambda text: np.array([most, len(text)], dtype), 3)
    (batch,) = fl.DataLoader(data, batch_size=6)
    assert batch.tolist() == [[most, len(text), 0] for text in LINES]


# Limits.


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_files_without_samples_are_empty_datasets(tmp_path: Path, name: str) -> None:
    for content in (b"", b"\xef\xbb\xbf", *([b"\n\r\n\n"] if name == "a.jsonl" else [])):
        data = fl.TextDataset(write(tmp_path / name, content))
        assert len(data) == 0
        assert list(fl.DataLoader(data)) == []
    if name == "a.txt":
        assert len(fl.TextDataset(write(tmp_path / name, b"\n\r\n\n"))) == 3


def test_more_files_than_the_process_may_open(tmp_path: Path) -> None:
    for number in range(100):
        write(tmp_path / f"{number}.jsonl", f'{{"text": "{number}"}}\n')
    script = """
import resource, sys, pickle
import foreload as fl
from torch.utils.data import ConcatDataset
"".encode("utf-32-le")
fl.TextDataset(sys.argv[1] + "/0.jsonl")[0]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
data = ConcatDataset([fl.TextDataset(f"{sys.argv[1]}/{number}.jsonl", max_length=2) for number in range(100)])
for _ in range(2):
    print([int("".join(map(chr, filter(None, data[i].tolist())))) for i in range(100)] == list(range(100)))
data = pickle.loads(pickle.dumps(data))
print(sum(len(batch) for batch in fl.DataLoader(data, batch_size=10, num_workers=0)))
"""
    done = python("-c", script, str(tmp_path))
    assert done.stdout.split() == ["True", "True", "100"]


@pytest.mark.slow
def test_a_text_that_memory_does_not_hold_is_named(tmp_path: Path) -> None:
    file = tmp_path / "sparse.txt"
    with file.open("wb") as out:
        out.truncate(3 << 30)  # takes no room on the disk
        out.seek(0, os.SEEK_END)
        out.write(b"\nend\n")
    script = """
import resource, sys
import foreload as fl
data = fl.TextDataset(sys.argv[1], lambda text: [len(text)], 4)
print(fl.TextDataset(sys.argv[1], max_length=4)[0].tolist(), data[1].tolist())
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), -1))
try:
    data[0]
except MemoryError as error:
    print(error)
"""
    done = python("-c", script, str(file))
    assert done.stdout.splitlines() == ["[0, 0, 0, 0] [3, 0, 0, 0]", f"{file}:1: there is no memory for the text"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_file_that_may_not_be_read_any_more(lines: Path) -> None:
    script = """
import os, pickle, sys
import foreload as fl
copy = pickle.dumps(fl.TextDataset(sys.argv[1]))
os.chmod(sys.argv[1], 0)
os.setgroups([])
os.setuid(12345)
try:
    pickle.loads(copy)[0]
except OSError as error:
    print(type(error).__name__, error.filename)
"""
    done = python("-c", script, str(lines))
    assert done.stdout.split() == ["PermissionError", str(lines)]


def test_files_of_a_folder_may_change_and_a_file_of_lines_may_not(tmp_path: Path) -> None:
    (tmp_path / "texts" / "x").mkdir(parents=True)
    for place in (tmp_path / "texts" / "x" / "a.txt", tmp_path / "lines.txt"):
        place.write_text("before\n")
    folder, lines = fl.TextDataset(tmp_path / "texts", max_length=6), fl.TextDataset(tmp_path / "lines.txt")
    for place in (tmp_path / "texts" / "x" / "a.txt", tmp_path / "lines.txt"):
        place.write_text("afterwards\n")
    assert bytes(folder[0][0].tolist()) == b"afterw"
    with pytest.raises(OSError, match="has changed since it was indexed"):
        lines[0]


def test_a_file_of_which_the_system_gives_no_size_is_refused() -> None:
    with pytest.raises(
        ValueError, match="data_path: the system gives no size for '/proc/self/status'; copy it to"
    ):
        fl.TextDataset("/proc/self/status")


# What waits for ever, and what memory does not hold.


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no FIFOs")
def test_a_fifo_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    script = """
import os
import foreload as fl
for name in ("a.txt", "a.csv", "a.jsonl"):
    os.mkfifo(name)
    for make in (fl.TextDataset, fl.MemoryEfficientDataset, fl.DataLoaderFactory.create_text_dataloader):
        try:
            make(name)
        except OSError as error:
            print("not a regular file but a FIFO" in error.strerror and error.filename.endswith(name))
"""
    done = python("-c", script, folder=tmp_path, timeout=120)
    assert done.stdout.split() == ["True"] * 9


@pytest.mark.parametrize("tokenizer", [None, words])
@pytest.mark.parametrize("padding", [False, True])
def test_ids_that_memory_does_not_hold_name_max_length(
    lines: Path, tokenizer: Any, padding: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(size: int) -> NoReturn:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    data = fl.TextDataset(lines, tokenizer, 1000, padding=padding)
    monkeypatch.setattr("foreload.batch.buffers._allocate", full)
    with pytest.raises(MemoryError, match="max_length: there is no memory for a text of 1000 ids; give a smaller"):
        data[0]
    with pytest.raises(MemoryError, match=r"max_length: there is no memory for 6 texts of 1000 ids; .*batches"):
        list(fl.DataLoader(data, batch_size=6, num_workers=0))
