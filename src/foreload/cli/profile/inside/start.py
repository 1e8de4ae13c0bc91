"""Import hooks that make modules measurable when, and if, a script imports them."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from typing import Any

from .frames import publish_frames
from .iterators import ITERATORS, patch_iterators
from .lanes import Here
from .ours import patch_foreload
from .session import Session
from .stock import mark_range, patch_loaders
from .timed import time_attributes

__all__ = ["start"]

# Functions that decode and transform samples: stage, module, class (or none), functions.
_TIMED_FUNCTIONS = (
    ("decode", "PIL.ImageFile", "ImageFile", ("load",)),
    ("decode", "cv2", "", ("imread", "imdecode")),
    ("decode", "simplejpeg", "", ("decode_jpeg",)),
    ("decode", "torchvision.io.image", "", ("decode_image", "decode_jpeg", "decode_png", "decode_webp")),
    ("transform", "torchvision.transforms.transforms", "Compose", ("__call__",)),
    ("transform", "torchvision.transforms.v2._container", "Compose", ("forward",)),
    ("transform", "albumentations.core.composition", "Compose", ("__call__",)),
)


class _Finder(MetaPathFinder):
    """Finds modules through the other finders, and patches some after their execution."""

    def __init__(self, patches: dict[str, list[Callable[[Any], None]]]) -> None:
        self._patches = patches

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name not in self._patches:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                break
        else:
            return None
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return spec

        def executed(module: Any) -> None:
            execute(module)
            for patch in self._patches.pop(name, ()):
                patch(module)

        loader.exec_module = executed
        return spec


def start(folder: str, root: int, spans: int, nvtx: bool) -> None:
    """Measure this process.

    Args:
        folder: folder for the records.
        root: the id of the command's process; a process that it started ends with it.
        spans: spans kept per thread.
        nvtx: mark stages for NVIDIA's tools.
    """
    if os.getppid() == root:
        _end_with_parent()
    session = Session(folder, spans, mark_range if nvtx else None)
    patches: dict[str, list[Callable[[Any], None]]] = {
        "torch.utils.data.dataloader": [lambda module: patch_loaders(session, module)],
        "foreload.loader": [lambda module: patch_foreload(session, module)],
    }
    for module, classes in ITERATORS:
        patches[module] = [functools.partial(patch_iterators, session, classes)]
    for stage, module, owner, names in _TIMED_FUNCTIONS:
        patches.setdefault(module, []).append(_patch(session.here, stage, owner, names))
    sys.meta_path.insert(0, _Finder(patches))
    sys.addaudithook(_count_files(session.here))
    publish_frames(folder)


def _patch(here: Here, stage: str, owner: str, names: tuple[str, ...]) -> Callable[[Any], None]:
    def patch(module: Any) -> None:
        where = getattr(module, owner, None) if owner else module
        time_attributes(here, stage, where, names, _is_encoded if owner == "ImageFile" else None)

    return patch


def _is_encoded(image: Any) -> bool:
    """Whether a Pillow image has yet to be decoded; ``load`` is called again and again."""
    return bool(getattr(image, "tile", None))


def _count_files(here: Here) -> Callable[[str, tuple[Any, ...]], None]:
    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and here.lane is not None and here.lane.busy:
            path, mode, _ = arguments
            if not isinstance(path, int) and (mode is None or "r" in mode):
                here.lane.add("opened", 1)

    return heard


def _end_with_parent() -> None:
    """Have this process killed with the command, as the script would be if it ran alone (prctl(2))."""
    set_death_signal = 1
    try:
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
    except (OSError, AttributeError):  # not Linux
        return
