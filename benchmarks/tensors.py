"""Tensors in memory, 10,000 x 100 float32 and labels, batch 64, shuffled: microseconds per batch, whole loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from common import Record, median, parser, take_turns
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, TensorDataset

import foreload as fl

BATCH = 64
X = torch.randn(10000, 100)
Y = torch.randint(10, (10000,))


class Tokens(Dataset[torch.Tensor]):
    """A user's dataset of 8 KB tensors, as views of one."""

    def __init__(self) -> None:
        self.rows = torch.randint(50_000, (4000, 2048), dtype=torch.int32)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


class Bare:
    """Rows copied by a ready permutation into one buffer, nothing else."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self.tensors = tensors

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(len(X))
        outs = [torch.empty(BATCH, *tensor.shape[1:], dtype=tensor.dtype) for tensor in self.tensors]
        for start in range(0, len(X) - BATCH + 1, BATCH):
            where = order[start : start + BATCH]
            for tensor, out in zip(self.tensors, outs, strict=True):
                torch.index_select(tensor, 0, where, out=out)
            yield outs


def per_batch(loader: Iterable[Any]) -> Callable[[], float]:
    """Microseconds per batch, over five epochs."""

    def run() -> float:
        count = 0
        started = time.perf_counter()
        for _ in range(5):
            for _ in loader:
                count += 1
        return 1e6 * (time.perf_counter() - started) / count

    return run


def main() -> None:
    options = parser(__doc__, 9).parse_args()
    record = Record("tensors")
    arguments: dict[str, Any] = {"batch_size": BATCH, "shuffle": True}
    tokens = Tokens()
    times = take_turns(
        {
            "stock, TensorDataset(x)": per_batch(TorchDataLoader(TensorDataset(X), **arguments)),
            "stock, TensorDataset(x, y)": per_batch(TorchDataLoader(TensorDataset(X, Y), **arguments)),
            "stock, CachedDataset((x, y))": per_batch(TorchDataLoader(fl.CachedDataset((X, Y)), **arguments)),
            "stock, AsyncPrefetchDataset(x, y)": per_batch(
                TorchDataLoader(fl.AsyncPrefetchDataset(TensorDataset(X, Y)), **arguments)
            ),
            "stock, TensorDataset(x, y), batch 1": per_batch(TorchDataLoader(TensorDataset(X, Y), shuffle=True)),
            "stock, CachedDataset((x, y)), batch 1": per_batch(
                TorchDataLoader(fl.CachedDataset((X, Y)), shuffle=True)
            ),
            "foreload, CachedDataset(x)": per_batch(fl.DataLoader(fl.CachedDataset(X), **arguments)),
            "foreload, CachedDataset((x, y))": per_batch(fl.DataLoader(fl.CachedDataset((X, Y)), **arguments)),
            "foreload, TensorDataset(x, y)": per_batch(fl.DataLoader(TensorDataset(X, Y), **arguments)),
            "stock, 8 KB tokens": per_batch(TorchDataLoader(tokens, batch_size=32, shuffle=True)),
            "foreload, 8 KB tokens, no workers": per_batch(
                fl.DataLoader(tokens, batch_size=32, shuffle=True, num_workers=0)
            ),
            "stock, epochs of one batch": per_batch(TorchDataLoader(TensorDataset(X[:BATCH]), **arguments)),
            "foreload, epochs of one batch": per_batch(fl.DataLoader(fl.CachedDataset(X[:BATCH]), **arguments)),
            "bare index_select, x": per_batch(Bare(X)),
            "bare index_select, x and y": per_batch(Bare(X, Y)),
        },
        options.rounds,
    )
    record.samples(times, "us/batch")

    def ratio(slow: str, fast: str) -> float:
        return median(times, slow) / median(times, fast)

    record.verdict("x alone, against stock", ratio("stock, TensorDataset(x)", "foreload, CachedDataset(x)"), 12)
    pair = "foreload, CachedDataset((x, y))"
    record.verdict("x and y, against stock", ratio("stock, TensorDataset(x, y)", pair), 12)
    record.verdict("x alone, of the bare loop", ratio("bare index_select, x", "foreload, CachedDataset(x)"), 0.7)
    record.verdict("x and y, of the bare loop", ratio("bare index_select, x and y", pair), 0.7)
    inside = ratio("stock, TensorDataset(x, y)", "stock, CachedDataset((x, y))")
    record.verdict("CachedDataset inside stock, against TensorDataset", inside, 4)
    single = ratio("stock, TensorDataset(x, y), batch 1", "stock, CachedDataset((x, y)), batch 1")
    record.verdict("CachedDataset inside stock, batches of one, against TensorDataset", single, 1)
    ahead = ratio("stock, TensorDataset(x, y)", "stock, AsyncPrefetchDataset(x, y)")
    record.verdict("AsyncPrefetchDataset inside stock, against TensorDataset", ahead, 1.2)
    drop_in = ratio("stock, 8 KB tokens", "foreload, 8 KB tokens, no workers")
    record.verdict("a user's dataset of 8 KB tensors, against stock", drop_in, 1.3)
    record.write()


if __name__ == "__main__":
    main()
