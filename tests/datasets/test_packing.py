"""Packing: rows of one length from which every document comes back, and in which none sees another."""

from __future__ import annotations

import io
import math
import pickle
from collections import UserDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset

import foreload as fl

documents = st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=25), max_size=40)


def tokens_of(lengths: list[int]) -> list[list[int]]:
    """Documents without a token in common."""
    ends = np.cumsum(lengths)
    return [list(range(1 + end - length, 1 + end)) for end, length in zip(ends.tolist(), lengths, strict=True)]


def test_documents_of_any_layout_and_dtype_come_back() -> None:
    numbers = np.arange(60, dtype=np.int64)
    docs = [
        numbers[::-1][:7],
        numbers[::3],
        numbers.reshape(6, 10)[:, 2],
        numbers[5:9].astype(">i8"),
        numbers[:3].astype(np.uint8),
        torch.arange(20, dtype=torch.int32)[::2],
        np.broadcast_to(np.int64(4), 5),
        numbers[:0],
        numbers[:4].astype(np.longlong),
    ]
    packed = fl.packing.pack_sequences(docs, 8)
    for document, unpacked in zip(docs, packed.unpack(), strict=True):
        assert unpacked.tolist() == document.tolist()


@given(docs=documents, length=st.integers(1, 12), window=st.none() | st.integers(1, 10), pad=st.integers(-3, 3))
def test_every_document_comes_back(docs: list[list[int]], length: int, window: int | None, pad: int) -> None:
    packed = fl.packing.pack_sequences(docs, length, pad=pad, window=window)
    assert [document.tolist() for document in packed.unpack()] == docs
    assert packed.documents == len(docs)
    assert packed.input_ids.dtype == packed.document_ids.dtype == packed.position_ids.dtype == torch.int64
    assert (
        packed.input_ids.shape == packed.document_ids.shape == packed.position_ids.shape == (len(packed), length)
    )
    padding = packed.document_ids == -1
    assert (packed.input_ids[padding] == pad).all()
    assert (~padding).sum() == sum(map(len, docs))
    assert len(packed) == 0 or packed.efficiency == pytest.approx(float((~padding).float().mean()))


@given(lengths=st.lists(st.integers(0, 30), max_size=30), length=st.integers(1, 12))
def test_each_token_knows_its_document_and_its_place(lengths: list[int], length: int) -> None:
    docs = tokens_of(lengths)
    for row in fl.packing.pack_sequences(docs, length):
        ids, places = row["document_ids"].tolist(), row["position_ids"].tolist()
        for column, (token, document) in enumerate(zip(row["input_ids"].tolist(), ids, strict=True)):
            assert places[column] == ids[: column + 1].count(document) - 1
            if document >= 0:
                assert docs[document].index(token) % length == places[column]
        # Each document is in one place of a row, padding in the last.
        groups = [document for i, document in enumerate(ids) if i == 0 or ids[i - 1] != document]
        assert len(set(groups)) == len(groups)
        assert -1 not in groups[:-1]


def best_fit(lengths: list[int], length: int) -> int:
    """Count the rows that best fit decreasing needs, as its definition has it."""
    room: list[int] = []
    pieces = [piece for n in lengths for piece in [length] * (n // length) + [n % length] * (n % length > 0)]
    for piece in sorted(pieces, reverse=True):
        fitting = [i for i, left in enumerate(room) if left >= piece]
        if fitting:
            room[min(fitting, key=lambda i: room[i])] -= piece
        else:
            room.append(length - piece)
    return len(room)


def test_the_next_batch_has_what_the_loop_writes_to_the_rows() -> None:
    packed = fl.packing.pack_sequences([[number] * 4 for number in range(1, 65)], 4)
    seen = []
    for number, batch in enumerate(fl.DataLoader(packed, batch_size=2)):
        seen.append(batch["input_ids"][0, 0].item())
        packed.input_ids[2 * number + 2 :] = 100 + number
    assert seen == [1, *range(100, 131)]


@given(lengths=st.lists(st.integers(0, 70), max_size=60), length=st.integers(1, 60))
def test_it_packs_as_best_fit_decreasing_does(lengths: list[int], length: int) -> None:
    packed = fl.packing.pack_sequences(tokens_of(lengths), length)
    assert len(packed) == best_fit(lengths, length) <= math.ceil(11 / 9 * sum(lengths) / length * 2 + 4)


def test_ordinary_lengths_leave_next_to_no_padding() -> None:
    lengths = np.random.default_rng(0).lognormal(4, 1, 20_000).astype(int) % 2000 + 1
    flat = np.arange(lengths.sum())
    docs = np.split(flat, np.cumsum(lengths)[:-1])
    packed = fl.packing.pack_sequences(docs, 512)
    assert packed.efficiency > 0.999
    assert torch.equal(torch.cat(packed.unpack()), torch.from_numpy(flat))


@given(lengths=st.lists(st.integers(1, 9), max_size=30))
def test_a_window_keeps_near_what_is_near(lengths: list[int]) -> None:
    packed = fl.packing.pack_sequences(tokens_of(lengths), 9, window=5)
    apart = [fl.packing.pack_sequences(tokens_of(lengths)[at : at + 5], 9) for at in range(0, len(lengths), 5)]
    assert len(packed) == sum(map(len, apart))
    for row in packed.document_ids:
        assert row[row >= 0].max() // 5 == row[row >= 0].min() // 5


class Texts(Dataset[dict[str, Any]]):
    """Does not end when it is iterated over."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": torch.full((index + 1,), index), "label": 0}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(Texts()[i] for i in range(4))


@pytest.mark.parametrize(
    "make",
    [
        lambda: [[0], [1, 1], [2, 2, 2], [3, 3, 3, 3]],
        lambda: ((i,) * (i + 1) for i in range(4)),
        lambda: [np.full(i + 1, i, dtype) for i, dtype in enumerate((np.int8, np.uint16, np.int32, np.uint64))],
        lambda: [torch.full((i + 1,), i, dtype=torch.int32) for i in range(4)],
        lambda: [UserDict(input_ids=[i] * (i + 1)) for i in range(4)],
        Texts,
        Stream,
    ],
)
def test_documents_may_come_as_anything_made_of_ints(make: Any) -> None:
    packed = fl.packing.pack_sequences(make(), 5, pad=9)
    assert packed.input_ids.tolist() == [[0, 3, 3, 3, 3], [1, 1, 2, 2, 2]]
    assert packed.document_ids.tolist() == packed.input_ids.tolist()


def test_nothing_packs_to_nothing() -> None:
    assert fl.packing.pack_sequences([], 4).input_ids.shape == (0, 4)
    empty = fl.packing.pack_sequences([[], []], 4)
    assert len(empty) == 0
    assert [len(document) for document in empty.unpack()] == [0, 0]


@pytest.mark.parametrize("workers", [0, 2])
def test_it_serves_our_loader_and_torchs(workers: int) -> None:
    packed = fl.packing.pack_sequences(tokens_of([5, 9, 3, 12, 7, 1, 1, 20]), 8)
    stock = TorchDataLoader(packed, batch_size=3, num_workers=workers)
    ours = fl.DataLoader(packed, batch_size=3, num_workers=workers)
    for batch, other in zip(stock, ours, strict=True):
        assert batch.keys() == other.keys() == {"input_ids", "document_ids", "position_ids"}
        assert all(torch.equal(batch[name], other[name]) for name in batch)
    assert torch.equal(torch.cat([batch["input_ids"] for batch in ours]), packed.input_ids)
    assert torch.equal(torch.cat([batch["document_ids"] for batch in ours]), packed.document_ids)
    assert torch.equal(torch.cat([batch["position_ids"] for batch in ours]), packed.position_ids)
    rows = packed.__getitems__([2, -1, 2])
    assert torch.equal(rows[1]["input_ids"], packed[len(packed) - 1]["input_ids"])
    copy = pickle.load(io.BytesIO(pickle.dumps(packed)))
    assert all(torch.equal(a, b) for a, b in zip(copy.unpack(), packed.unpack(), strict=True))


def test_it_can_be_a_part_of_a_mixture() -> None:
    parts = [fl.packing.pack_sequences(tokens_of(lengths), 8) for lengths in ([5, 9, 3], [8] * 20)]
    loader = fl.DataLoader(fl.Mixture(parts, [1, 1]), 4, shuffle=True, seed=0, num_workers=0)
    assert all(batch["input_ids"].shape[1] == 8 for batch in loader)


@given(docs=documents, length=st.integers(1, 9), causal=st.booleans())
def test_the_mask_lets_nothing_see_another_document(docs: list[list[int]], length: int, causal: bool) -> None:
    ids = fl.packing.pack_sequences(docs, length).document_ids
    mask = fl.packing.attention_mask(ids, causal=causal)
    assert mask.dtype is torch.bool
    assert mask.shape == (len(ids), length, length)
    for row, document in enumerate(ids.tolist()):
        for i in range(length):
            for j in range(length):
                assert mask[row, i, j] == (document[i] == document[j] and (j <= i or not causal))


@pytest.mark.slow
def test_attention_in_a_row_is_that_of_each_document_alone() -> None:
    packed = fl.packing.pack_sequences(tokens_of([3, 2, 4, 6]), 8)
    embedding = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    x = embedding[packed.input_ids][:, None]
    y = scaled_dot_product_attention(x, x, x, fl.packing.attention_mask(packed.document_ids)[:, None])[:, 0]
    assert y.isfinite().all()
    for number, document in enumerate(packed.unpack()):
        alone = embedding[document][None]
        expected = scaled_dot_product_attention(alone, alone, alone, is_causal=True)[0]
        torch.testing.assert_close(y[packed.document_ids == number], expected)


def test_boundaries_of_a_row_and_of_a_batch() -> None:
    packed = fl.packing.pack_sequences([[1, 2, 3], [4, 5], [6, 7, 8, 9]], 5)
    assert packed.document_ids.tolist() == [[0, 0, 0, 1, 1], [2, 2, 2, 2, -1]]
    assert packed.cu_seqlens(0).tolist() == [0, 3, 5]
    assert packed.cu_seqlens(-1).tolist() == [0, 4, 5]
    both = fl.packing.cu_seqlens(packed.document_ids)
    assert both.dtype is torch.int32
    assert both.tolist() == [0, 3, 5, 9, 10]
    assert fl.packing.cu_seqlens(torch.tensor([[7, 7], [7, 7]])).tolist() == [0, 2, 4]  # pieces of one document


def test_a_document_that_may_not_be_split_is_named() -> None:
    docs = tokens_of([3, 4, 5, 6])
    assert len(fl.packing.pack_sequences(docs, 6, split=False).unpack()) == 4
    for window in (None, 2):
        with pytest.raises(ValueError, match="document 2 has 5 tokens, more than length = 4; pass split=True"):
            fl.packing.pack_sequences(docs, 4, split=False, window=window)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([[1]], 0), ValueError, "length must be 1 or more, got 0"),
        (([[1]], 2.5), TypeError, "length must be an int"),
        (([[1]], 10**12), ValueError, "length must be at most 1,073,741,824, got 1,000,000,000,000"),
        (([[1]], 2**70), ValueError, "length must be at most 1,073,741,824"),
        (("text", 4), TypeError, "sequences must be an iterable of token sequences, got str"),
        (({"input_ids": [1]}, 4), TypeError, "got dict"),
        ((3, 4), TypeError, "got int"),
        (([[1], [1.5]], 4), TypeError, "document 1 must be made of ints, got float64; tokenize it first"),
        (([[1], "text"], 4), ValueError, "document 1 must have one dimension"),
        (([[1], ["a"]], 4), TypeError, "document 1 must be made of ints"),
        (([[1], [[1, 2]]], 4), ValueError, r"document 1 must have one dimension, got shape \(1, 2\)"),
        (([[1], [[1, 2], [3]]], 4), ValueError, "document 1 is not a flat sequence of tokens"),
        (([[1], {"text": "a"}], 4), ValueError, "document 1 has no 'input_ids', only 'text'"),
        (([1, 2], 4), ValueError, "document 0 must have one dimension"),
    ],
)
def test_what_makes_no_sense_is_named(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fl.packing.pack_sequences(*arguments)


def test_a_window_must_be_a_number() -> None:
    with pytest.raises(ValueError, match="window must be 1 or more, got 0"):
        fl.packing.pack_sequences([[1]], 4, window=0)
    packed = fl.packing.pack_sequences([[1]], 4)
    with pytest.raises(IndexError, match="index 1 is out of range for 1 samples"):
        packed[1]


@pytest.mark.parametrize(
    "document",
    [[1 << 63], [1, 1 << 63, -1], [1 << 64], np.array([1, 1 << 63], np.uint64), {"input_ids": [-(1 << 63) - 1]}],
)
def test_tokens_beyond_int64_are_refused(document: Any) -> None:
    with pytest.raises(ValueError, match=r"document 1: its token -?\d+ does not fit into int64"):
        fl.packing.pack_sequences([[1, 2], document], 4)


@pytest.mark.parametrize("dtype", ["u1", "u2", ">u2", "u4", "u8", "i1", "i8"])
def test_tokens_of_any_width_are_packed_right(tmp_path: Path, dtype: str) -> None:
    most = min(np.iinfo(dtype).max, np.iinfo(np.int64).max)
    np.array([[1, most, 3], [most, 5, 6]], dtype).tofile(tmp_path / "tokens.bin")
    tokens = np.memmap(tmp_path / "tokens.bin", dtype, "r", shape=(2, 3))
    assert [row.tolist() for row in fl.packing.pack_sequences(tokens, 4).unpack()] == [[1, most, 3], [most, 5, 6]]


def test_padding_beyond_int64_is_refused() -> None:
    for pad in (1 << 63, -(1 << 63) - 1):
        with pytest.raises(ValueError, match="pad does not fit into int64"):
            fl.packing.pack_sequences([[1]], 4, pad=pad)
    with pytest.raises(TypeError, match="pad must be an int"):
        fl.packing.pack_sequences([[1]], 4, pad=0.5)  # type: ignore[arg-type]
