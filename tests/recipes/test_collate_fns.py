"""Collate functions beside what torch, Pillow and padding by hand give."""

from __future__ import annotations

import functools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import default_collate

import foreload as fl
from foreload import CustomCollateFn as Collate
from tests.conftest import photo

LOADERS = [
    (TorchDataLoader, {}),
    (TorchDataLoader, {"num_workers": 2, "multiprocessing_context": "forkserver"}),
    (fl.DataLoader, {"num_workers": 2, "workers": "threads"}),
    (fl.DataLoader, {"num_workers": 2, "workers": "processes", "multiprocessing_context": "forkserver"}),
]


class Files(torch.utils.data.Dataset[Any]):
    """Pillow images in files, as they are."""

    def __init__(self, root: Path) -> None:
        self.paths = sorted(root.rglob("*.jpg"))

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return Image.open(self.paths[index]).resize((24, 16)), index


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("kind", "options"), LOADERS)
def test_images_from_files_in_every_loader(kind: Any, options: Any, photos: Path) -> None:
    files = Files(photos)
    batches = list(kind(files, batch_size=4, collate_fn=Collate.image_collate, **options))
    images = torch.cat([images for images, _ in batches])
    assert images.dtype is torch.uint8
    expected = np.stack([np.asarray(files[i][0]) for i in range(8)]).transpose(0, 3, 1, 2)
    assert np.array_equal(images.numpy(), expected)
    assert torch.cat([labels for _, labels in batches]).tolist() == list(range(8))


def test_images_of_every_kind_become_channels_first() -> None:
    tensors = [torch.rand(3, 4, 5) for _ in range(2)]
    assert torch.equal(Collate.image_collate(tensors), torch.stack(tensors))
    hwc = [np.random.default_rng(i).random((4, 5, 3), np.float32) for i in range(2)]
    assert np.array_equal(Collate.image_collate(hwc).numpy(), np.stack(hwc).transpose(0, 3, 1, 2))
    chw = [array.transpose(2, 0, 1) for array in hwc]
    assert np.array_equal(Collate.image_collate(chw).numpy(), np.stack(chw))
    assert Collate.image_collate([np.zeros((4, 5), np.uint16)] * 2).shape == (2, 1, 4, 5)
    grey, colour = photo(5, 4).convert("L"), photo(5, 4)
    assert Collate.image_collate([grey, grey]).shape == (2, 1, 4, 5)
    assert Collate.image_collate([grey, colour, colour.convert("CMYK"), colour.convert("P")]).shape == (4, 3, 4, 5)
    _, labels, weights, names = Collate.image_collate([(colour, 1, 0.5, "a"), (colour, 2, 0.25, "b")])
    assert labels.tolist() == [1, 2]
    assert labels.dtype is torch.int64
    assert weights.tolist() == [0.5, 0.25]
    assert list(names) == ["a", "b"]
    named = Collate.image_collate([{"image": colour, "label": 3, "box": np.zeros(4)}] * 2)
    assert named["image"].shape == (2, 3, 4, 5)
    assert named["label"].tolist() == [3, 3]
    assert named["box"].shape == (2, 4)


def test_sixteen_bits_are_scaled_to_eight_as_everywhere() -> None:
    values = (np.arange(20, dtype=np.uint16) * 3000).reshape(4, 5)
    batch = Collate.image_collate([Image.fromarray(values)] * 2)
    assert batch.shape == (2, 3, 4, 5)
    assert np.array_equal(batch[0, 2].numpy(), np.rint(values / 257).astype(np.uint8))
    assert np.array_equal(batch[1].numpy(), fl.transforms.rgb_array(Image.fromarray(values)).transpose(2, 0, 1))


sequences = st.lists(st.lists(st.integers(0, 9999), max_size=12), min_size=1, max_size=6)


@given(sequences, st.sampled_from([list, torch.tensor, np.array, "dict", "pair"]), st.integers(0, 5))
def test_tokens_are_padded_to_the_longest(texts: list[list[int]], kind: Any, pad_id: int) -> None:
    longest = max(map(len, texts))
    make: Any = {"dict": lambda t: {"input_ids": t}, "pair": lambda t: (t, len(t))}.get(kind, kind)
    collate = functools.partial(Collate.padded_text_collate, pad_id=pad_id)
    batch = pickle.loads(pickle.dumps(collate))([make(text) for text in texts])
    assert batch["input_ids"].tolist() == [text + [pad_id] * (longest - len(text)) for text in texts]
    assert batch["attention_mask"].tolist() == [[1] * len(t) + [0] * (longest - len(t)) for t in texts]
    assert batch["input_ids"].dtype is batch["attention_mask"].dtype is torch.int64
    assert set(batch) == {"input_ids", "attention_mask"} | ({"labels"} if kind == "pair" else set())
    if kind == "pair":
        assert batch["labels"].tolist() == [len(text) for text in texts]


def test_dicts_keep_what_else_they_have() -> None:
    batch = Collate.padded_text_collate(
        [
            {"input_ids": [5, 6, 7], "attention_mask": [1, 1, 0], "token_type_ids": [0, 1, 1], "labels": [1, 2, 3],
             "name": "a", "score": 0.5, "label_vector": torch.tensor([0.0, 1.0])},
            {"input_ids": [8], "attention_mask": [1], "token_type_ids": [1], "labels": [4], "name": "b",
             "score": 1.0, "label_vector": torch.tensor([1.0, 0.0])},
        ]
    )  # fmt: skip
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 0, 0]]
    assert batch["token_type_ids"].tolist() == [[0, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [[1, 2, 3], [4, -100, -100]]
    assert list(batch["name"]) == ["a", "b"]
    assert batch["score"].tolist() == [0.5, 1.0]
    assert batch["label_vector"].tolist() == [[0, 1], [1, 0]]
    one_each = Collate.padded_text_collate([{"input_ids": [1], "label": 1}, {"input_ids": [2, 3], "label": 0}])
    assert one_each["labels"].tolist() == [1, 0]
    many = Collate.padded_text_collate([([1, 2], torch.tensor([0.0, 1.0])), ([3], torch.tensor([1.0, 1.0]))])
    assert many["labels"].tolist() == [[0, 1], [1, 1]]


@pytest.mark.slow
def test_it_pads_as_the_hugging_face_libraries_do() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    texts = ["a b c", "b", "c a"]
    model = tokenizers.models.WordLevel({"[PAD]": 0, "a": 1, "b": 2, "c": 3}, unk_token="[PAD]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]")
    expected = fast(texts, padding=True, return_tensors="pt")
    for samples in ([fast(text) for text in texts], [tokenizer.encode(text) for text in texts]):
        ours = Collate.padded_text_collate(samples)
        assert torch.equal(ours["input_ids"], expected["input_ids"])
        assert torch.equal(ours["attention_mask"], expected["attention_mask"])


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.sampled_from([(), (2,), (2, 3)]), st.booleans())
def test_sequences_are_padded_by_zeros(lengths: list[int], rest: tuple[int, ...], labelled: bool) -> None:
    tensors = [torch.rand(length, *rest) + 1 for length in lengths]
    batch = [(tensor, i) for i, tensor in enumerate(tensors)] if labelled else tensors
    padded, found, *labels = Collate.padded_sequence_collate(batch)
    assert found.tolist() == lengths
    assert padded.shape == (len(lengths), max(lengths), *rest)
    for row, tensor in zip(padded, tensors, strict=True):
        assert torch.equal(row[: len(tensor)], tensor)
        assert not row[len(tensor) :].any()
    assert [label.tolist() for label in labels] == ([list(range(len(lengths)))] if labelled else [])


def test_sequences_of_other_kinds() -> None:
    padded, lengths = Collate.padded_sequence_collate([[1, 2], np.array([0.5]), torch.tensor([3])])
    assert padded.dtype is torch.float64
    assert padded.tolist() == [[1, 2], [0.5, 0], [3, 0]]
    targets = Collate.padded_sequence_collate([(torch.ones(2), torch.ones(3)), (torch.ones(1), torch.ones(2))])[2]
    assert [len(target) for target in targets] == [3, 2]
    loader = TorchDataLoader(
        [torch.arange(n) for n in (3, 1)], 2, num_workers=1, collate_fn=Collate.padded_sequence_collate
    )
    ((padded, lengths),) = loader
    assert padded.tolist() == [[0, 1, 2], [0, 0, 0]]
    assert lengths.tolist() == [3, 1]
    assert default_collate([1, 2]).dtype is lengths.dtype


def padded(rows: list[Any], value: float) -> list[list[Any]]:
    longest = max(map(len, rows))
    return [list(map(float, row)) + [value] * (longest - len(row)) for row in rows]


ROWS: dict[str, tuple[list[Any], torch.dtype]] = {
    "whole numbers first": ([torch.tensor([1, 1]), torch.tensor([0.5])], torch.float32),
    "lists of numbers": ([[1, 1], [0.5]], torch.float32),
    "an empty list first": ([[], [1 << 24 | 1, 5]], torch.int64),
    "all empty but one": ([[], [], [3]], torch.int64),
    "halves and doubles": ([torch.ones(1).half(), torch.ones(2).double() / 3], torch.float64),
    "arrays": ([np.array([3], np.int32), torch.tensor([1 << 40, 2])], torch.int64),
}


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("kind", sorted(ROWS))
def test_rows_are_padded_in_their_common_type(kind: str, labels: bool) -> None:
    rows, dtype = ROWS[kind]
    name = "labels" if labels else "weights"
    batch = Collate.padded_text_collate([{"input_ids": [7] * len(row), name: row} for row in rows])
    assert batch[name].dtype is dtype
    assert batch[name].double().tolist() == padded([torch.as_tensor(row).double() for row in rows], -100 * labels)
    assert list(batch) == ["input_ids", "attention_mask", name]
    sequences, lengths = Collate.padded_sequence_collate(rows)
    assert (sequences.dtype, lengths.tolist()) == (dtype, [len(row) for row in rows])
    assert sequences.double().tolist() == padded([torch.as_tensor(row).double() for row in rows], 0)


@pytest.mark.parametrize("labels", [[[], []], [(), ()], [[], torch.tensor([], dtype=torch.int32)]], ids=str)
def test_labels_of_no_tokens_at_all_are_whole_numbers(labels: list[Any]) -> None:
    batch = Collate.padded_text_collate([{"input_ids": [], "labels": label} for label in labels])
    assert (batch["labels"].dtype, batch["labels"].shape) == (torch.int64, (2, 0))
    floats = Collate.padded_text_collate([{"input_ids": [], "labels": torch.zeros(0).half()}, ([], [])])
    assert floats["labels"].dtype is torch.float16


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.complex64, torch.int32, torch.bfloat16])
def test_what_is_not_per_token_is_collated_as_torch_does(dtype: torch.dtype) -> None:
    sides: list[Any] = [torch.tensor([1, 0, 1]).to(dtype), torch.tensor([0, 0, 1]).to(dtype)]
    batch = Collate.padded_text_collate([{"input_ids": [7, 8], "side": side} for side in sides])
    assert (batch["side"].dtype, batch["side"].tolist()) == (dtype, torch.stack(sides).tolist())
    per_token = Collate.padded_text_collate([{"input_ids": [7] * n, "side": sides[0][:n]} for n in (2, 3)])["side"]
    assert (per_token.dtype, per_token[0].tolist()) == (dtype, torch.tensor([1, 0, 0]).to(dtype).tolist())
    spans = [{"input_ids": [7], "span": [3, 5, 9]}, {"input_ids": [7], "span": [4, 6, 8]}]
    expected = default_collate([sample["span"] for sample in spans])
    assert all(map(torch.equal, Collate.padded_text_collate(spans)["span"], expected))
    marked = Collate.padded_text_collate([{"input_ids": [7, 8], "attention_mask": np.array([True, False])}])
    assert (marked["attention_mask"].dtype, marked["attention_mask"].tolist()) == (torch.int64, [[1, 0]])


class Sentences(torch.utils.data.Dataset[Any]):
    """As tutorials on text classification have it: tokens of a sentence, and its class."""

    def __init__(self) -> None:
        self.tokens = [torch.arange(1, 2 + number % 5) for number in range(12)]

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return self.tokens[index], index % 3


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("kind", "options"), LOADERS)
@pytest.mark.parametrize("collate", [Collate.text_collate, Collate.variable_length_collate])
def test_a_loop_unpacks_texts_and_targets(collate: Any, kind: Any, options: Any) -> None:
    data = Sentences()
    bag = torch.nn.EmbeddingBag(10, 4)
    seen = 0
    for texts, targets in kind(data, batch_size=5, collate_fn=collate, **options):
        assert type(texts) is list
        for position, text in enumerate(texts):
            assert torch.equal(text, torch.arange(1, 2 + (seen + position) % 5))
        assert targets.tolist() == [(seen + position) % 3 for position in range(len(texts))]
        offsets = torch.tensor([0, *map(len, texts)])[:-1].cumsum(0)
        assert bag(torch.cat(texts), offsets).shape == (len(targets), 4)
        seen += len(texts)
        for text in texts:
            text.zero_()  # a batch is its holder's
    assert seen == 12
    assert all(text.all() for text in data.tokens)


def test_texts_stay_what_they_are() -> None:
    texts, targets = Collate.text_collate([("a cat", 1), ("purrs", 0)])
    assert texts == ["a cat", "purrs"]
    assert targets.tolist() == [1, 0]
    assert targets.dtype is torch.int64
    assert Collate.text_collate(["a", "b"]) == (["a", "b"], None)
    assert Collate.text_collate([("a", None), ("b", None)]) == (["a", "b"], None)
    assert Collate.text_collate([("a", "cat"), ("b", "dog")]) == (["a", "b"], ["cat", "dog"])
    assert Collate.text_collate([["two", "words"], ["and", "two"]]) == ([["two", "words"], ["and", "two"]], None)
    assert Collate.text_collate([["a", 1], ["b", 2]])[0] == ["a", "b"]
    texts, targets, names = Collate.text_collate([([1, 2], 0.5, "x"), ([], 1.5, "y")])
    assert [text.tolist() for text in texts] == [[1, 2], []]
    assert {text.dtype for text in texts} == {torch.int64}
    assert targets.tolist() == [0.5, 1.5]
    assert names == ["x", "y"]
    (alone,), nothing = Collate.text_collate([np.array([5, 6], np.int32)])
    assert alone.dtype is torch.int32
    assert nothing is None


def test_tensors_of_any_shape_are_a_list() -> None:
    tensors, targets = Collate.variable_length_collate(
        [(torch.ones(2, 3), 1), (np.zeros((4, 1), np.float16), 2), ([1, 2], 3), (torch.tensor(5), 4)]
    )
    assert [tuple(tensor.shape) for tensor in tensors] == [(2, 3), (4, 1), (2,), ()]
    assert [tensor.dtype for tensor in tensors] == [torch.float32, torch.float16, torch.int64, torch.int64]
    assert targets.tolist() == [1, 2, 3, 4]
    tensors, targets = Collate.variable_length_collate([torch.ones(1), torch.ones(2)])
    assert [len(tensor) for tensor in tensors] == [1, 2]
    assert targets is None
    boxes = Collate.variable_length_collate(
        [(torch.ones(1), torch.ones(2, 4)), (torch.ones(1), torch.ones(1, 4))]
    )[1]
    assert [tuple(box.shape) for box in boxes] == [(2, 4), (1, 4)]
    with pytest.raises(TypeError, match=r"sample 0 .* a tensor and its target must be a tuple, not a list"):
        Collate.variable_length_collate([[torch.ones(2), 1], [torch.ones(3), 0]])


def test_words_beside_a_target_and_tensors_alone_in_tuples() -> None:
    assert Collate.text_collate([[["two", "words"], 1], [["one"], 0]])[0] == [["two", "words"], ["one"]]
    tensors, targets = Collate.variable_length_collate([(torch.ones(1),), (torch.ones(2),)])
    assert [len(tensor) for tensor in tensors] == [1, 2]
    assert targets is None


@pytest.mark.parametrize("collate", [Collate.text_collate, Collate.variable_length_collate])
@pytest.mark.parametrize("samples", [[[1, 2], [3]], [([1, 2], 0), ([3], 1)]])
def test_a_generator_has_the_samples_of_a_list(collate: Any, samples: list[Any]) -> None:
    got, want = collate(sample for sample in samples), collate(samples)
    assert [tensor.tolist() for tensor in got[0]] == [tensor.tolist() for tensor in want[0]] == [[1, 2], [3]]
    assert (got[1] is None) == (want[1] is None)
    assert got[1] is None or got[1].tolist() == want[1].tolist() == [0, 1]


def test_padded_tensors_have_their_gradients() -> None:
    vectors = [torch.ones(2, 3, requires_grad=True), torch.ones(1, 3, requires_grad=True)]
    padded, lengths = Collate.padded_sequence_collate(vectors)
    assert lengths.tolist() == [2, 1]
    padded.sum().backward()
    assert all(torch.equal(vector.grad, torch.ones_like(vector)) for vector in vectors if vector.grad is not None)
    assert all(vector.grad is not None for vector in vectors)
