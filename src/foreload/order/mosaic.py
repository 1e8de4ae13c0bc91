"""Checkpoints of MosaicML's ``StreamingDataset``."""

from __future__ import annotations

import sys
from typing import Any

from foreload.checks import check_state_int

__all__ = ["is_streaming", "load_streaming_state", "streaming_state"]


def is_streaming(dataset: Any) -> bool:
    """Whether a dataset is a ``StreamingDataset``.

    >>> is_streaming([1, 2])
    False
    """
    library = sys.modules.get("streaming")
    kind = getattr(library, "StreamingDataset", None)
    return kind is not None and isinstance(dataset, kind)


def streaming_state(dataset: Any, samples: int, epoch: int) -> dict[str, Any]:
    """Return the state of a dataset as ``StreamingDataLoader`` does, with all ranks at the same point.

    Args:
        dataset: a ``StreamingDataset``.
        samples: delivered on this rank since its iteration began.
        epoch: its ``next_epoch`` before that.
    """
    from streaming.base.world import World

    given = samples * World.detect().num_ranks // (dataset.replication or 1)
    state: dict[str, Any] = dataset.state_dict(given, False)
    if state["epoch"] < epoch:  # no sample of this epoch has been requested yet
        return {**state, "epoch": epoch, "sample_in_epoch": 0}
    return state


def load_streaming_state(dataset: Any, state: dict[str, Any], *, finished: bool) -> None:
    """Resume the next iteration at this state, or begin the next epoch if that one is ``finished``."""
    if not isinstance(state, dict):
        raise ValueError(f"the state's 'dataset' must be that of a StreamingDataset, got {type(state).__name__}")
    if finished:
        epoch = check_state_int("epoch", state.get("epoch"), -1, 1 << 63)
        state = {**state, "epoch": epoch + 1, "sample_in_epoch": 0}
    dataset.load_state_dict(state)
