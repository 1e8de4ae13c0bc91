"""What `import foreload` gives, and what it costs."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl

PUBLIC = [
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


def test_the_public_names_are_these() -> None:
    assert fl.__all__ == sorted(fl.__all__) == PUBLIC
    assert all(hasattr(fl, name) for name in PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_says_what_it_is(name: str) -> None:
    assert inspect.getdoc(getattr(fl, name))


def test_the_arguments_are_torchs_in_torchs_places() -> None:
    theirs = list(inspect.signature(TorchDataLoader.__init__).parameters.values())
    ours = list(inspect.signature(fl.DataLoader.__init__).parameters.values())
    shared, added = ours[: len(theirs)], ours[len(theirs) :]
    assert [(p.name, p.kind) for p in shared] == [(p.name, p.kind) for p in theirs]
    different = [p.name for p, q in zip(shared, theirs, strict=True) if p.default != q.default]
    assert different == ["num_workers"]
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in added)


def test_importing_it_brings_nothing_heavy_beside_torch() -> None:
    script = (
        "import sys, torch, torch.utils.data; before = set(sys.modules); import foreload; "
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    added = set(run.stdout.split())
    assert "foreload" in added
    assert not added & {
        "typer",
        "rich",
        "matplotlib",
        "psutil",
        "PIL",
        "cv2",
        "torchvision",
        "pandas",
        "h5py",
        "ray",
    }
