"""A PyTorch DataLoader that plans ahead, because the order of samples is known before an epoch begins.

>>> import torch, foreload as fl
>>> loader = fl.DataLoader(fl.CachedDataset(torch.arange(10)), batch_size=5, shuffle=True, seed=0)
>>> sum(len(batch) for batch in loader)
10
"""

import gc
import importlib
from typing import TYPE_CHECKING, Any

# A garbage collection takes longer than these imports, since it looks through all that torch has made.
_collects_garbage = gc.isenabled()
gc.disable()
try:
    from foreload.loader import DataLoader
    from foreload.options import Cache, LoadingMode
    from foreload.order.skip import Skip
finally:
    if _collects_garbage:
        gc.enable()

if TYPE_CHECKING:
    from foreload import errors, export, transforms
    from foreload.cache.lru import LRUCache, cached
    from foreload.cache.opt import OPTCache, OPTInit
    from foreload.datasets import packing
    from foreload.datasets.auto import MemoryEfficientDataset
    from foreload.datasets.base import BaseDataset
    from foreload.datasets.files import FileDataset
    from foreload.datasets.hdf5 import HDF5Dataset
    from foreload.datasets.images.arrays import ImageArrayDataset
    from foreload.datasets.images.dataset import ImageDataset
    from foreload.datasets.mds import MDSDataset
    from foreload.datasets.mixture import Mixture
    from foreload.datasets.parquet import ParquetDataset
    from foreload.datasets.prefetch import AsyncPrefetchDataset
    from foreload.datasets.ray import from_ray_dataset
    from foreload.datasets.stream import Stream
    from foreload.datasets.tar import TarDataset
    from foreload.datasets.tar.pack import pack
    from foreload.datasets.tar.stream import TarStream
    from foreload.datasets.tensors import CachedDataset, gather
    from foreload.datasets.text import TextDataset
    from foreload.device.prefetch import PrefetchLoader
    from foreload.recipes.collate import CustomCollateFn
    from foreload.recipes.config import DataLoaderConfig
    from foreload.recipes.factory import DataLoaderFactory, HighPerformanceDataset, create_dataloader
    from foreload.recipes.from_torch import from_torch
    from foreload.recipes.loader import EfficientDataLoader
    from foreload.recipes.monitors import DataLoaderPerformanceMonitor
    from foreload.record.memory import MemoryMonitor
    from foreload.transforms import get_train_transforms, get_val_transforms
    from foreload.workers.thread_check.check import check_threads

__version__ = "0.1.0"

__all__ = [
    "AsyncPrefetchDataset",
    "BaseDataset",
    "Cache",
    "CachedDataset",
    "CustomCollateFn",
    "DataLoader",
    "DataLoaderConfig",
    "DataLoaderFactory",
    "DataLoaderPerformanceMonitor",
    "EfficientDataLoader",
    "FileDataset",
    "HDF5Dataset",
    "HighPerformanceDataset",
    "ImageArrayDataset",
    "ImageDataset",
    "LRUCache",
    "LoadingMode",
    "MDSDataset",
    "MemoryEfficientDataset",
    "MemoryMonitor",
    "Mixture",
    "OPTCache",
    "OPTInit",
    "ParquetDataset",
    "PrefetchLoader",
    "Skip",
    "Stream",
    "TarDataset",
    "TarStream",
    "TextDataset",
    "cached",
    "check_threads",
    "create_dataloader",
    "errors",
    "export",
    "from_ray_dataset",
    "from_torch",
    "gather",
    "get_train_transforms",
    "get_val_transforms",
    "pack",
    "packing",
    "transforms",
]

# The module of each name that is imported when it is first used, since an epoch needs none of them.
_MODULES = {
    "AsyncPrefetchDataset": "foreload.datasets.prefetch",
    "BaseDataset": "foreload.datasets.base",
    "CachedDataset": "foreload.datasets.tensors",
    "CustomCollateFn": "foreload.recipes.collate",
    "DataLoaderConfig": "foreload.recipes.config",
    "DataLoaderFactory": "foreload.recipes.factory",
    "DataLoaderPerformanceMonitor": "foreload.recipes.monitors",
    "EfficientDataLoader": "foreload.recipes.loader",
    "FileDataset": "foreload.datasets.files",
    "HDF5Dataset": "foreload.datasets.hdf5",
    "HighPerformanceDataset": "foreload.recipes.factory",
    "ImageArrayDataset": "foreload.datasets.images.arrays",
    "ImageDataset": "foreload.datasets.images.dataset",
    "LRUCache": "foreload.cache.lru",
    "MDSDataset": "foreload.datasets.mds",
    "MemoryEfficientDataset": "foreload.datasets.auto",
    "MemoryMonitor": "foreload.record.memory",
    "Mixture": "foreload.datasets.mixture",
    "OPTCache": "foreload.cache.opt",
    "OPTInit": "foreload.cache.opt",
    "ParquetDataset": "foreload.datasets.parquet",
    "PrefetchLoader": "foreload.device.prefetch",
    "Stream": "foreload.datasets.stream",
    "TarDataset": "foreload.datasets.tar",
    "TarStream": "foreload.datasets.tar.stream",
    "TextDataset": "foreload.datasets.text",
    "cached": "foreload.cache.lru",
    "check_threads": "foreload.workers.thread_check.check",
    "create_dataloader": "foreload.recipes.factory",
    "from_ray_dataset": "foreload.datasets.ray",
    "from_torch": "foreload.recipes.from_torch",
    "gather": "foreload.datasets.tensors",
    "get_train_transforms": "foreload.transforms",
    "get_val_transforms": "foreload.transforms",
    "pack": "foreload.datasets.tar.pack",
}
# Modules that are public under a name of their own.
_PUBLIC_MODULES = {
    "errors": "foreload.errors",
    "export": "foreload.export",
    "packing": "foreload.datasets.packing",
    "transforms": "foreload.transforms",
}

if not TYPE_CHECKING:  # or type checkers would accept any name

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used."""
        if name in _PUBLIC_MODULES:
            value = importlib.import_module(_PUBLIC_MODULES[name])
        elif name in _MODULES:
            value = getattr(importlib.import_module(_MODULES[name]), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """List the public names, not the folders that happen to be imported."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
