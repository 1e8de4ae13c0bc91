"""Rows of a Ray Data dataset, with random access."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from foreload.batch.collated import own_getitems
from foreload.checks import Indices, check_index, inherits
from foreload.datasets.stream import runs_of
from foreload.options import Keep
from foreload.protocol import BlockStorage

__all__ = ["RayDataset", "from_ray_dataset"]

Row = dict[str, Any]

# Blocks that a process keeps hold of. They are in the memory of Ray's object store, not copied.
_OPEN_BLOCKS = 8


def from_ray_dataset(dataset: Any) -> RayDataset:
    """Return the rows of a ``ray.data.Dataset`` as a map-style dataset, in a fixed order.

    What Ray Data is to do (reading, ``map_batches`` and so on) is done once, now: its blocks are then in the
    object store of the cluster, which spills to disk what does not fit. A loader has the rest: order and
    shuffling, random transforms, ranks, and the point at which to go on. ``fl.Stream(rows)`` shuffles by blocks
    instead, which fetches each block about once.

    Args:
        dataset: the dataset; a ``MaterializedDataset`` is taken as it is.

    Raises:
        TypeError: it is not a dataset of Ray Data.

    Ray must be running, or is started:

    >>> import ray.data  # doctest: +SKIP
    >>> rows = from_ray_dataset(ray.data.range(100))  # doctest: +SKIP
    >>> len(rows), rows[7]  # doctest: +SKIP
    (100, {'id': 7})
    """
    return RayDataset(dataset)


class RayDataset(Dataset[Row], BlockStorage):
    """The rows of a dataset of Ray Data; see :func:`foreload.from_ray_dataset`.

    A sample is a dict from column to value, as Ray Data gives it: numbers and strings, and arrays that are the
    sample's own. Blocks are fetched from the object store when they are needed, by any process of the cluster.
    """

    def __init__(self, dataset: Any) -> None:
        if not (hasattr(dataset, "materialize") and hasattr(dataset, "iter_internal_ref_bundles")):
            raise TypeError(f"dataset must be a ray.data.Dataset, got {type(dataset).__name__}")
        blocks = [block for block in _blocks(_materialized(dataset)) if block[2] > block[1]]
        self._references = [reference for reference, _, _ in blocks]
        self._begins = [begin for _, begin, _ in blocks]
        self._starts: Indices = np.cumsum([0, *(end - begin for _, begin, end in blocks)], dtype=np.int64)
        self._open: OrderedDict[int, Any] = OrderedDict()

    def __len__(self) -> int:
        """Count the rows."""
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> Row:
        """Load one row."""
        return self._load([index])[0]

    @own_getitems
    def __getitems__(self) -> Callable[[Sequence[int]], list[Row]] | None:
        """Load several rows, those of a block together; None if a subclass loads rows itself."""
        return self._load if inherits(self, RayDataset, "__getitem__") else None

    def _load(self, indices: Sequence[int]) -> list[Row]:
        places = [self._place(index) for index in indices]
        rows: dict[int, Row] = {}
        for block in dict.fromkeys(block for block, _ in places):
            positions = [position for position, (other, _) in enumerate(places) if other == block]
            taken = self._take(block, [places[position][1] for position in positions])
            rows |= zip(positions, taken, strict=True)
        return [rows[position] for position in range(len(places))]

    def _place(self, index: int) -> tuple[int, int]:
        """Return the block of a row, and the row's place in that."""
        position = check_index(index, int(self._starts[-1]), "rows")  # a subclass may have another length
        block = bisect_right(self._starts, position) - 1
        return block, position - int(self._starts[block]) + self._begins[block]

    def _take(self, number: int, rows: list[int]) -> list[Row]:
        from ray.data.block import BlockAccessor

        taken = BlockAccessor.for_block(self._block(number)).take(rows)
        return [
            {name: _own(value) for name, value in row.items()}
            for row in BlockAccessor.for_block(taken).iter_rows(public_row_format=True)
        ]

    def _block(self, number: int) -> Any:
        import ray
        from ray.data.block import BlockAccessor

        block = self._open.pop(number, None)
        if block is None:
            # Ray Data makes Arrow's tables of blocks of pandas before it gives out rows, so None is not NaN there.
            block = BlockAccessor.batch_to_block(ray.get(self._references[number]))
            while len(self._open) >= _OPEN_BLOCKS:
                self._open.popitem(last=False)
        self._open[number] = block
        return block

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the references to the blocks, not what is in them."""
        return {**self.__dict__, "_open": OrderedDict()}

    def prepare_sample(self, index: int, keep: Keep = "auto") -> Row:
        """Load one row, for the cache."""
        return self._load([index])[0]

    def finish_sample(self, index: int, prepared: Row) -> Row:
        """Return the row."""
        return prepared

    def storage_blocks(self, size: int) -> Indices:
        """Return the first row of each block, and of each run of ``size`` rows in larger ones."""
        starts = self._starts
        runs = [runs_of(int(begin), int(end), size) for begin, end in pairwise(starts)]
        return np.concatenate(runs) if runs else np.zeros(0, np.int64)

    def read_many(self, indices: Sequence[int]) -> Sequence[Row]:
        """Load several neighbours."""
        return self._load(indices)


def _materialized(dataset: Any) -> Any:
    """Return the dataset with its blocks made, in the order in which they were read."""
    options = dataset.context.execution_options
    before, options.preserve_order = options.preserve_order, True
    try:
        return dataset.materialize()
    finally:
        options.preserve_order = before


def _blocks(dataset: Any) -> Iterator[tuple[Any, int, int]]:
    """Yield the reference to each block, and its first and last row, the latter exclusive."""
    for bundle in dataset.iter_internal_ref_bundles():
        slices = getattr(bundle, "slices", None) or [None] * len(bundle.blocks)
        for entry, part in zip(bundle.blocks, slices, strict=True):
            reference, metadata = (entry.ref, entry.metadata) if hasattr(entry, "ref") else entry
            yield (
                (reference, 0, metadata.num_rows)
                if part is None
                else (
                    reference,
                    part.start_offset,
                    part.end_offset,
                )
            )


def _own(value: Any) -> Any:
    """Return an array that may be written to; Arrow's may not."""
    return value.copy() if isinstance(value, np.ndarray) and not value.flags.writeable else value
