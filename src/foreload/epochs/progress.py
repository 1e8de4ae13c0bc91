"""The progress of an epoch: how many of its batches are over, how many it has, and whether those are too many."""

from __future__ import annotations

import weakref
from typing import Any

from foreload._torch import expected_length
from foreload.epochs.cursor import Cursor
from foreload.errors import warn_user
from foreload.record.recorder import Watch

__all__ = ["warn_of_length", "watch_progress"]


def watch_progress(watch: Watch, loader: Any, cursor: Cursor, before: Cursor | None) -> None:
    """Let the watch of an epoch that begins tell its progress.

    Args:
        watch: of the epoch.
        loader: the DataLoader.
        cursor: the position in the epoch.
        before: the position in the epoch before it, if there was one.
    """
    # Now, and in this thread: the sampler's length may be what the user's dataset says.
    length = cursor.length
    if length is None:
        length = _stream_length(loader)
    expected = None if before is None or not before.finished else before.num_over
    # The loader, or the epoch while it is open, has the cursor. It has the dataset, which goes with the loader.
    place = weakref.ref(cursor)

    def progress() -> tuple[int, int | None, int | None]:
        now = place()
        return 0 if now is None else now.num_over, length, expected

    watch.number, watch.progress = cursor.epoch, progress


def warn_of_length(dataset: Any, expected: int | None, num_delivered: int, workers: int) -> None:
    """Warn in torch's words, which users search for and filter by, if a stream yields more than its length."""
    cause = (
        "For multiprocessing data-loading, this could be caused by not properly configuring the IterableDataset "
        "replica at each worker. Please see "
        "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
    )
    if expected is not None and num_delivered > expected:
        warn_user(
            f"Length of IterableDataset {dataset} was reported to be {expected} (when accessing "
            f"len(dataloader)), but {num_delivered} samples have been fetched. " + (cause if workers else "")
        )


def _stream_length(loader: Any) -> int | None:
    """Return the batches of a stream, if ``len(loader)`` was called."""
    samples = expected_length(loader)
    size: int | None = loader.batch_size
    if samples is None or size is None:
        return samples
    return samples // size if loader.drop_last else -(-samples // size)
