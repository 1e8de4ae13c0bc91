"""Loaders in place of those that a program or a framework has made of torch's class."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

from foreload._torch import auto_collates
from foreload.loader import DataLoader

__all__ = ["from_torch"]

_SAME = (
    "dataset collate_fn pin_memory timeout worker_init_fn generator persistent_workers pin_memory_device in_order"
).split()


def from_torch(loader: Any, **options: Any) -> Any:
    """Return a :class:`foreload.DataLoader` with the arguments, the samples and the order of one of torch's.

    For loaders that are made elsewhere, such as in the Trainer of ``transformers``.

    Args:
        loader: a torch DataLoader. If Accelerate has prepared it, the loader within that is replaced, and the
            result of Accelerate is returned.
        options: further arguments for :class:`foreload.DataLoader`, or others than the loader has.

    Raises:
        TypeError: ``loader`` is no torch DataLoader, or one of foreload's already.

    >>> from torch.utils.data import DataLoader
    >>> loader = from_torch(DataLoader(range(5), batch_size=2, drop_last=True), cache="1MiB")
    >>> type(loader).__module__, [batch.tolist() for batch in loader]
    ('foreload.loader', [[0, 1], [2, 3]])
    """
    prepared = vars(loader).get("base_dataloader") if hasattr(loader, "__dict__") else None
    if prepared is not None:
        loader.base_dataloader = from_torch(prepared, **options)
        return loader
    if isinstance(loader, DataLoader) or not isinstance(loader, TorchDataLoader):
        raise TypeError(f"loader must be a torch DataLoader that is not foreload's, got {type(loader).__name__}")
    arguments: dict[str, Any] = {name: getattr(loader, name) for name in _SAME if hasattr(loader, name)}
    if "num_workers" not in options:
        arguments["num_workers"] = loader.num_workers
        arguments["multiprocessing_context"] = loader.multiprocessing_context
        arguments["prefetch_factor"] = loader.prefetch_factor
    return DataLoader(**{**arguments, **_batches(loader), **options})


def _batches(loader: TorchDataLoader[Any]) -> dict[str, Any]:
    """Return the arguments that say which samples make up which batch."""
    plain: dict[str, Any] = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if isinstance(loader.dataset, IterableDataset):
        return plain
    if not auto_collates(loader):
        return {"batch_size": None, "sampler": loader.sampler}
    batches: Any = loader.batch_sampler
    # (A loader that was given its batch sampler has no batch size.)
    return {"batch_sampler": batches} if loader.batch_size is None else {**plain, "sampler": batches.sampler}
