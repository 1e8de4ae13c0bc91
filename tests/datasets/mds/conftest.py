"""MosaicML's library, which only slow tests need, and shards that it has written."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="module")
def mosaic(temporary_folder: Path) -> Iterator[Any]:
    """The library; it leaves the files that its processes lock."""
    yield _import_streaming()
    for lock in temporary_folder.glob("*_filelock"):
        lock.unlink()


def _import_streaming() -> Any:
    """Import the library; it imports torchvision, for datasets that nobody needs here."""
    try:
        importlib.import_module("torchvision")
    except Exception:  # not there, or built for another torch
        pytest.importorskip("transformers.models.auto.tokenization_auto")
        pytest.importorskip("transformers.feature_extraction_utils")
        pytest.importorskip("transformers.tokenization_utils_base")
        stand_ins = {
            name: types.ModuleType(name)
            for name in (
                "torchvision",
                "torchvision.datasets",
                "torchvision.transforms",
                "torchvision.transforms.functional",
            )
        }
        for name, module in stand_ins.items():
            module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        stand_ins["torchvision.datasets"].VisionDataset = type("VisionDataset", (), {})  # type: ignore[attr-defined]
        stand_ins["torchvision.transforms.functional"].to_tensor = None  # type: ignore[attr-defined]
        with pytest.MonkeyPatch.context() as patch:
            for name, module in stand_ins.items():
                patch.setitem(sys.modules, name, module)
            return pytest.importorskip("streaming")
    return pytest.importorskip("streaming")


def write_mds(mosaic: Any, folder: Path, samples: range, **options: Any) -> Path:
    columns = {"x": "int", "text": "str", "raw": "bytes", "array": "ndarray:float32:3", "extra": "json"}
    with mosaic.MDSWriter(out=str(folder), columns=columns, size_limit=1 << 11, **options) as writer:
        for i in samples:
            array = np.arange(i, i + 3, dtype=np.float32)
            writer.write({"x": i, "text": str(i), "raw": bytes([i % 256]), "array": array, "extra": {"i": [i]}})
    return folder


@pytest.fixture(scope="module")
def shards(mosaic: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mds(mosaic, tmp_path_factory.mktemp("mds"), range(150))
