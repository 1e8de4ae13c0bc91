"""Loaders in place of those that a program or a framework has made of torch's class."""

from __future__ import annotations

from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import BatchSampler, IterableDataset

from foreload._torch import TorchDataLoader, auto_collates
from foreload.errors import warn_user
from foreload.loader import DataLoader
from foreload.order.own_state import is_same_state

__all__ = ["from_torch"]

_SAME = (
    "dataset collate_fn pin_memory timeout worker_init_fn generator persistent_workers pin_memory_device in_order"
).split()

# The options that loaders were made with.
_made_with: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


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
        # (The Trainer returns the same loader for each evaluation, if its workers are persistent.)
        if not _is_made_with(prepared, options):
            loader.base_dataloader = from_torch(prepared, **options)
        return loader
    if isinstance(loader, DataLoader) or not isinstance(loader, TorchDataLoader):
        raise TypeError(f"loader must be a torch DataLoader that is not foreload's, got {type(loader).__name__}")
    arguments: dict[str, Any] = {name: getattr(loader, name) for name in _SAME if hasattr(loader, name)}
    if options.get("num_workers") == 0:
        arguments.pop("timeout", None)  # for which there must be workers
    if "num_workers" not in options:
        arguments["num_workers"] = loader.num_workers
        arguments["multiprocessing_context"] = loader.multiprocessing_context
        arguments["prefetch_factor"] = loader.prefetch_factor
    if type(loader).__iter__ is not TorchDataLoader.__iter__ and not _is_torchdatas(loader):
        warn_user(
            f"{type(loader).__name__} has an __iter__() of its own, which the foreload loader lacks: derive the "
            "class from foreload.DataLoader to keep it"
        )
    made = DataLoader(**{**arguments, **_batches(loader), **options})
    _made_with[made] = options
    return made


def _is_torchdatas(thing: object) -> bool:
    """Whether the class of an object is torchdata's, which does what torch's does, and has a state."""
    return type(thing).__module__.startswith("torchdata.")


def _is_made_with(loader: Any, options: dict[str, Any]) -> bool:
    """Whether a loader has been made by :func:`from_torch` with these options."""
    made_with = _made_with.get(loader)
    if made_with is None or made_with.keys() != options.keys():
        return False
    return all(_are_same(made_with[name], options[name]) for name in options)


def _are_same(one: Any, other: Any) -> bool:
    """Whether two options are the same; a function may be made anew, by the same code with the same values."""
    if isinstance(one, FunctionType) and isinstance(other, FunctionType):
        held = [
            (
                function.__defaults__,
                function.__kwdefaults__,
                [cell.cell_contents for cell in function.__closure__ or ()],
            )
            for function in (one, other)
        ]
        return one.__code__ is other.__code__ and is_same_state(*held)
    return one is other or is_same_state(one, other)


def _batches(loader: TorchDataLoader[Any]) -> dict[str, Any]:
    """Return the arguments that say which samples make up which batch."""
    plain: dict[str, Any] = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if isinstance(loader.dataset, IterableDataset):
        return plain
    if not auto_collates(loader):
        return {"batch_size": None, "sampler": loader.sampler}
    batches: Any = loader.batch_sampler
    # A loader that was given its batch sampler has no batch size; a derived class may have put another one there.
    is_own = loader.batch_size is not None and (type(batches) is BatchSampler or _is_torchdatas(batches))
    return {**plain, "sampler": batches.sampler} if is_own else {"batch_sampler": batches}
