"""Batches are ordinary tensors, not views of others, wherever their memory comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import foreload as fl


def a_large_tensor() -> Any:
    return torch.arange(4.0)[:, None].expand(4, 200_000).contiguous()


def large_samples() -> Any:
    return list(a_large_tensor())


def large_samples_in_bfloat16() -> Any:
    return list(a_large_tensor().bfloat16())


@pytest.mark.parametrize("make", [a_large_tensor, large_samples, large_samples_in_bfloat16])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 0}, {"num_workers": 1}, {"num_workers": 1, "workers": "processes"}],
    ids=str,
)
@pytest.mark.parametrize("batch_size", [2, None])
def test_batches_are_no_views_so_that_all_operations_in_place_are_allowed(
    make: Callable[[], Any], options: dict[str, Any], batch_size: int | None
) -> None:
    if batch_size is None and options.get("num_workers", 0) == 0:
        pytest.skip("these are views of the dataset's in torch too")
    for _ in range(2):
        with torch.no_grad():
            (batch, *_) = fl.DataLoader(make(), batch_size=batch_size, **options)
        scale = torch.full((1,), 0.5, requires_grad=True, dtype=batch.dtype)
        batch.detach_().mul_(scale)  # torch refuses both for a view that was made without gradients
        assert batch.requires_grad
        assert not batch._is_view()
