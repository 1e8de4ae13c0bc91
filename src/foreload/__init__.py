"""A PyTorch data loader that knows what comes next.

>>> import torch, foreload as fl
>>> loader = fl.DataLoader(fl.CachedDataset(torch.arange(10)), batch_size=5, shuffle=True, seed=0)
>>> sum(len(batch) for batch in loader)
10
"""

from foreload import errors, transforms
from foreload.caches import LRUCache, cached
from foreload.datasets.base import BaseDataset
from foreload.datasets.files import FileDataset
from foreload.datasets.images import ImageDataset
from foreload.datasets.mds import MDSDataset
from foreload.datasets.parquet import ParquetDataset
from foreload.datasets.tar import TarDataset
from foreload.datasets.tensors import CachedDataset, gather
from foreload.loader import DataLoader
from foreload.optcache import OPTCache, OPTInit
from foreload.options import Cache, LoadingMode
from foreload.stages.order import KeyedSampler
from foreload.transforms import get_train_transforms, get_val_transforms

__version__ = "0.1.0"

__all__ = [
    "BaseDataset",
    "Cache",
    "CachedDataset",
    "DataLoader",
    "FileDataset",
    "ImageDataset",
    "KeyedSampler",
    "LRUCache",
    "LoadingMode",
    "MDSDataset",
    "OPTCache",
    "OPTInit",
    "ParquetDataset",
    "TarDataset",
    "cached",
    "errors",
    "gather",
    "get_train_transforms",
    "get_val_transforms",
    "transforms",
]
