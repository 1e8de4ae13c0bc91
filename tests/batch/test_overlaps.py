"""Tensors of a batch that overlap in memory still do when worker processes have sent it, as from torch's."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from foreload.cache.serialize import flatten, restore
from foreload.nested.picklers import ExactPickler, SamplePickler, TorchPickler


def row(base: torch.Tensor, place: int) -> torch.Tensor:
    rows = base[: base.numel() // 8 * 8].view(-1, 8)
    return rows[place % len(rows)]


def as_other_dtype(base: torch.Tensor, place: int) -> torch.Tensor:
    begin = place - place % 2
    return base[begin : begin + 8].view(torch.float64 if place % 4 else torch.uint8)


# Views of a tensor, from an element on.
VIEWS: list[Callable[[torch.Tensor, int], torch.Tensor]] = [
    lambda base, place: base[place : place + 12],
    lambda base, place: base[place:],
    lambda base, place: base[place : place + 16 : 3],
    lambda base, place: base[: base.numel() // 8 * 8].view(-1, 8)[:3].T,
    lambda base, place: base[place : place + 4].view(2, 2),
    row,
    as_other_dtype,
]


def views(draw: random.Random) -> list[torch.Tensor]:
    bases = [torch.rand(draw.choice([40, 200, 5000])) for _ in range(draw.randint(1, 2))]
    made = [
        draw.choice(VIEWS)(base, draw.randrange(base.numel() - 16))
        for base in bases
        for _ in range(draw.randint(1, 5))
    ]
    made += bases[: draw.random() < 0.2]
    draw.shuffle(made)
    return made


def content(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()


@pytest.mark.parametrize("pickler", [SamplePickler, TorchPickler, ExactPickler])
@given(draw=st.randoms(use_true_random=False))
def test_what_is_written_to_one_shows_in_the_others(pickler: type[SamplePickler], draw: random.Random) -> None:
    batch = views(draw)
    parts = flatten([{"x": tensor} for tensor in batch], pickler)
    others = [sample["x"] for sample in restore([bytearray(part) for part in parts])]
    for tensor, other in zip(batch, others, strict=True):
        assert (tensor.dtype, tensor.shape, tensor.stride()) == (other.dtype, other.shape, other.stride())
    assert [*map(content, batch)] == [*map(content, others)]
    for tensor, other in zip(batch, others, strict=True):
        tensor.fill_(7)
        other.fill_(7)
        assert [*map(content, batch)] == [*map(content, others)]


def windows(samples: list[Any]) -> Any:
    wave = torch.zeros(64)
    return wave[:8], wave[4:12], wave[40:50]


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"num_workers": 2}], ids=str)
def test_windows_of_one_recording_overlap_as_in_stock(options: dict[str, Any]) -> None:
    found = []
    for kind in (fl.DataLoader, TorchDataLoader):
        dataset: Any = range(40)
        for batch in kind(dataset, 4, collate_fn=windows, **options):
            batch[0].add_(1)
            found.append([part.tolist() for part in batch])
    assert found[:10] == found[10:]


def test_small_parts_of_a_large_tensor_are_sent_without_the_rest() -> None:
    large = torch.zeros(1_000_000)
    parts = flatten([large[:100], large[50:150], large[-100:]])
    assert sum(map(len, parts)) < 3_000
