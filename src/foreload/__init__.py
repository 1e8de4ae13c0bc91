"""A PyTorch data loader that knows what comes next.

>>> import torch, foreload as fl
>>> loader = fl.DataLoader(fl.CachedDataset(torch.arange(10)), batch_size=5, shuffle=True, seed=0)
>>> sum(len(batch) for batch in loader)
10
"""

from foreload import errors, transforms
from foreload.caches import LRUCache, cached
from foreload.collate_fns import CustomCollateFn
from foreload.config import DataLoaderConfig
from foreload.datasets.base import BaseDataset
from foreload.datasets.efficient import MemoryEfficientDataset
from foreload.datasets.files import FileDataset
from foreload.datasets.hdf5 import HDF5Dataset
from foreload.datasets.images import ImageDataset
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
from foreload.efficient import EfficientDataLoader
from foreload.loader import DataLoader
from foreload.observe.logs import log_stats
from foreload.observe.memory import MemoryMonitor
from foreload.observe.metrics import serve_metrics
from foreload.observe.monitors import DataLoaderPerformanceMonitor
from foreload.observe.nvtx import nvtx_ranges
from foreload.observe.publish import publish
from foreload.observe.tensorboard import log_tensorboard
from foreload.observe.trace import write_trace
from foreload.optcache import OPTCache, OPTInit
from foreload.options import Cache, LoadingMode
from foreload.recipes import DataLoaderFactory, HighPerformanceDataset, create_dataloader
from foreload.stages.device import PrefetchLoader
from foreload.stages.mix import MixtureSampler
from foreload.stages.order import KeyedSampler
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
