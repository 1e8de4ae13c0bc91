"""Batches on a real GPU, ahead of a loop that is slower than the copies."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import TensorDataset

import foreload as fl
from foreload.nested import tensors

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROWS = 64


def rows(width: int = 100_000) -> torch.Tensor:
    return torch.arange(ROWS * width, dtype=torch.float32).view(ROWS, -1)


def slow(batch: torch.Tensor) -> torch.Tensor:
    """Keep the GPU busy for longer than a copy takes, with what depends on the batch."""
    result = batch
    for _ in range(50):
        result = result.sin() + batch
    return result


def loaders(data: torch.Tensor) -> dict[str, Any]:
    dataset = TensorDataset(data)
    return {
        "stock": TorchDataLoader(dataset, batch_size=4),
        "stock, pinned": TorchDataLoader(dataset, batch_size=4, pin_memory=True),
        "stock, workers": TorchDataLoader(dataset, batch_size=4, num_workers=2, pin_memory=True),
        "foreload": fl.DataLoader(dataset, batch_size=4, num_workers=2),
        "foreload, pinned": fl.DataLoader(dataset, batch_size=4, num_workers=2, pin_memory=True),
        "batches": [[part] for part in data.split(4)],
    }


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("kind", list(loaders(torch.zeros(4, 1))))
def test_numbers_are_right_while_the_loop_computes(kind: str, depth: int) -> None:
    data = rows()
    loader = fl.PrefetchLoader(loaders(data)[kind], "cuda", depth=depth)
    for _ in range(3):
        copies, results = [], []
        for (batch,) in loader:
            assert batch.is_cuda
            results.append(slow(batch)[:, :10].clone())
            copies.append(batch[:, :10].clone())
            del batch
        assert torch.equal(torch.cat(copies).cpu(), data[:, :10])
        assert torch.equal(torch.cat(results), slow(data[:, :10].cuda()))


def test_the_loop_may_take_each_batch_on_another_stream() -> None:
    data = rows()
    for native in (False, True):
        dataset = TensorDataset(data)
        loader: Any = fl.PrefetchLoader(TorchDataLoader(dataset, batch_size=4), "cuda")
        if native:
            loader = fl.DataLoader(dataset, batch_size=4, num_workers=2, device="cuda")
        streams = [torch.cuda.Stream() for _ in range(3)]
        found = []
        epoch = iter(loader)
        for number in range(ROWS // 4):
            with torch.cuda.stream(streams[number % 3]):
                (batch,) = next(epoch)
                slow(batch)
                found.append(batch.sum(1))
                del batch
        torch.cuda.synchronize()
        assert torch.allclose(torch.cat(found).cpu().double(), data.double().sum(1), rtol=1e-3)


def test_memory_does_not_grow_with_the_work_that_is_queued() -> None:
    size = 4 << 20
    batches = [torch.zeros(size, dtype=torch.uint8) for _ in range(100)]
    work = torch.randn(4096, 4096, device="cuda")
    loader = fl.PrefetchLoader(batches, "cuda")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in loader:
        work @ work  # queued far faster than it is done
    peak = torch.cuda.max_memory_allocated() - before
    assert peak <= 8 * size + 3 * work.nbytes


def test_epochs_that_are_left_free_their_memory() -> None:
    batches = [torch.zeros(4 << 20, dtype=torch.uint8) for _ in range(10)]
    loader = fl.PrefetchLoader(batches, "cuda")
    sizes = []
    for _ in range(5):
        for _batch in loader:
            break
        del _batch
        gc.collect()
        torch.cuda.synchronize()
        sizes.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    assert len(set(sizes[1:])) == 1  # epochs use the same stream, hence the same memory


def test_everything_that_is_moved_can_be_recorded() -> None:
    dense = torch.tensor([[0.0, 1], [2, 0]])
    parts = [torch.ones(2), torch.ones(3)]
    batch = [
        dense.to_sparse(),
        dense.to_sparse_csr(),
        dense.to_sparse_csc(),
        torch.nested.nested_tensor(parts),
        torch.nested.nested_tensor(parts, layout=torch.jagged),
        torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(1)]),
        torch.zeros(0, 3),
        dense.t(),
        torch.nn.Parameter(dense),
    ]
    (moved,) = fl.PrefetchLoader([batch], "cuda")
    for each, source in zip(moved[:5], batch[:5], strict=True):
        assert each.is_cuda
        assert each.layout == source.layout
    assert all(torch.equal(each.to_dense().cpu(), dense) for each in moved[:3])
    assert torch.equal(moved[7].cpu(), dense.t())
    assert moved[7].stride() == (1, 2)
    assert any(tensor.is_cuda for tensor in tensors(moved[5]))


def test_images_are_normalised_on_the_stream_of_the_copies() -> None:
    images = torch.randint(0, 256, (ROWS, 3, 64, 64), dtype=torch.uint8)
    normalize = fl.transforms.Normalize(dtype=torch.bfloat16, channels_last=True)
    wanted = normalize(images)
    dataset = fl.CachedDataset((images, torch.arange(ROWS)))
    loader = fl.DataLoader(dataset, batch_size=8, num_workers=2, device="cuda", device_transform=normalize)
    for _ in range(3):
        found = []
        for batch, _labels in loader:
            assert batch.is_contiguous(memory_format=torch.channels_last)
            slow(batch)
            found.append(batch.clone())
            del batch
        assert torch.equal(torch.cat(found).cpu(), wanted)


def test_a_fork_leaves_the_parents_epoch_alone() -> None:
    epoch = iter(fl.PrefetchLoader([torch.full((1000,), float(i)) for i in range(5)], "cuda"))
    next(epoch)
    torch.cuda.synchronize()
    next(epoch)  # page-locked memory that copies have used is free now, and must not be freed by the child
    gc.collect()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(RuntimeError, match="in a forked one, begin another epoch"):
                next(epoch)
            del epoch
            gc.collect()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert [batch[0].item() for batch in epoch] == [2, 3, 4]


def test_an_epoch_goes_on_exactly_where_its_state_was_saved() -> None:
    make = lambda: fl.DataLoader(
        torch.arange(64.0), batch_size=4, shuffle=True, seed=0, device="cuda", device_depth=3
    )
    expected = [batch.tolist() for batch in make()]
    loader = make()
    epoch = iter(loader)
    for given in range(5):
        assert next(epoch).tolist() == expected[given]
    again = make()
    again.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in again] == expected[5:]


def test_copies_are_timed_by_the_device() -> None:
    loader = fl.DataLoader(TensorDataset(rows()), batch_size=8, num_workers=2, device="cuda")
    for _ in loader:
        pass
    copied = loader.stats()["stages"]["device"]
    assert (copied["count"], copied["bytes"]) == (8, rows().nbytes)
    assert copied["seconds"] > 0
