"""Texts in files, against Python's own file, csv and json modules, and against stock torch."""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Subset

import foreload as fl
from foreload import _native
from foreload.datasets.text.pieces import Pieces
from foreload.datasets.text.tokens import IDS, encoder_of
from foreload.options import LoadingMode
from tests.programs import python

LINES = ["hello", "", "Grüße, 世界 😀", "x" * 40, " tab\tand space ", "end"]


def code_points(text: str, length: int) -> list[int]:
    return [ord(c) for c in text[:length]] + [0] * (length - len(text))


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    file = tmp_path / "lines.txt"
    file.write_bytes("\n".join(LINES).encode())
    return file


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def flat(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.dtype, batch.tolist()
    if isinstance(batch, dict):
        return {name: flat(value) for name, value in batch.items()}
    return [flat(value) for value in batch] if isinstance(batch, (list, tuple)) else batch


class Reference(torch.utils.data.Dataset[Any]):
    """The same samples, from plain Python."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "reviews"
    for name, files in {"pos": {"b": "fine\n", "a": "good"}, "neg": {"c": "\ufeffbad\nvery"}}.items():
        for file, text in files.items():
            write(root / name / f"{file}.txt", text)
        write(root / name / "ignored.md", "no")
    return root


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


LOADERS: list[tuple[Any, dict[str, Any]]] = [
    (TorchDataLoader, {}),
    (TorchDataLoader, {"num_workers": 2}),
    (fl.DataLoader, {}),
    (fl.DataLoader, {"num_workers": 0}),
    (fl.DataLoader, {"num_workers": 2, "workers": "processes"}),
    (fl.DataLoader, {"cache": "1MiB"}),
    (fl.DataLoader, {"num_workers": 2, "transform": lambda sample: sample}),
]


def bpe() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=60, special_tokens=["[UNK]", "[PAD]"], show_progress=False)
    tokenizer.train_from_iterator(LINES * 3, trainer)
    return tokenizer


def words(text: str) -> torch.Tensor:
    return torch.tensor([len(word) for word in text.split()], dtype=torch.int32)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["characters", "tokenizers", "callable"])
@pytest.mark.parametrize("labelled", [False, True])
def test_batches_are_those_of_stock_torch(tmp_path: Path, kind: str, labelled: bool) -> None:
    random.seed(1)
    texts = ["".join(random.choices("ab cé", k=random.randrange(14))) for _ in range(150)]
    file = tmp_path / "a.csv"
    with file.open("w", newline="") as out:
        csv.writer(out).writerows([("text", "label" if labelled else "other"), *((t, len(t) % 3) for t in texts)])
    tokenizer: Any = {"characters": None, "tokenizers": bpe(), "callable": words}[kind]
    pad = tokenizer.token_to_id("[PAD]") if kind == "tokenizers" else 0
    encode: Callable[[str], list[int]] = {
        "characters": lambda text: [ord(c) for c in text],
        "tokenizers": lambda text: tokenizer.encode(text).ids,
        "callable": lambda text: words(text).tolist(),
    }[kind]
    ids = [torch.tensor(encode(text)[:8], dtype=torch.int64) for text in texts]
    labels = [len(text) % 3 for text in texts]

    def samples(values: list[torch.Tensor]) -> list[Any]:
        return list(zip(values, labels, strict=True)) if labelled else values

    whole = [torch.cat([row, torch.full((8 - len(row),), pad)]) for row in ids]
    data = fl.TextDataset(file, tokenizer, 8)
    assert flat([data[i] for i in range(len(data))]) == flat(samples(whole))

    def collate(batch: list[Any]) -> Any:
        rows = [sample[0] if labelled else sample for sample in batch]
        parts = (
            torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad),
            torch.tensor([len(row) for row in rows]),
        )
        return (*parts, torch.tensor([sample[1] for sample in batch])) if labelled else parts

    free = fl.TextDataset(file, tokenizer, 8, padding=False)
    assert flat([free[i] for i in range(len(free))]) == flat(samples(ids))
    arguments: dict[str, Any] = {"batch_size": 70, "shuffle": True}
    for dataset, values, put in ((data, whole, None), (free, ids, collate)):
        torch.manual_seed(3)
        expected = flat(list(TorchDataLoader(Reference(samples(values)), collate_fn=put, **arguments)))
        for loader, more in LOADERS:
            torch.manual_seed(3)
            own = {"collate_fn": free.collate} if put is not None and loader is TorchDataLoader else {}
            assert flat(list(loader(dataset, **arguments, **own, **more))) == expected, (loader, more)


def fast_tokenizer(**options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe(), pad_token="[PAD]", unk_token="[UNK]", **options
    )


@pytest.mark.slow
@pytest.mark.parametrize("side", ["right", "left"])
def test_tokenizers_of_transformers_give_what_they_pad_themselves(lines: Path, side: str) -> None:
    tokenizer = fast_tokenizer(padding_side=side)
    arguments = {"truncation": True, "max_length": 7, "return_tensors": "pt"}
    expected = dict(tokenizer(LINES, padding="max_length", **arguments))
    data = fl.TextDataset(lines, tokenizer, 7)
    assert flat(data[3]) == flat({name: rows[3] for name, rows in expected.items()})
    for loader in (TorchDataLoader, fl.DataLoader):
        (batch,) = loader(data, batch_size=6)
        assert flat(batch) == flat(expected)
    free = fl.TextDataset(lines, tokenizer, 7, padding=False)
    assert free[1]["input_ids"].shape == (0,)
    (batch,) = fl.DataLoader(Subset(free, [0, 1]), batch_size=2)
    (stock,) = TorchDataLoader(free, sampler=[0, 1], batch_size=2, collate_fn=free.collate)
    assert flat(batch) == flat(stock) == flat(dict(tokenizer(LINES[:2], padding=True, **arguments)))
    labelled = write(lines.parent / "a.jsonl", '{"text": "hello", "label": "x"}\n')
    ids, target = next(iter(fl.DataLoader(fl.TextDataset(labelled, tokenizer, 7))))
    assert set(ids) == set(expected)
    assert target.tolist() == [0]


def test_a_tokenizers_own_settings_are_left_alone(lines: Path) -> None:
    tokenizer = bpe()
    plain = [tokenizer.encode(line).ids for line in LINES]
    tokenizer.enable_padding(pad_id=5, pad_token="[PAD]")
    tokenizer.enable_truncation(4)
    before = tokenizer.to_str()
    free = fl.TextDataset(lines, tokenizer, 3, padding=False)
    ids, lengths = next(iter(fl.DataLoader(free, batch_size=6)))
    assert lengths.tolist() == [min(3, len(row)) for row in plain]
    assert ids[1].tolist() == [5] * 3
    assert tokenizer.to_str() == before


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


def fails_on_x(text: str) -> list[int]:
    if "x" in text:
        raise KeyError("no token for x")
    return [len(text)]


def test_a_tokenizer_that_fails_costs_only_its_own_sample(lines: Path) -> None:
    data = fl.TextDataset(lines, fails_on_x, 2)
    with pytest.raises(KeyError, match="no token for x") as caught:
        list(fl.DataLoader(data, batch_size=6))
    assert "sample 3" in "".join(caught.value.__notes__)
    assert f"{lines}:4" in "".join(caught.value.__notes__)
    loader = fl.DataLoader(data, batch_size=6, on_error="skip")
    assert [row[0] for batch in loader for row in batch.tolist()] == [len(t) for t in LINES if "x" not in t]
    assert [error.index for error in loader.errors] == [3]


@pytest.mark.parametrize(
    ("name", "content", "error", "words"),
    [
        ("a.jsonl", '{"text": "a"}\n\nnot json', ValueError, r"a\.jsonl:3 is not JSON"),
        ("a.jsonl", '{"text": "a"}\n[1]\n', ValueError, r"a\.jsonl:2 must be a JSON object"),
        ("a.jsonl", '{"text": "a"}\n{"txt": "b"}\n', ValueError, r"a\.jsonl:2 has no field 'text'.*'txt'"),
        ("a.jsonl", '{"text": "a"}\n{"text": 5}\n', ValueError, r"a\.jsonl:2: 'text' is no text but 5"),
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
        ("a.csv", "text,label\na,\n", ValueError, r"a\.csv:2: 'label' must be a name or a number, got ''"),
        ("a.csv", "", ValueError, r"text_field: there is no column 'text'"),
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


def test_texts_that_a_subclass_cannot_read_together_are_none(lines: Path) -> None:
    class Together(fl.TextDataset):
        def read_many(self, indices: Any) -> Any:
            if 2 in indices:
                raise ValueError("not these")
            return super().read_many(indices)

    data = Together(lines, lambda text: [1, *map(ord, text)], 4)
    loader = fl.DataLoader(data, 2, num_workers=0, on_error="skip")
    rows = [row for batch in loader for row in batch]
    assert [error.index for error in loader.errors] == [2, 3]
    assert len(rows) == len(data) - 2
    assert all(row[0] == 1 for row in rows)
    with pytest.raises(ValueError, match="not these"):
        list(fl.DataLoader(data, 2, num_workers=0))


def test_the_index_takes_four_bytes_a_line(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "x\n" * 100_000)
    source = _native.LineFile(os.fsencode(file), "lines", ",", 2, lambda _: None)
    assert len(source) == 100_000
    assert source.index_bytes <= 4 * 100_100


@pytest.fixture(scope="module")
def byte_level() -> dict[bool, tokenizers.Tokenizer]:
    """By whether they put a space in front."""
    made = {}
    for prefix in (False, True):
        tokenizer = made[prefix] = tokenizers.ByteLevelBPETokenizer(add_prefix_space=prefix)
        tokenizer.train_from_iterator(["it's 42 o'clock, they'll say  so!", *LINES], 330, special_tokens=["<s>"])
    return made


@pytest.mark.slow
@given(
    st.lists(
        st.one_of(
            st.text(alphabet="a's tT'lve rdm019!,_\t\v\x1c\x00\x7f ", max_size=30),
            st.text(max_size=10),
            st.sampled_from(["it's<s>so", "they'll  say", "", " ", "  42", "a" * 80]),
        ),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_pieces_give_what_the_tokenizer_gives(byte_level: Any, texts: list[str], prefix: bool) -> None:
    tokenizer = byte_level[prefix]
    encoder = encoder_of(tokenizer, 512)
    assert encoder._pieces is not None
    expected = [tokenizer.encode(text).ids for text in texts]
    for _ in range(2):
        assert [list(row) for row in encoder.encode(texts)[IDS]] == expected
    again = pickle.loads(pickle.dumps(encoder))
    assert [list(row) for row in again.encode(texts)[IDS]] == expected


def test_pieces_are_only_for_tokenizers_that_see_a_piece_at_a_time(byte_level: Any) -> None:
    config = json.loads(byte_level[False].to_str())
    for change in (
        {"normalizer": {"type": "Lowercase"}},
        {"model": {**config["model"], "dropout": 0.5}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": None},
        {"truncation": {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}},
        {
            "post_processor": {
                "type": "BertProcessing",
                "sep": ["<s>", 0],
                "cls": ["<s>", 0],
            }
        },
    ):
        assert Pieces.of(tokenizers.Tokenizer.from_str(json.dumps({**config, **change}))) is None
    assert Pieces.of(tokenizers.Tokenizer.from_str(json.dumps(config))) is not None


def test_pieces_that_find_no_room_are_left_to_the_tokenizer(
    byte_level: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foreload.datasets.text.pieces._ROOM", 8)
    tokenizer = byte_level[False]
    encoder = encoder_of(tokenizer, 512)
    texts = [f"a{i} b{i} c c" for i in range(30)]
    for _ in range(3):
        assert [list(row) for row in encoder.encode(texts)[IDS]] == [tokenizer.encode(text).ids for text in texts]


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
@settings(max_examples=400, deadline=None)
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
        ('{"text": ' + "[" * 500 + "]" * 500 + "}", r"a\.jsonl:2: 'text' is no text but \[\[\["),
        ('{"text": {"text": "b"}}', r"a\.jsonl:2: 'text' is no text but \{'text': 'b'\}"),
        ("[" * 500 + "]" * 500, r"a\.jsonl:2 must be a JSON object, got \[\[\["),
        ('{"text": NaN}', r"a\.jsonl:2: 'text' is no text but nan"),
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


# What a tokenizer is set to.


def special() -> tokenizers.Tokenizer:
    """Words as ids, between a [CLS] (2) and a [SEP] (3)."""
    words = {"[UNK]": 0, "[PAD]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4, "b": 5, "c": 6, "d": 7}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    return write(tmp_path / "letters.txt", "a b c d\na\n\n")


@pytest.mark.parametrize("most", [2, 3, 4, 6, 9])
@pytest.mark.parametrize("pad_side", ["left", "right"])
@pytest.mark.parametrize("cut_side", ["left", "right"])
@pytest.mark.parametrize("own_most", [None, 3, 20])
def test_a_tokenizers_own_sides_and_special_tokens_are_kept(
    letters: Path, most: int, pad_side: str, cut_side: str, own_most: int | None
) -> None:
    tokenizer, reference = special(), special()
    tokenizer.enable_padding(direction=pad_side, pad_id=1, pad_token="[PAD]")
    if own_most is not None:
        tokenizer.enable_truncation(own_most, direction=cut_side)
    reference.enable_truncation(min(most, own_most or most), direction=cut_side if own_most else "right")
    before = tokenizer.to_str()
    rows = [encoding.ids for encoding in reference.encode_batch(["a b c d", "a", ""])]
    reference.enable_padding(direction=pad_side, pad_id=1, pad_token="[PAD]", length=most)
    padded = [encoding.ids for encoding in reference.encode_batch(["a b c d", "a", ""])]
    data = fl.TextDataset(letters, tokenizer, most)
    free = fl.TextDataset(letters, tokenizer, most, padding=False)
    for _ in range(2):
        assert [x.tolist() for x in data] == padded
        assert next(iter(fl.DataLoader(data, batch_size=3))).tolist() == padded
        assert [x.tolist() for x in free] == rows
        data, free = pickle.loads(pickle.dumps((data, free)))
    width = max(map(len, rows))
    ids, lengths = next(iter(fl.DataLoader(free, batch_size=3)))
    assert lengths.tolist() == list(map(len, rows))
    assert ids.tolist() == [row[-width:] if pad_side == "left" else row[:width] for row in padded]
    assert tokenizer.to_str() == before


def test_a_tokenizer_that_cannot_be_cut_is_refused(letters: Path) -> None:
    with pytest.raises(ValueError, match="max_length must be 2 or more, got 1: the tokenizer adds 2 special"):
        fl.TextDataset(letters, special(), 1)

    class Splitter:
        def pre_tokenize(self, text: Any) -> None:
            text.split(lambda _, part: part.split(" ", "removed"))

    written = special()
    written.pre_tokenizer = tokenizers.pre_tokenizers.PreTokenizer.custom(Splitter())
    with pytest.raises(ValueError, match=r"tokenizer: call its enable_truncation\(max_length=4\).*be copied"):
        fl.TextDataset(letters, written, 4)
    written.enable_truncation(4)
    assert fl.TextDataset(letters, written, 4)[0].tolist() == [2, 4, 5, 3]


def test_text_that_a_tokenizer_cannot_take_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", '{"text": "a"}\n{"text": "\\ud800"}\n')
    for tokenizer in (special(), bpe()):
        data = fl.TextDataset(file, tokenizer, 4)
        with pytest.raises(Exception, match=r"TextEncodeInput|surrogates") as caught:
            data[1]
        assert f"{file}:2" in "".join(caught.value.__notes__)
        loader = fl.DataLoader(data, batch_size=2, on_error="skip")
        assert [len(batch) for batch in loader] == [1]


def test_columns_are_padded_with_what_they_are_padded_with() -> None:
    collate = fl.datasets.text.tokens.PaddingCollate(pad=9, left=True, type_pad=3)
    names = ["input_ids", "token_type_ids", "attention_mask", "special_tokens_mask"]
    batch = collate([{name: torch.ones(n, dtype=torch.int64) for name in names} for n in (2, 1)])
    assert {name: batch[name][1].tolist() for name in names} == dict(
        zip(names, ([9, 1], [3, 1], [0, 1], [1, 1]), strict=True)
    )


@pytest.mark.slow
def test_a_tokenizer_of_transformers_is_asked_no_more_than_its_model_takes(letters: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=special(),
        pad_token="[PAD]",
        model_max_length=6,
        padding_side="left",
        truncation_side="left",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
    tokenizer._pad_token_type_id = 3
    with pytest.raises(ValueError, match="max_length=7 is more than the 6 of the tokenizer's model_max_length"):
        fl.TextDataset(letters, tokenizer, 7)
    expected = dict(
        tokenizer(["a b c d", "a"], padding="max_length", truncation=True, max_length=5, return_tensors="pt")
    )
    (batch, _) = fl.DataLoader(fl.TextDataset(letters, tokenizer, 5), batch_size=2)
    assert flat(batch) == flat(expected)


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
