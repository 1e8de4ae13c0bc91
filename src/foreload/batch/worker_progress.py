"""The state of a worker's copy of a dataset, and what the worker has delivered since."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from foreload.batch.failure import EpochErrors
from foreload.order.own_state import has_state, require_taken, state_of

__all__ = ["BEGUN", "StatefulSamples", "WorkerProgress", "is_due"]


@dataclass(frozen=True)
class WorkerProgress:
    """The progress of one worker in an epoch.

    Attributes:
        since: batches that it has delivered since its dataset's state was taken, or since the epoch began.
        state: the state of its dataset and of the iterator over that; None: as they are without one.
        replay: for a map-style dataset, the indices of the batches since.
    """

    since: int = 0
    state: Any = None
    replay: tuple[Any, ...] = ()

    def after(self, state: Any, indices: Any = None) -> WorkerProgress:
        """Return the progress after one more batch, with the state after it if that was taken."""
        if state is not None and "dataset" in state:
            return WorkerProgress(0, state)
        if state is not None:  # of a StreamingDataset, which is read anew by a worker that replaces another
            return WorkerProgress(self.since + 1, state)
        return WorkerProgress(
            self.since + 1, self.state, self.replay if indices is None else (*self.replay, indices)
        )


BEGUN = WorkerProgress()


def is_due(batch: int, workers: int, every: int) -> bool:
    """Whether a worker takes its dataset's state after its batch number ``batch``, counted from 1.

    The workers together deliver about ``every`` batches between two states of each; 0: none is taken.
    """
    return every > 0 and batch * workers // every > (batch - 1) * workers // every


class StatefulSamples:
    """A map-style dataset of a user's own that has a state.

    Args:
        dataset: the dataset.
        progress: how far it has come.
        load: loads a batch of samples, to bring the dataset where it was.
        arrays: whether ``load`` takes indices as arrays.
        errors: where samples that fail are recorded.
    """

    def __init__(
        self,
        dataset: Any,
        progress: WorkerProgress,
        load: Callable[[Any], Any],
        *,
        arrays: bool,
        errors: EpochErrors,
    ) -> None:
        self._dataset = dataset
        require_taken(progress.state)
        if progress.state is not None and progress.state["dataset"] is not None:
            dataset.load_state_dict(copy.deepcopy(progress.state["dataset"]))
        with errors.unrecorded():
            for indices in progress.replay:
                wanted = np.array(indices, np.int64) if arrays else indices
                try:
                    load(wanted)
                except Exception:  # the loop got it at the time, and went on
                    continue

    @staticmethod
    def of(
        dataset: Any,
        progress: WorkerProgress,
        load: Callable[[Any], Any],
        *,
        arrays: bool,
        errors: EpochErrors,
    ) -> StatefulSamples | None:
        """Return the dataset with its state restored; None if it has none."""
        if not has_state(dataset):
            return None
        return StatefulSamples(dataset, progress, load, arrays=arrays, errors=errors)

    def state(self) -> dict[str, Any]:
        """Return the state of the dataset, as a copy that later samples do not change."""
        return {"dataset": state_of(self._dataset), "iterator": None}
