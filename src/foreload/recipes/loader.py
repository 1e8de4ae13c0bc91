"""A DataLoader made from a configuration, which measures how fast its batches arrive."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Self, TypeVar

import torch
from torch.utils.data import Dataset, IterableDataset

from foreload.device.prefetch import PrefetchLoader
from foreload.loader import DataLoader
from foreload.recipes.config import DataLoaderConfig, check_config
from foreload.recipes.monitors import DataLoaderPerformanceMonitor
from foreload.record.memory import MemoryMonitor

__all__ = ["EfficientDataLoader"]

T_co = TypeVar("T_co", covariant=True)


class EfficientDataLoader(DataLoader[T_co]):
    """foreload's DataLoader, made from a configuration, which measures how fast its batches arrive.

    Args:
        dataset: any dataset.
        config: the configuration, by default ``DataLoaderConfig()``. The loader copies it, so later changes have
            no effect.
        options: arguments of foreload's DataLoader, such as ``cache=``, ``transform=`` or ``seed=``, which
            override the configuration.

    Attributes:
        config: the loader's copy of the configuration.
        performance_monitor: the :class:`~foreload.DataLoaderPerformanceMonitor` that measures the epochs.
        logger: the logger ``foreload``, which gets a line at each epoch's end.

    Raises:
        TypeError: ``dataset`` is none, or ``config`` is no DataLoaderConfig.
        ValueError, TypeError: an argument makes no sense, as for :class:`~foreload.DataLoader`.

    >>> loader = EfficientDataLoader(list(range(100)), DataLoaderConfig(num_workers=0, generator_seed=0))
    >>> sum(len(batch) for batch in loader), loader.get_stats()["total_batches"]
    (100, 4)
    """

    logger = logging.getLogger("foreload")

    def __init__(self, dataset: Dataset[T_co], config: DataLoaderConfig | None = None, **options: Any) -> None:
        if not hasattr(dataset, "__getitem__") and not isinstance(dataset, Iterable):
            raise TypeError(f"dataset must be map-style or iterable, got {type(dataset).__name__}")
        self.config = config = replace(check_config(config))
        self._measure_anew()
        super().__init__(dataset, **{**_arguments(dataset, config, options), **options})
        if config.memory_efficient:
            self._fl_spare_buffers = 1
        if config.memory_efficient and self.num_workers > 0:
            self.prefetch_factor = 1
            self._fl_deepens = False
            self._fl_prefetch_given = False  # where batches are made together, fewer than one per worker will do

    def _measure_anew(self) -> None:
        memory = MemoryMonitor(self.config.max_memory_usage)
        self.performance_monitor = DataLoaderPerformanceMonitor(memory, watch=self.config.enable_monitoring)
        self._waited = 0.0

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the configuration; what another loader has measured is not this one's."""
        super().__setstate__(state)
        self._measure_anew()

    def __iter__(self) -> Any:
        """Begin an epoch."""
        if not (self.config.enable_monitoring or self.config.log_loading_stats):
            return super().__iter__()
        self.performance_monitor.start_iteration()
        return _Measured(time.perf_counter(), super().__iter__(), self)

    @property
    def dataloader(self) -> Self:
        """The torch DataLoader that makes the batches: this loader itself."""
        return self

    def get_stats(self) -> dict[str, Any]:
        """Return how fast batches arrived, over all epochs so far.

        Returns:
            The figures of :meth:`DataLoaderPerformanceMonitor.get_stats` (``batches_per_second``;
            ``avg_batch_time`` and ``total_time`` in seconds, including the loop's own work; ``avg_memory_usage``
            and ``avg_cpu_usage`` in percent; and more), ``avg_wait_time``, the seconds that the loop waited for
            a batch, and those of :meth:`stats`. Whatever was not measured is 0.
        """
        measured = self.performance_monitor.get_stats()
        waited = self._waited / max(1, measured["total_batches"])
        return {**self.stats(), **measured, "avg_wait_time": waited}

    def to(self, device: torch.device | str) -> PrefetchLoader:
        """Deliver the batches on a device, copied ahead; see :class:`~foreload.PrefetchLoader`."""
        return PrefetchLoader(self, device, self.config.non_blocking)


def _arguments(dataset: Any, config: DataLoaderConfig, options: dict[str, Any]) -> dict[str, Any]:
    """Return the loader's arguments, without those that torch does not allow together with others."""
    sampler = options.get("sampler", config.custom_sampler)
    batch_sampler = options.get("batch_sampler", None if sampler is not None else config.custom_batch_sampler)
    arguments: dict[str, Any] = {
        "num_workers": config.num_workers,
        "collate_fn": config.collate_fn,
        "pin_memory": config.pin_memory and _is_there(config.pin_memory_device),
    }
    if config.generator_seed is not None:
        arguments["generator"] = torch.Generator().manual_seed(config.generator_seed)
    if options.get("num_workers", config.num_workers) != 0:
        arguments["persistent_workers"] = config.persistent_workers
        if not config.memory_efficient:
            arguments["prefetch_factor"] = config.prefetch_factor
    if batch_sampler is not None:
        return {**arguments, "batch_sampler": batch_sampler}
    arguments |= {"batch_size": config.batch_size, "drop_last": config.drop_last}
    if sampler is not None:
        return {**arguments, "sampler": sampler}
    return {**arguments, "shuffle": config.shuffle and not isinstance(dataset, IterableDataset)}


def _is_there(device: str) -> bool:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator is not None and device.partition(":")[0] in ("", accelerator.type)


class _Measured(Iterator[Any]):
    """An epoch whose batches are timed."""

    def __init__(self, begun: float, epoch: Any, loader: EfficientDataLoader[Any]) -> None:
        self._epoch = epoch
        self._loader = loader
        self._begun = begun
        self._waited = 0.0
        self._batches = 0

    def __next__(self) -> Any:
        asked = time.perf_counter()
        try:
            batch = next(self._epoch)
        except StopIteration:
            if self._loader.config.log_loading_stats:
                self._log(asked - self._begun)
            raise
        waited = time.perf_counter() - asked
        self._batches += 1
        self._waited += waited
        self._loader._waited += waited
        self._loader.performance_monitor.update_batch(batch)
        return batch

    def _log(self, seconds: float) -> None:
        self._loader.logger.info(
            "%d batches in %.2f s: %.1f batches/s; the loop waited for them %.0f %% of the time",
            self._batches,
            seconds,
            self._batches / max(seconds, 1e-9),
            100 * self._waited / max(seconds, 1e-9),
        )

    def __len__(self) -> int:
        return len(self._epoch)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_epoch" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._epoch, name)
