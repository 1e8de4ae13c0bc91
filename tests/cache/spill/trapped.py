"""Samples that do harm if somebody else's pickles are loaded, and loaders that spill them."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import Any

import foreload as fl
from foreload.protocol import SampleSource

_loaded: list[int] = []
_pickled: dict[str, Any] = {"path": None}


class Trap:
    """A sample that creates a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.path),)


class Words(SampleSource):
    """Samples that anyone can check; those from the 10th on are traps if someone sets them."""

    def __init__(self, length: int = 24, text: str = "meow") -> None:
        self.length, self.text = length, text

    def fingerprint(self) -> str:
        return f"{self.length} {self.text}"  # whatever was loaded, and traps

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        _loaded.append(index)
        if _pickled["path"] and index >= 10:
            return Trap(_pickled["path"])
        return f"{self.text} {index} " + "." * (37 * index % 300)


def one(samples: list[Any]) -> Any:
    return samples[0]


def loader_of(dataset: Any, folder: Path, **arguments: Any) -> Any:
    cache = fl.Cache(512, spill=folder)
    return fl.DataLoader(dataset, batch_size=1, collate_fn=one, cache=cache, **arguments)


def run(dataset: Any, folder: Path, **arguments: Any) -> tuple[list[int], list[str]]:
    """Iterate twice; return which samples the dataset loaded, and the warnings."""
    del _loaded[:]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loader = loader_of(dataset, folder, **arguments)
        for _ in range(2):
            samples = list(loader)
        del loader
        gc.collect()
    loaded = list(_loaded)
    if _pickled["path"] is None:
        assert samples == [dataset[index] for index in range(len(dataset))]
    return loaded, [str(one.message) for one in said if one.category is UserWarning]
