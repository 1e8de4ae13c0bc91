"""Memory of batches in torch's own workers: used again once nobody has it, and not before."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import foreload as fl
from foreload.batch import buffers as module
from foreload.batch.buffers import WorkerMemory

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")

ROWS = torch.rand(64, 16_000)


def file_of(tensor: torch.Tensor) -> int:
    """The number of the file that a tensor is over."""
    file, _ = tensor.untyped_storage()._share_fd_cpu_()
    return os.fstat(file).st_ino


def sent(memory: WorkerMemory, value: float, shape: tuple[int, ...] = (300, 300)) -> torch.Tensor:
    return memory.handed_over(memory.take(shape, torch.float32).fill_(value))


def test_a_batch_that_is_gone_lends_its_memory_to_the_next() -> None:
    memory = WorkerMemory()
    first = sent(memory, 1)
    number = file_of(first)
    assert first.is_shared()
    assert first.eq(1).all()
    view = first[3]
    del first
    second = sent(memory, 2)
    assert file_of(second) != number
    assert view.eq(1).all()
    del view
    assert file_of(sent(memory, 3)) == number
    assert second.eq(2).all()


def test_a_batch_that_a_child_or_a_message_has_is_left_alone() -> None:
    memory = WorkerMemory()
    batch = sent(memory, 1)
    number = file_of(batch)
    message = os.dup(batch.untyped_storage()._share_fd_cpu_()[0])  # as it is sent: a file, and no tensor
    del batch
    assert file_of(sent(memory, 2)) != number
    os.close(message)

    batch = sent(memory, 3)
    number = file_of(batch)
    array = batch.numpy()
    go, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        os.read(go, 1)
        os._exit(0 if (array == 3).all() else 1)  # not by torch, whose threads a child has not
    del batch, array
    others = [sent(memory, 4), sent(memory, 5)]
    assert number not in map(file_of, others)
    os.close(told)
    assert os.waitpid(child, 0)[1] == 0
    assert file_of(sent(memory, 6)) == number


def test_memory_that_is_written_to_is_not_lent_twice() -> None:
    memory = WorkerMemory()
    written = memory.take((300, 300), torch.float32).fill_(1)
    other = memory.take((300, 300), torch.float32).fill_(2)
    assert written.eq(1).all()
    handed = memory.handed_over(written)
    del written
    third = memory.take((300, 300), torch.float32).fill_(3)
    assert handed.eq(1).all()
    assert other.eq(2).all()
    assert third.eq(3).all()


def test_strides_and_dtype_stay() -> None:
    memory = WorkerMemory()
    plain = memory.take((2 * 300 * 300 * 3,), torch.float16).view(2, 300, 300, 3).permute(0, 3, 1, 2)
    plain.copy_(torch.rand(2, 3, 300, 300))
    handed = memory.handed_over(plain)
    assert handed.stride() == plain.stride()
    assert handed.dtype == torch.float16
    assert torch.equal(handed, plain)
    assert handed.untyped_storage().nbytes() == plain.untyped_storage().nbytes()


def test_batches_that_are_kept_or_of_many_sizes_do_not_pile_up_files() -> None:
    memory = WorkerMemory()
    kept = [sent(memory, value) for value in range(40)]
    assert len(memory._files) <= 16
    assert all(batch.eq(value).all() for value, batch in enumerate(kept))
    for side in range(300, 1500, 50):
        assert sent(memory, side, (side, side)).eq(side).all()
        assert len(memory._files) <= 16


def test_small_batches_and_other_strategies_get_new_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = WorkerMemory()
    assert sent(memory, 1, (3, 3)).is_shared()
    assert memory.take((0, 3), torch.float32).shape == (0, 3)
    monkeypatch.setattr(torch.multiprocessing, "get_sharing_strategy", lambda: "file_system")
    monkeypatch.setattr(module, "new_shared_tensor", lambda shape, dtype: torch.empty(shape, dtype=dtype))
    assert sent(memory, 1).eq(1).all()
    assert memory._files == []


@pytest.mark.parametrize("answer", ["refused", "always"])
def test_without_leases_that_tell_who_has_a_file_each_batch_is_in_new_memory(
    monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    real = fcntl.fcntl

    def fake(file: int, command: int, *arguments: Any) -> Any:
        if command != fcntl.F_SETLEASE:
            return real(file, command, *arguments)
        if answer == "refused":
            raise OSError(22, "Invalid argument")
        return 0

    monkeypatch.setattr(fcntl, "fcntl", fake)
    module._has_leases.cache_clear()
    try:
        memory = WorkerMemory()
        first, second = sent(memory, 1), sent(memory, 2)
        assert memory._files == []
        assert first.eq(1).all()
        assert second.eq(2).all()
    finally:
        module._has_leases.cache_clear()


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_torchs_workers_use_memory_again_and_change_no_batch_that_is_held(photos: Path, context: str) -> None:
    images = fl.ImageDataset(photos, transform=fl.transforms.val(160))
    rows = fl.CachedDataset((ROWS, torch.arange(64)))
    for dataset in (images, rows):
        expected = list(torch.utils.data.DataLoader(dataset, 8))
        loader = torch.utils.data.DataLoader(
            dataset,
            8,
            num_workers=2 if context == "fork" else 1,
            persistent_workers=True,
            multiprocessing_context=context,
        )
        held, files = [], set()
        for epoch in range(4):
            for number, batch in enumerate(loader):
                files.add(file_of(batch[0]))
                assert torch.equal(batch[0], expected[number][0])
                if (epoch + number) % 3 == 0:
                    held.append((number, batch))
                    del held[:-3]
                for earlier, kept in held:
                    assert torch.equal(kept[0], expected[earlier][0])
                    assert torch.equal(kept[1], expected[earlier][1])
        # Three are held; four times as many are made as there are.
        assert len(files) < len(expected) * 2
