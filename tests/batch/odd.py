"""Objects that pickling or copying changes, or ends, or that say themselves how that is done."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import threading
from collections.abc import Iterator, MutableMapping
from typing import Any

__all__ = ["File", "Left", "Scaled", "written"]


class Scaled(MutableMapping[str, Any]):
    """Scales what its constructor is given, and cannot be copied."""

    def __init__(self, items: Any = (), unit: str = "m") -> None:
        self.kept = {name: value / 2 for name, value in dict(items).items()}
        self.unit, self.lock = unit, threading.Lock()

    def __getitem__(self, name: str) -> Any:
        return self.kept[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.kept[name] = value

    def __delitem__(self, name: str) -> None:
        del self.kept[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.kept)

    def __len__(self) -> int:
        return len(self.kept)


@dataclasses.dataclass
class File:
    """Is gone with the object."""

    path: str

    def __del__(self) -> None:
        if os.path.exists(self.path):
            os.unlink(self.path)


class Left:
    def __init__(self) -> None:
        self.x, self.cache = 1, 2

    def __getstate__(self) -> Any:
        return {"x": 1}


def written(folder: Any) -> Any:
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        return File(file.name)
