"""Samples of many numbers: copied to their batch as torch copies them, where its threads are slow without them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate

import foreload as fl
from foreload.nested.long_rows import TorchPace

LONG = 1 << 15

Make = Callable[[int, torch.dtype], torch.Tensor]


def plain(length: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.arange(length) * 7 % 251).to(dtype)


def conjugate(length: int) -> torch.Tensor:
    return torch.complex(torch.ones(length), plain(length, torch.float32)).conj()


FORMS: dict[str, Make] = {
    "plain": plain,
    "every second": lambda length, dtype: plain(2 * length, dtype)[::2],
    "transposed": lambda length, dtype: plain(2 * length, dtype).view(2, length).t()[:, 0],
    "negative bit": lambda length, dtype: conjugate(length).imag,
    "conjugate": lambda length, dtype: conjugate(length),
    "expanded": lambda length, dtype: plain(1, dtype).expand(length),
    "requires grad": lambda length, dtype: plain(length, torch.float32).requires_grad_(),
    "offset": lambda length, dtype: plain(length + 3, dtype)[3:],
    "of bfloat16": lambda length, dtype: plain(length, torch.bfloat16),
    "bools": lambda length, dtype: plain(length, torch.bool),
    "planes": lambda length, dtype: plain(length // 3 * 3, dtype).view(1, length // 3, 3).permute(2, 0, 1),
}  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(sorted(FORMS)),
    st.sampled_from([torch.uint8, torch.float32, torch.int64]),
    st.sampled_from([LONG - 1, LONG, LONG + 1, 3 * LONG]),
    st.integers(1, 4),
)
def test_batches_are_torchs(form: str, dtype: torch.dtype, length: int, count: int) -> None:
    samples = [FORMS[form](length, dtype) for _ in range(count)]
    expected = default_collate(samples)
    (got,) = fl.DataLoader(samples, batch_size=count, num_workers=0)
    assert torch.equal(got, expected)
    assert (got.dtype, got.requires_grad, got.is_neg(), got.is_conj()) == (
        expected.dtype,
        expected.requires_grad,
        expected.is_neg(),
        expected.is_conj(),
    )
    assert got.stride() == expected.stride()


@pytest.fixture(autouse=True, params=[False, True], ids=["", "slow"])
def is_slow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Let torch's threads be fast or slow."""
    monkeypatch.setattr(TorchPace, "is_slow", request.param, raising=False)
    monkeypatch.setattr(TorchPace, "__init__", lambda pace: None)
    monkeypatch.setattr(TorchPace, "note", lambda *_: None)
    return bool(request.param)


@pytest.mark.parametrize("count", [2, 16])
def test_torchs_threads_copy_none_where_they_are_slow(
    count: int, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [np.full(LONG + 1, number, np.float32) for number in range(count)]
    stacked, stack = [], torch.stack
    monkeypatch.setattr(torch, "stack", lambda *args, **how: stacked.append(1) or stack(*args, **how))
    (got,) = fl.DataLoader(samples, batch_size=count, num_workers=0)
    assert np.array_equal(got.numpy(), np.stack(samples))
    assert bool(stacked) != is_slow


def test_a_slow_copy_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    pace, rows = TorchPace(), torch.zeros(LONG + 1)
    for tensor, seconds in [(rows, 1e-4), (rows[:LONG], 1.0), (rows.to(torch.complex64), 1.0)]:
        pace.note(tensor, 8, seconds)
        assert not pace.is_slow
    pace.note(rows, 8, 1.0)
    assert pace.is_slow
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    alone = TorchPace()
    alone.note(rows, 8, 1.0)
    assert not alone.is_slow


def test_samples_of_other_shapes_are_refused_as_torch_refuses_them() -> None:
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        next(iter(fl.DataLoader([torch.ones(LONG + 1), torch.ones(LONG + 2)], batch_size=2, num_workers=0)))


def batch_of(samples: list[torch.Tensor]) -> torch.Tensor:
    (batch,) = fl.DataLoader(samples, batch_size=len(samples), num_workers=0)
    return batch  # type: ignore[no-any-return]


@pytest.mark.parametrize("length", [LONG + 1, 8 * LONG])
def test_zeros_that_take_no_memory(length: int) -> None:
    samples = [torch._efficientzerotensor(length) for _ in range(2)]  # type: ignore[attr-defined]
    assert torch.equal(batch_of(samples), torch.zeros(2, length))


@pytest.mark.parametrize("length", [LONG + 1, 8 * LONG])
def test_dual_numbers_keep_their_tangents(length: int) -> None:
    with torch.autograd.forward_ad.dual_level():
        samples = [torch.autograd.forward_ad.make_dual(torch.ones(length), torch.ones(length)) for _ in range(2)]
        tangent = torch.autograd.forward_ad.unpack_dual(batch_of(samples).sum()).tangent
    assert tangent == 2 * length


def test_functions_that_are_transformed() -> None:
    loader = fl.DataLoader([torch.ones(LONG + 1), 2 * torch.ones(LONG + 1)], batch_size=2, num_workers=0)
    next(iter(loader))

    def loss(weight: torch.Tensor) -> torch.Tensor:
        return sum((weight * batch).sum() for batch in loader)  # type: ignore[return-value]

    assert torch.func.grad(loss)(torch.tensor(1.0)) == 3 * (LONG + 1)
    assert torch.func.functionalize(loss)(torch.tensor(1.0)) == 3 * (LONG + 1)  # type: ignore[attr-defined]


def test_a_mode_sees_the_batch_made() -> None:
    class Doubling(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            return result * 2 if function is torch.stack else result

    samples = [torch.ones(LONG + 1) for _ in range(2)]
    with Doubling():
        assert torch.equal(batch_of(samples), default_collate(samples))


def test_a_small_batch_may_be_resized_as_torchs_may() -> None:
    batch = batch_of([torch.ones(LONG + 1) for _ in range(2)])
    assert batch.resize_(3, LONG + 1).shape == (3, LONG + 1)


def test_kinds_of_numbers_that_torch_cannot_stack() -> None:
    with pytest.raises((NotImplementedError, RuntimeError)):
        batch_of([torch.zeros(LONG + 1, dtype=torch.uint8).view(torch.uint4) for _ in range(2)])


def test_code_of_the_users_own_class_does_not_run_for_that() -> None:
    class Own(torch.Tensor):
        def numel(self) -> int:
            raise AssertionError("asked")

    samples = [torch.ones(LONG + 1).as_subclass(Own) for _ in range(2)]
    expected = default_collate(samples)
    got = batch_of(samples)
    assert type(got) is type(expected)
    assert torch.equal(got.as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor))
