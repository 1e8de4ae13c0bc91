"""The frozen specification of what a loader needs of its workers in an epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.process import BaseProcess
from typing import Any, Literal, Protocol, get_args

from torch.utils.data import IterableDataset
from torch.utils.data.datapipes.datapipe import IterDataPipe, MapDataPipe

from foreload.batch.spec import BatchSpec
from foreload.cache.budget import MemoryBudget
from foreload.cache.wrappers import has_remote_samples
from foreload.checks import is_instance

__all__ = ["CopyWatch", "CrewSpec", "Workers", "check_left_to_torch", "check_workers", "is_left_to_torch"]

Workers = Literal["auto", "threads", "processes", "ray"]


def check_workers(workers: Any, num_workers: Any, multiprocessing_context: Any) -> Workers:
    """Return ``workers``; raise ValueError or TypeError if these make no sense, alone or together."""
    if workers not in get_args(Workers):
        raise ValueError(f"workers must be 'auto', 'threads', 'processes' or 'ray', got {workers!r}")
    if workers == "ray" and find_spec("ray") is None:
        raise ImportError("workers='ray' needs Ray: pip install ray")
    if workers == "ray" and multiprocessing_context is not None:
        raise ValueError("multiprocessing_context says how processes start; leave it out with workers='ray'")
    if isinstance(num_workers, str):
        if num_workers != "auto":
            raise ValueError(f"num_workers must be an int or 'auto', got {num_workers!r}")
    elif not hasattr(num_workers, "__index__"):
        raise TypeError(f"num_workers must be an int or 'auto', got {num_workers!r}")
    kind: Workers = workers
    return kind


def is_left_to_torch(dataset: Any, context: Any) -> bool:
    """Whether torch's own iterators load: its data pipes, and in workers that only look like processes.

    Args:
        dataset: the user's dataset.
        context: the context of ``multiprocessing``, whose ``Process`` may be a thread; None: torch's.
    """
    if is_instance(dataset, (IterDataPipe, MapDataPipe)):
        return True
    process = getattr(context, "Process", None)
    return isinstance(process, type) and not issubclass(process, BaseProcess)


def check_left_to_torch(options: Sequence[str]) -> None:
    """Raise ValueError if options have been given that torch's own iterators do not have."""
    if options:
        raise ValueError(
            f"{options[0]} has no effect where torch's own code loads: data pipes, and workers of a "
            f"multiprocessing_context whose Process is a thread. Leave {options[0]} out, or put the pipe into a "
            "Dataset or IterableDataset of your own"
        )


class CopyWatch(Protocol):
    """Looks at what samples are made from.

    Attributes:
        differs: a sentence that says what is not the same in this process as in the one that started it; None if
            all is.
        makes: whether what was loaded last has made something where nothing was.
    """

    differs: str | None
    makes: bool

    def sent(self) -> None:
        """Follow tensors that sending them has moved to memory that processes share."""

    def begin(self) -> None:
        """Begin to look in a process that has been forked since this was made."""

    def has_held_lock(self) -> bool:
        """Whether a lock is held by a thread that has not come with a fork to this process."""

    def changed_by_loading(self) -> str | None:
        """Return the name of what loading has changed, once and for ever; None if nothing."""


@dataclass(frozen=True)
class CrewSpec:
    """The workers that a loader needs for an epoch.

    Attributes:
        dataset: the user's dataset.
        view: the dataset as workers see it: through the cache, with the loader's transform.
        batches: how batches are made.
        workers: the kind that the user requested.
        count: the number of workers.
        is_auto: whether their number is left to the loader.
        persistent: whether they outlive an epoch.
        init: ``worker_init_fn``.
        context: the context of ``multiprocessing``; None: torch's.
        prefetch_factor: batches made ahead per worker.
        prefetch_given: whether the user chose ``prefetch_factor``.
        deepens: whether tuning may make more batches ahead.
        reuses_memory: whether memory that samples free is kept for later samples.
        memory: the budget of the cache and the batches made ahead.
    """

    dataset: Any
    view: Any
    batches: BatchSpec
    workers: Workers
    count: int
    is_auto: bool
    persistent: bool
    init: Callable[[int], object] | None
    context: Any
    prefetch_factor: int | None
    prefetch_given: bool
    deepens: bool
    reuses_memory: bool
    memory: MemoryBudget

    @property
    def is_stream(self) -> bool:
        """Whether the dataset is iterable."""
        return is_instance(self.dataset, IterableDataset)

    @property
    def is_tuned(self) -> bool:
        """Whether the number of workers may change: it is left to the loader, and does not change samples."""
        is_free = self.init is None and not self.is_stream and self.workers != "ray"
        return self.is_auto and is_free and not has_remote_samples(self.dataset)
