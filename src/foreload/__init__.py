"""A PyTorch data loader that knows what comes next.

>>> import torch, foreload as fl
>>> loader = fl.DataLoader(fl.CachedDataset(torch.arange(10)), batch_size=5, shuffle=True, seed=0)
>>> sum(len(batch) for batch in loader)
10
"""

from foreload import errors, transforms
from foreload.cache.lru import LRUCache, cached
from foreload.cache.opt import OPTCache, OPTInit
from foreload.datasets.auto import MemoryEfficientDataset
from foreload.datasets.base import BaseDataset
from foreload.datasets.files import FileDataset
from foreload.datasets.hdf5 import HDF5Dataset
from foreload.datasets.images.dataset import ImageDataset
from foreload.datasets.mds import MDSDataset
from foreload.datasets.mixture import Mixture
from foreload.datasets.packing import PackedDataset, attention_mask, cu_seqlens, pack_sequences
from foreload.datasets.parquet import ParquetDataset
from foreload.datasets.prefetch import AsyncPrefetchDataset
from foreload.datasets.stream import Stream
from foreload.datasets.tar import TarDataset
from foreload.datasets.tar.pack import pack
from foreload.datasets.tar.stream import TarStream
from foreload.datasets.tensors import CachedDataset, gather
from foreload.datasets.text import TextDataset
from foreload.device import PrefetchLoader
from foreload.export.logs import log_stats
from foreload.export.metrics import serve_metrics
from foreload.export.nvtx import nvtx_ranges
from foreload.export.publish import publish
from foreload.export.tensorboard import log_tensorboard
from foreload.export.trace import write_trace
from foreload.loader import DataLoader
from foreload.options import Cache, LoadingMode
from foreload.order.mixture import MixtureSampler
from foreload.order.samplers import KeyedSampler
from foreload.recipes.collate import CustomCollateFn
from foreload.recipes.config import DataLoaderConfig
from foreload.recipes.factory import DataLoaderFactory, HighPerformanceDataset, create_dataloader
from foreload.recipes.loader import EfficientDataLoader
from foreload.recipes.monitors import DataLoaderPerformanceMonitor, MemoryMonitor
from foreload.transforms import get_train_transforms, get_val_transforms

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
    "ImageDataset",
    "KeyedSampler",
    "LRUCache",
    "LoadingMode",
    "MDSDataset",
    "MemoryEfficientDataset",
    "MemoryMonitor",
    "Mixture",
    "MixtureSampler",
    "OPTCache",
    "OPTInit",
    "PackedDataset",
    "ParquetDataset",
    "PrefetchLoader",
    "Stream",
    "TarDataset",
    "TarStream",
    "TextDataset",
    "attention_mask",
    "cached",
    "create_dataloader",
    "cu_seqlens",
    "errors",
    "gather",
    "get_train_transforms",
    "get_val_transforms",
    "log_stats",
    "log_tensorboard",
    "nvtx_ranges",
    "pack",
    "pack_sequences",
    "publish",
    "serve_metrics",
    "transforms",
    "write_trace",
]
