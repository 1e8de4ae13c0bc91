#!/usr/bin/env python3
"""Try an installed foreload with the Python that runs this, and say what was tried.

Always: the wheel has its licences, its Python compiles without warnings, all that it takes from the standard
library is there, and the native module does what NumPy and Pillow do. If torch is installed: epochs with and
without workers, the command.

Needs NumPy and Pillow only. To be run outside of the checkout, with the environment's own Python.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import io
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image


def main() -> None:
    """Run all checks that this environment allows, and say which."""
    package = find_package()
    assert (package / "py.typed").is_file(), "the wheel has no py.typed"
    check_licences()
    files, names = check_sources(package)
    print(f"Python: {files} files compile, {names} names of the standard library are there")
    with_torch = importlib.util.find_spec("torch") is not None
    native = importlib.import_module("foreload._native") if with_torch else load_native(package)
    check_native(native)
    print(f"native module: {Path(str(native.__file__)).name}, {native.simd()}, {native.jpeg_library()}")
    if with_torch:
        check_loaders()
        print(f"loaders: foreload {importlib.metadata.version('foreload')}")
    else:
        print("no torch in this environment: the package was not imported, nor the loaders tried")


def find_package() -> Path:
    """Return the folder of the installed package, without importing it."""
    spec = importlib.util.find_spec("foreload")
    assert spec is not None, "foreload is not installed"
    assert spec.origin is not None, "the package has no __init__.py"
    package = Path(spec.origin).parent
    installed = Path(sysconfig.get_path("platlib"))
    assert package.is_relative_to(installed), f"{package} is not the installed package of {installed}"
    return package


def check_licences() -> None:
    """Look for the project's licence, and those of the libraries that are compiled in, which require it."""
    files = {file.name for file in importlib.metadata.files("foreload") or [] if file.parent.name == "licenses"}
    missing = {"LICENSE", "LICENSES.txt"} - files
    assert not missing, f"the wheel has no {', '.join(sorted(missing))}"


def check_sources(package: Path) -> tuple[int, int]:
    """Compile all files, and look up what they take from the standard library; return the numbers of both.

    Imports under ``try`` or ``if`` may be missing, since the file asks for that.
    """
    files = sorted(package.rglob("*.py"))
    wanted: set[tuple[str, str]] = set()
    for path in files:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tree = compile(path.read_bytes(), str(path), "exec", flags=ast.PyCF_ONLY_AST)
            compile(tree, str(path), "exec")
        waiting: list[ast.AST] = [tree]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.Import):
                wanted.update((alias.name, "") for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
                wanted.update((node.module, alias.name) for alias in node.names)
            elif not isinstance(node, ast.If | ast.Try):
                waiting.extend(ast.iter_child_nodes(node))
    names = {(module, name) for module, name in wanted if module.partition(".")[0] in sys.stdlib_module_names}
    for module, name in sorted(names):
        found = importlib.import_module(module)
        is_there = not name or hasattr(found, name)
        if not is_there and hasattr(found, "__path__"):
            is_there = importlib.util.find_spec(f"{module}.{name}") is not None
        assert is_there, f"Python {sys.version.split()[0]} has no {module}.{name}"
    return len(files), len(names)


def load_native(package: Path) -> ModuleType:
    """Load the native module alone: the package itself imports torch."""
    found = [
        package / f"_native{suffix}"
        for suffix in importlib.machinery.EXTENSION_SUFFIXES
        if (package / f"_native{suffix}").is_file()
    ]
    assert len(found) == 1, f"expected one native module for {sys.version}, found {found}"
    loader = importlib.machinery.ExtensionFileLoader("foreload._native", str(found[0]))
    spec = importlib.util.spec_from_loader("foreload._native", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def check_native(native: ModuleType) -> None:
    """Compare the native module with NumPy and Pillow."""
    order = np.empty(1000, np.int64)
    native.permute(1000, 7, 1, 0, order)
    assert sorted(order.tolist()) == list(range(1000))
    assert order.tolist() != list(range(1000))

    table = np.random.default_rng(0).integers(0, 256, (1000, 48), dtype=np.uint8)
    rows = np.empty_like(table)
    native.gather(table, order, rows)
    np.testing.assert_array_equal(rows, table[order])

    jpeg = io.BytesIO()
    photo = np.kron(table[:32, :40], np.ones((4, 4), np.uint8))
    Image.fromarray(np.dstack([photo, photo[::-1], photo[:, ::-1]])).save(jpeg, "JPEG", quality=90)
    expected = np.asarray(Image.open(jpeg).convert("RGB"))
    np.testing.assert_array_equal(native.decode_rgb("photo.jpg", jpeg.getvalue(), _not_native), expected)
    tiled = native.tile_jpeg(jpeg.getvalue())
    np.testing.assert_array_equal(native.decode_rgb("tiled.jpg", tiled, _not_native), expected)

    # An error with a file name crosses the boundary as Python's own.
    try:
        native.LineFile(b"/nowhere/lines.txt", "lines", "\n", 1, lambda _: None)
    except OSError as error:
        named = str(error)
    else:
        named = "no error"
    assert "/nowhere/lines.txt" in named, named


def _not_native(path: str, data: bytes) -> Any:
    raise AssertionError(f"{path} was not decoded natively: this build has no JPEG library")


def check_loaders() -> None:
    """Compare an epoch with stock torch's, by threads and by processes, and run the command if it is there."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    import foreload as fl

    values = TensorDataset(torch.arange(64), torch.rand(64, 3))
    for num_workers in (0, 2):
        batches = fl.DataLoader(values, batch_size=10, num_workers=num_workers)
        for ours, stock in zip(batches, DataLoader(values, batch_size=10), strict=True):
            assert all(map(torch.equal, ours, stock))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "cats").mkdir()
        for number in range(8):
            Image.new("RGB", (64, 48), (number, 2, 3)).save(Path(folder) / "cats" / f"{number}.jpg")
        images = fl.ImageDataset(folder, transform=fl.transforms.val(32))
        shapes = [batch.shape for batch, _ in fl.DataLoader(images, batch_size=4, num_workers=2)]
        assert shapes == [(4, 3, 32, 32)] * 2, shapes
    if importlib.util.find_spec("typer") is not None:
        subprocess.run([sys.executable, "-m", "foreload", "--version"], check=True)


if __name__ == "__main__":
    main()
