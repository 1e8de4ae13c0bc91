"""Tokenizers give what they give in stock torch, with their own settings."""

from __future__ import annotations

import csv
import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Subset

import foreload as fl
from foreload.datasets.text.pieces import PieceEncoder
from foreload.datasets.text.tokens import IDS, encoder_of
from tests.datasets.text.conftest import LINES, words, write


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
@settings(max_examples=3 * settings.default.max_examples)
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
        assert PieceEncoder.of(tokenizers.Tokenizer.from_str(json.dumps({**config, **change}))) is None
    assert PieceEncoder.of(tokenizers.Tokenizer.from_str(json.dumps(config))) is not None


def test_pieces_that_find_no_room_are_left_to_the_tokenizer(
    byte_level: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foreload.datasets.text.pieces._ROOM", 8)
    tokenizer = byte_level[False]
    encoder = encoder_of(tokenizer, 512)
    texts = [f"a{i} b{i} c c" for i in range(30)]
    for _ in range(3):
        assert [list(row) for row in encoder.encode(texts)[IDS]] == [tokenizer.encode(text).ids for text in texts]


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


@pytest.mark.sampled(15)
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
