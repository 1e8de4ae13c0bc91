"""The state of MosaicML's ``StreamingDataset``, which is told how many samples of it were given."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["is_streaming", "load_streaming_state", "streaming_state"]


def is_streaming(dataset: Any) -> bool:
    """Whether it is one.

    >>> is_streaming([1, 2])
    False
    """
    library = sys.modules.get("streaming")
    kind = getattr(library, "StreamingDataset", None)
    return kind is not None and isinstance(dataset, kind)


def streaming_state(dataset: Any, samples: int, epoch: int) -> dict[str, Any]:
    """Give its state, as its own ``StreamingDataLoader`` does it: all ranks are as far.

    Args:
        dataset: whose.
        samples: so many were given on this rank, from where the epoch was begun.
        epoch: its ``next_epoch`` before that.
    """
    from streaming.base.world import World

    given = samples * World.detect().num_ranks // (dataset.replication or 1)
    state: dict[str, Any] = dataset.state_dict(given, False)
    if state["epoch"] < epoch:  # nobody has asked it for a sample of this epoch yet
        return {**state, "epoch": epoch, "sample_in_epoch": 0}
    return state


def load_streaming_state(dataset: Any, state: dict[str, Any], *, finished: bool) -> None:
    """Let its next iteration go on there, or begin the next epoch if that one is ``finished``."""
    if finished:
        state = {**state, "epoch": state["epoch"] + 1, "sample_in_epoch": 0}
    dataset.load_state_dict(state)
