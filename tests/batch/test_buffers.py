"""Memory of batches is used again, and never while anyone holds the batch."""

from __future__ import annotations

import gc
import random
import warnings
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, default_collate
from torch.utils.data._utils import collate as torch_collate

import foreload as fl
from foreload.batch import buffers as module
from foreload.batch.buffers import Buffers

warnings.filterwarnings("ignore", message="This DataLoader will create")


class Filled(Dataset[Any]):
    """Large enough for buffers to be borrowed by threads, or by the calling thread if ``rows`` says so."""

    def __init__(self, rows: int = 96) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((self.rows, 128), float(index)), index


HOLD = {
    "batch": lambda x: x,
    "row": lambda x: x[0],
    "slice": lambda x: x[:, 3:5],
    "array": lambda x: x.numpy(),
    "row of array": lambda x: x.numpy()[0],
    "storage": lambda x: x.untyped_storage(),
    "detached": lambda x: x.detach().view(-1),
    "dlpack": lambda x: torch.from_dlpack(x),
}


def contents(held: Any, dtype: torch.dtype) -> set[float]:
    if isinstance(held, torch.UntypedStorage):
        held = torch.empty(0, dtype=dtype).set_(held)
    return set(torch.as_tensor(held).flatten().unique().tolist())


@pytest.mark.slow
@given(
    seed=st.integers(0, 10**6),
    workers=st.sampled_from([0, 1, 2, 3]),
    source=st.sampled_from(["python", "cached"]),
    batch_size=st.integers(1, 7),
)
def test_what_is_held_is_never_overwritten(seed: int, workers: int, source: str, batch_size: int) -> None:
    rng = random.Random(seed)
    dataset: Any = Filled()
    if source == "cached":
        dataset = fl.CachedDataset(dataset, share=False)
    loader = fl.DataLoader(
        dataset, batch_size=batch_size, shuffle=True, seed=seed, num_workers=workers, workers="threads"
    )
    held: list[tuple[Any, set[float]]] = []
    for _ in range(4):
        for x, y in loader:
            if rng.random() < 0.4:
                kind = rng.choice(sorted(HOLD))
                part = HOLD[kind](x)
                expected = {float(y[0])} if kind.startswith("row") else set(y.float().tolist())
                held.append((part, expected))
            elif held and rng.random() < 0.5:
                held.pop(rng.randrange(len(held)))
            del x, y
    for part, expected in held:
        assert contents(part, torch.float32) == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_memory_is_used_again(workers: int) -> None:
    # Smaller batches of the calling thread are left to torch's allocator, which promises nothing.
    loader = fl.DataLoader(Filled(1024), batch_size=3, num_workers=workers, workers="threads")
    addresses = []
    for _ in range(5):
        for x, _ in loader:
            addresses.append(x.data_ptr())
    assert len(addresses) == 40
    assert len(set(addresses)) <= 10


def test_images_are_assembled_in_memory_that_is_used_again(photos: Any) -> None:
    dataset = fl.ImageDataset(photos, transform=fl.transforms.train(64))
    for workers in (0, 2):
        loader = fl.DataLoader(dataset, batch_size=10, num_workers=workers, seed=0)
        kept = next(iter(loader))[0]
        copy = kept.clone()
        addresses = {x.data_ptr() for _ in range(6) for x, _ in loader}
        assert kept.data_ptr() not in addresses
        assert len(addresses) <= 5
        assert torch.equal(kept, copy)


def test_closing_and_collecting_lets_memory_go() -> None:
    loader = fl.DataLoader(Filled(), batch_size=3, num_workers=2, workers="threads")
    kept = next(iter(loader))[0]
    loader.close()
    assert loader._fl_open.buffers is None
    copy = kept.clone()
    del loader
    gc.collect()
    assert torch.equal(kept, copy)


def test_no_more_free_buffers_are_kept_than_told() -> None:
    buffers = Buffers(keep=2)
    tensors = [buffers.take((1000,), torch.float32) for _ in range(10)]
    del tensors
    buffers.take((1000,), torch.float32)
    (free,) = buffers._free.values()
    assert len(free) <= 3


def test_memory_of_batches_with_many_parts_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    lender, allocate = Buffers(keep=2), module._allocate

    def counted(size: int) -> Any:
        made.append(size)
        return allocate(size)

    monkeypatch.setattr(module, "_allocate", counted)
    batches: deque[list[torch.Tensor]] = deque(maxlen=3)
    for number in range(20):
        batches.append([lender.take((1000 * part,), torch.float32) for part in range(1, 6)])
        if number == 3:
            made.clear()
    assert made == []


def test_batches_that_are_all_different_do_not_pile_up_memory() -> None:
    lender = Buffers(keep=2)
    held: deque[torch.Tensor] = deque(maxlen=3)
    for size in range(1000, 101_000, 1000):
        held.append(lender.take((size,), torch.float32))
        assert sum(map(len, lender._free.values())) <= 5


def test_batches_of_ever_different_sizes_do_not_pile_up_memory_either_when_sizes_come_again() -> None:
    rng = random.Random(0)
    lender = Buffers(keep=8)
    held: deque[torch.Tensor] = deque(maxlen=4)
    for _ in range(5000):
        held.append(lender.take((rng.randint(1, 65536),), torch.float32))
        assert sum(map(len, lender._free.values())) <= 9


def test_memory_that_is_lent_in_bursts_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    allocate = module._allocate

    def counted(size: int) -> Any:
        made.append(size)
        return allocate(size)

    monkeypatch.setattr(module, "_allocate", counted)
    lender = Buffers(keep=8)
    for burst in range(5):
        held = [lender.take((1000,), torch.float32) for _ in range(30)]
        del held
        if burst == 2:
            made.clear()
    assert made == []


def test_any_dtype_and_shape_can_be_borrowed() -> None:
    buffers = Buffers()
    for dtype in (torch.uint8, torch.bool, torch.bfloat16, torch.float64, torch.complex64):
        for shape in ((), (0,), (3, 0, 2), (5,), (2, 3, 4)):
            tensor = buffers.take(shape, dtype)
            assert tensor.shape == shape
            assert tensor.dtype == dtype
            tensor.zero_()


def test_every_batch_has_a_storage_of_its_own() -> None:
    data = fl.CachedDataset(torch.arange(1000.0).view(100, 10))
    batches = list(fl.DataLoader(data, batch_size=10))
    assert [batch.untyped_storage().nbytes() for batch in batches] == [400] * 10


def _is_shared(samples: Any) -> Any:
    batch = default_collate(samples)
    return batch, [tensor.is_shared() for tensor in batch]


@pytest.mark.parametrize("workers", [0, 1])
def test_torchs_workers_hand_over_batches_without_a_copy(
    photos: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = fl.ImageDataset(photos, transform=fl.transforms.val(64))
    rows = fl.CachedDataset((torch.rand(64, 3000), torch.arange(64)))
    for dataset in (images, rows):
        expected = list(torch.utils.data.DataLoader(dataset, 16))
        with monkeypatch.context() as patched:  # what is seen to collate must be the default
            patched.setattr(torch_collate, "default_collate", _is_shared)
            found = list(torch.utils.data.DataLoader(dataset, 16, num_workers=workers))
        for (batch, shared), other in zip(found, expected, strict=True):
            assert shared == [workers > 0, False]
            assert all(torch.equal(ours, plain) for ours, plain in zip(batch, other, strict=True))
