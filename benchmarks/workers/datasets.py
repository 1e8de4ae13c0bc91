"""Eight datasets that need different workers."""

from __future__ import annotations

import io
import json
import time
import zlib
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset


class Sized(Dataset[Any]):
    thread_safe = False

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


class PurePython(Sized):
    """Parses text, with the interpreter's lock all the time."""

    def __init__(self) -> None:
        super().__init__(3000)
        self.text = json.dumps([{"id": i, "words": ["require_nonempty", "words", str(i)]} for i in range(60)])

    def __getitem__(self, index: int) -> Any:
        records = [json.loads(self.text) for _ in range(3)]
        return sum(sum(len(word) for word in record["words"]) for record in records[0]) + index


class Numpy(Sized):
    """Arithmetic on arrays, mostly without the lock."""

    def __init__(self) -> None:
        super().__init__(2000)
        self.image = np.random.default_rng(0).random((3, 160, 160), np.float32)

    def __getitem__(self, index: int) -> Any:
        image = np.ascontiguousarray(self.image[:, ::-1] * 1.1 - 0.2)
        return np.clip(image, 0, 1)


class Pillow(Sized):
    """Decodes and resizes, without the lock."""

    def __init__(self) -> None:
        super().__init__(1200)
        y, x = np.mgrid[0:300, 0:400]
        picture = np.stack([np.sin(x / 9 + y / 7), np.sin(x / 5), np.cos(y / 11)], -1) * 100 + 128
        file = io.BytesIO()
        Image.fromarray(picture.astype(np.uint8)).save(file, "JPEG", quality=90)
        self.file = file.getvalue()

    def __getitem__(self, index: int) -> Any:
        image = Image.open(io.BytesIO(self.file)).convert("RGB").resize((128, 128))
        return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)


class Native(Sized):
    """One call into a library that lets go of the lock."""

    def __init__(self) -> None:
        super().__init__(1500)
        self.packed = zlib.compress(np.random.default_rng(0).integers(0, 9, 200_000, np.uint8).tobytes())

    def __getitem__(self, index: int) -> Any:
        return np.frombuffer(zlib.decompress(self.packed), np.uint8)[:1000].copy()


class Sleeping(Sized):
    """Waits for something else, as for a server."""

    def __init__(self) -> None:
        super().__init__(1000)

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.005)
        return index


class Tiny(Sized):
    """Costs next to nothing."""

    def __init__(self) -> None:
        super().__init__(300_000)

    def __getitem__(self, index: int) -> Any:
        return index


class Huge(Sized):
    """Large samples that are only copied."""

    def __init__(self) -> None:
        super().__init__(400)
        self.rows = torch.rand(4, 3, 600, 600)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index % 4] * 2


class Uneven(Sized):
    """A few samples cost a hundred times as much as the others, in Python."""

    def __init__(self) -> None:
        super().__init__(2000)

    def __getitem__(self, index: int) -> Any:
        total = 0
        for number in range(60_000 if index % 32 == 0 else 600):
            total += number
        return total


DATASETS: dict[str, tuple[type[Sized], int]] = {
    "pure Python": (PurePython, 64),
    "numpy": (Numpy, 32),
    "Pillow": (Pillow, 32),
    "native": (Native, 32),
    "sleeping": (Sleeping, 32),
    "tiny": (Tiny, 256),
    "huge": (Huge, 8),
    "uneven": (Uneven, 32),
}
