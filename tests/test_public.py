"""The public names of foreload, and what `import foreload` brings along."""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import pickle
import subprocess
import sys
from types import ModuleType
from typing import Any

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


EXPORTERS = ["log_stats", "log_tensorboard", "nvtx_ranges", "publish", "serve_metrics", "write_trace"]


def test_the_public_names_are_these() -> None:
    assert fl.__all__ == sorted(fl.__all__) == PUBLIC
    assert all(hasattr(fl, name) for name in PUBLIC)
    assert fl.export.__all__ == EXPORTERS
    assert all(callable(getattr(fl.export, name)) for name in EXPORTERS)
    assert fl.packing.__all__ == ["PackedDataset", "attention_mask", "cu_seqlens", "pack_sequences"]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_says_what_it_is(name: str) -> None:
    assert inspect.getdoc(getattr(fl, name))


def test_samplers_are_in_the_folder_of_the_order() -> None:
    order = importlib.import_module("foreload.order")
    assert order.__all__ == ["KeyedSampler", "MixtureSampler"]
    assert all(inspect.getdoc(getattr(order, name)) for name in order.__all__)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("module", ["foreload", "foreload.export"])
def test_dir_lists_public_names_only_whatever_has_been_imported(module: str) -> None:
    script = (
        f"import importlib, {module} as m, foreload.order, foreload.cache.lru, foreload.export.logs; "
        "import foreload.cli.main; m.__all__ and [getattr(m, name) for name in m.__all__]; "
        "assert foreload.order.KeyedSampler; "
        "print(*(name for name in dir(m) if not name.startswith('__')), sep=',')"
    )
    assert run(script) == ",".join(importlib.import_module(module).__all__)


def test_unknown_names_are_attribute_errors_as_of_any_module() -> None:
    for module in (fl, fl.export):
        with pytest.raises(AttributeError, match=rf"module '{module.__name__}' has no attribute 'nonsense'"):
            module.nonsense
    with pytest.raises(ImportError, match="cannot import name 'KeyedSampler' from 'foreload'"):
        exec("from foreload import KeyedSampler")


@pytest.mark.slow
def test_names_imported_on_first_use_are_the_classes_themselves() -> None:
    script = (
        "import foreload, pickle; from foreload import *; from foreload import LRUCache as there; "
        "from foreload.cache.lru import LRUCache as home; assert there is home is LRUCache is foreload.LRUCache; "
        "from foreload.export import publish; from foreload.export.publisher import publish as own; "
        "assert publish is own is export.publish; import foreload.export.publisher; assert export.publish is own; "
        "print(pickle.loads(pickle.dumps(foreload.LRUCache)) is home)"
    )
    assert run(script) == "True"
    assert pickle.loads(pickle.dumps(fl.DataLoaderConfig())) == copy.deepcopy(fl.DataLoaderConfig())


@pytest.mark.parametrize("module", [fl, fl.export])
def test_type_checkers_are_told_the_names_that_are_imported_on_first_use(module: ModuleType) -> None:
    tree = ast.parse(inspect.getsource(module))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module != "typing"]
    assert sorted(alias.name for node in imports for alias in node.names) == module.__all__
    for node in imports:
        home = importlib.import_module(str(node.module))
        for alias in node.names:
            path = f"{node.module}.{alias.name}"
            found = getattr(home, alias.name) if hasattr(home, alias.name) else importlib.import_module(path)
            assert found is getattr(module, alias.name)


def test_the_arguments_are_torchs_in_torchs_places() -> None:
    theirs = list(inspect.signature(TorchDataLoader.__init__).parameters.values())
    ours = list(inspect.signature(fl.DataLoader.__init__).parameters.values())
    shared, added = ours[: len(theirs)], ours[len(theirs) :]
    assert [(p.name, p.kind) for p in shared] == [(p.name, p.kind) for p in theirs]
    different = [p.name for p, q in zip(shared, theirs, strict=True) if p.default != q.default]
    assert different == ["num_workers"]
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in added)


def run(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# Timings are never asserted; benchmarks/import_time.py measures them.
HEAVY = {
    "asyncio",
    "cachetools",
    "cv2",
    "h5py",
    "http.server",
    "matplotlib",
    "numpy.random",
    "obstore",
    "pandas",
    "PIL",
    "psutil",
    "pyarrow",
    "ray",
    "rich",
    "socketserver",
    "streaming",
    "tarfile",
    "threadpoolctl",
    "tokenizers",
    "torchvision",
    "tqdm",
    "typer",
    "foreload.bench",
    "foreload.cache.lru",
    "foreload.cli",
    "foreload.datasets.auto",
    "foreload.datasets.hdf5",
    "foreload.datasets.images",
    "foreload.datasets.mixture",
    "foreload.datasets.packing",
    "foreload.datasets.parquet",
    "foreload.datasets.stream",
    "foreload.datasets.tar",
    "foreload.datasets.text",
    "foreload.export",
    "foreload.recipes",
    "foreload.remote",
    "foreload.report",
    "foreload.tune.choose",
    "foreload.workers.processes",
    "foreload.transforms",
}


def test_importing_it_brings_nothing_that_an_epoch_does_not_need() -> None:
    script = (
        "import sys, torch, torch.utils.data; before = set(sys.modules); import foreload; "
        "print(*sorted(set(sys.modules) - before))"
    )
    added = set(run(script).split())
    assert "foreload.loader" in added
    assert not {name for name in added if name in HEAVY or name.partition(".")[0] in HEAVY}


@pytest.mark.parametrize("is_enabled", [True, False])
def test_importing_it_collects_no_garbage_of_torchs_and_leaves_the_collector_as_it_was(is_enabled: bool) -> None:
    script = (
        f"import gc, torch; (gc.enable if {is_enabled} else gc.disable)(); gc.collect(); "
        "gc.set_threshold(700, 1); older = lambda: gc.get_stats()[1]['collections']; before = older(); "
        "import foreload; print(older() - before, gc.isenabled())"
    )
    assert run(script) == f"0 {is_enabled}"


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"batch_size": 2}, "batch_size=2, num_workers='auto'"),
        ({"batch_size": 2, "shuffle": True, "seed": 3}, "batch_size=2, shuffle=True, seed=3, num_workers='auto'"),
        ({"sampler": [2, 0], "drop_last": True}, "batch_size=1, sampler=list, drop_last=True, num_workers='auto'"),
        ({"batch_sampler": [[0], [2]], "num_workers": 0}, "batch_sampler=list, num_workers=0"),
        ({"batch_size": None, "cache": "1MiB"}, "batch_size=None, num_workers='auto', cache="),
        ({"num_workers": 2}, "batch_size=1, num_workers=2)"),
        ({"num_workers": 2, "workers": "threads"}, "batch_size=1, num_workers=2 (threads))"),
    ],
)
def test_a_loader_says_what_it_is(options: dict[str, Any], shown: str) -> None:
    assert repr(fl.DataLoader([4, 5, 6], **options)).startswith(f"DataLoader(list of 3 samples, {shown}")
