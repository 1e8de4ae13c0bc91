"""Samples of which no batch can be made are named by the collate functions."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from foreload import CustomCollateFn as Collate


@pytest.mark.parametrize(
    ("collate", "batch", "error", "message"),
    [
        (
            "text",
            [("a", 1), "b"],
            ValueError,
            "all be .data, target., .* sample 1 has 1 fields and sample 0 has 2",
        ),
        ("text", [("a", 1), (None, 2)], TypeError, "sample 1 of the batch: a text must be a str, .* NoneType"),
        ("text", ["a", 7], TypeError, "sample 1 of the batch: a text must be a str, .* got int"),
        ("text", [{"input_ids": [1]}], TypeError, "got dict; of dicts with input_ids, padded_text_collate"),
        (
            "variable_length",
            [(torch.ones(1), 1), ("text", 2)],
            TypeError,
            "sample 1 of the batch must be a tensor",
        ),
        ("variable_length", [(torch.ones(1), 1), (torch.ones(1), 1, 2)], ValueError, "sample 1 has 3 fields"),
        ("image", [torch.zeros(3, 4, 4), torch.zeros(3, 5, 4)], ValueError, r"\(3, 4, 4\), \(3, 5, 4\); resize"),
        ("image", [(torch.zeros(1), 1), (torch.zeros(1),)], ValueError, "sample 1 has 1 fields"),
        ("image", [torch.zeros(1), "cat.jpg"], TypeError, "sample 1 of the batch: an image must be .* got str"),
        ("padded_text", ["some words"], TypeError, "sample 0 .* got str; tokenize texts in the dataset"),
        ("padded_text", [[1], [1.5]], TypeError, "sample 1 of the batch: tokens must be"),
        ("padded_text", [{"ids": [1]}], TypeError, "sample 0 of the batch: a dict needs input_ids, has ids"),
        ("padded_text", [{"input_ids": [1], "attention_mask": [1, 1]}], ValueError, "has 2 entries for 1 tokens"),
        ("padded_text", [{"input_ids": [1], "label": 1, "labels": 2}], ValueError, "sample 0 .* both 'label' and"),
        ("padded_text", [np.array([2**63], np.uint64)], ValueError, "int64 does not hold"),
        ("padded_text", [([1], np.array([2**63], np.uint64))], ValueError, "int64 does not hold"),
        ("padded_text", [([1], 1), [2]], ValueError, "sample 1 of the batch has no 'labels', which sample 0 has"),
        ("padded_text", [[1], ([2], 1)], ValueError, "sample 0 of the batch has no 'labels', which sample 1 has"),
        ("image", [], ValueError, "image_collate: the batch is empty; let the batch sampler leave out"),
        ("padded_text", [], ValueError, "padded_text_collate: the batch is empty"),
        ("padded_sequence", (), ValueError, "padded_sequence_collate: the batch is empty"),
        ("padded_sequence", [torch.ones(1, 2), torch.ones(1, 3)], ValueError, r"\(1, 2\), \(1, 3\)"),
        ("padded_sequence", [torch.tensor(1)], ValueError, "the first dimension"),
        ("padded_sequence", [torch.ones(1), "text"], TypeError, "sample 1 of the batch must be a tensor"),
        (
            "padded_sequence",
            [[1 << 24 | 1], torch.tensor([0.5])],
            ValueError,
            "sample 0 .* torch.float32, the type .* not hold one",
        ),
        (
            "padded_sequence",
            [np.ones(1, np.uint16), np.ones(1, np.int16)],
            ValueError,
            "int16, torch.uint16; give",
        ),
        ("padded_sequence", [[1], [1 << 70]], TypeError, "sample 1 of the batch must .* int64 does not hold one"),
        (
            "image",
            [{"x": np.zeros(2)}, {}],
            ValueError,
            "sample 1 of the batch has no 'x', which sample 0 has; give",
        ),
        ("image", [{}, {"x": np.zeros(2)}], ValueError, "sample 0 of the batch has no 'x', which sample 1 has"),
        ("image", [{"x": 1}, (1, 2)], TypeError, "sample 1 of the batch is a tuple, where others are dicts"),
        (
            "image",
            [(torch.zeros(1, 2, 2),), torch.zeros(1, 2, 2)],
            ValueError,
            "sample 1 has 1 .* one of them is a tup",
        ),
        (
            "image",
            [torch.zeros(3, 2, 2), np.zeros((2, 2, 3), np.uint8)],
            ValueError,
            "sample 1 is torch.uint8 and",
        ),
        ("image", [np.zeros((2, 2), object)], TypeError, "sample 0 of the batch: an image must be .*object_"),
        ("image", [np.ma.masked_equal(np.eye(2), 0)], TypeError, "sample 0 .* an image .* masked; fill that in"),
        ("text", [[1], [1 << 70]], TypeError, "sample 1 of the batch: a text of tokens .* int64 does not hold"),
        ("text", [np.array(["a"])], TypeError, "sample 0 of the batch: a text of tokens must be"),
        ("text", [("a", ["x"]), ("b", ["x", "y"])], TypeError, "sample 0 of the batch: a target must be"),
        ("text", [("a", [[1], [2, 3]]), ("b", [1])], TypeError, "sample 0 of the batch: a target must be"),
        ("variable_length", [[1], [1 << 70]], TypeError, "sample 1 of the batch must .* int64 does not hold one"),
        (
            "padded_text",
            [[1], [1 << 70]],
            TypeError,
            "sample 1 of the batch: input_ids must .* int64 does not hold",
        ),
        ("padded_text", [torch.ones(1, 2).long()], TypeError, r"sample 0 .* got Tensor of the shape \(1, 2\)"),
        ("padded_text", [[1], np.array([2**63], np.uint64)], ValueError, "sample 1 of the batch: int64 does not"),
        ("padded_text", [{"input_ids": [1], "attention_mask": [0.5]}], ValueError, "sample 0 .* must be of ints"),
        (
            "padded_text",
            [{"input_ids": [1], "attention_mask": None}],
            TypeError,
            "sample 0 .*: attention_mask must",
        ),
        ("padded_text", [{"input_ids": [1], "x": [1 << 70]}], TypeError, "sample 0 of the batch: 'x' must be"),
        (
            "padded_text",
            [{"input_ids": [1], "labels": [1 << 70]}],
            TypeError,
            "sample 0 of the batch: labels must",
        ),
    ],
)
def test_what_does_not_fit_is_named(collate: str, batch: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        getattr(Collate, f"{collate}_collate")(batch)


@pytest.mark.parametrize(
    ("collate", "batch", "note"),
    [
        (Collate.image_collate, [{"x": 1}, {"x": None}], "sample 1 of the batch: it is None"),
        (Collate.image_collate, [(np.eye(2), 1), (np.eye(2), 1 << 70)], "sample 1 .* does not fit into int64"),
        (Collate.text_collate, [("a", 1), ("b", None)], "sample 1 of the batch: it is None"),
        (Collate.variable_length_collate, [([1], 1), ([2], 1 << 70)], "sample 1 .* does not fit into int64"),
        (Collate.padded_text_collate, [([1], 1), ([2], "b")], "sample 1 of the batch: it is a str"),
        (Collate.padded_sequence_collate, [([1], 1), ([2], 1 << 70)], "sample 1 .* does not fit into int64"),
    ],
)
def test_a_value_that_torch_does_not_collate_is_noted(collate: Any, batch: Any, note: str) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
        collate(batch)
    assert re.search(note, "".join(caught.value.__notes__))


@pytest.mark.parametrize(("pad_id", "error"), [(0.5, TypeError), (None, TypeError), ("0", TypeError)])
def test_the_token_that_pads_is_a_whole_number(pad_id: Any, error: Any) -> None:
    with pytest.raises(error, match="pad_id must be an int"):
        Collate.padded_text_collate([[1], [2, 3]], pad_id=pad_id)


def test_masks_may_number_the_texts_of_a_row() -> None:
    """As training on packed texts has it."""
    batch = [{"input_ids": [1, 2, 3], "attention_mask": [1, 2, 2]}, {"input_ids": [4], "attention_mask": [1.0]}]
    assert Collate.padded_text_collate(batch)["attention_mask"].tolist() == [[1, 2, 2], [1, 0, 0]]


def test_ints_of_different_sizes_have_one_scale() -> None:
    batch = [{"mask": np.full((1, 2, 2), value, kind)} for value, kind in [(3, np.int32), (5, np.int64)]]
    mask = Collate.image_collate(batch)["mask"]
    assert (mask.dtype, mask[:, 0, 0, 0].tolist()) == (torch.int64, [3, 5])


def test_the_token_that_pads_fits_into_int64() -> None:
    with pytest.raises(ValueError, match="pad_id must fit into int64, got 9223372036854775808"):
        Collate.padded_text_collate([[1], [2, 3]], pad_id=1 << 63)
