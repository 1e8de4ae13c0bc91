"""JPEG files to load, made once; and a dataset over them that can be made slow on purpose.

    python synthetic_dataset.py data/profiling --images 512

They are made in a few seconds, the same for the same arguments.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

WIDTH, HEIGHT = 640, 480
# What the model sees: the shorter side becomes SHORTER pixels, and of that the middle SIZE x SIZE.
SHORTER, SIZE = 120, 96
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

_MARK = ".synthetic.json"


def make(folder: Path, images: int = 512, classes: int = 4, seed: int = 0) -> None:
    """Write JPEGs of striped pictures into class folders; the class is the direction of the stripes.

    The same arguments give the same files. What is there already is not made again.

    Raises:
        ValueError: a number makes no sense.
        FileExistsError: the folder holds something else.
    """
    if not 1 <= classes <= images:
        raise ValueError(f"there must be 1 class or more, and an image of each; got {images} of {classes} classes")
    wanted = {"images": images, "classes": classes, "seed": seed}
    mark = folder / _MARK
    if mark.exists():
        if (found := json.loads(mark.read_text())) != wanted | {"finished": found.get("finished")}:
            raise FileExistsError(f"{folder} holds other images ({mark.read_text().strip()}); name another folder")
        if found["finished"]:
            return
    elif folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} holds other files; name an empty folder, or one that is not there yet")
    for label in range(classes):
        (folder / f"class_{label}").mkdir(parents=True, exist_ok=True)
    mark.write_text(json.dumps(wanted | {"finished": False}) + "\n")

    def write(index: int) -> None:
        label = index % classes
        data = _picture(np.random.default_rng([seed, index]), math.pi * label / classes)
        (folder / f"class_{label}" / f"{index:05}.jpg").write_bytes(data)

    with ThreadPoolExecutor() as threads:
        list(threads.map(write, range(images)))
    mark.write_text(json.dumps(wanted | {"finished": True}) + "\n")


def _picture(rng: np.random.Generator, angle: float) -> bytes:
    y, x = np.ogrid[0:HEIGHT, 0:WIDTH]
    along = x * math.cos(angle) + y * math.sin(angle)
    stripes = np.sin(along / rng.uniform(9, 15) + rng.uniform(0, 2 * math.pi))
    grain = rng.normal(0, 14, (HEIGHT, WIDTH))  # gives the files the size of photographs
    colors, strength = rng.uniform(70, 180, 3), rng.uniform(15, 40, 3)
    pixels = colors + (stripes[..., None] * strength) + grain[..., None]
    out = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(out, "JPEG", quality=88)
    return out.getvalue()


def to_tensor(image: Image.Image) -> torch.Tensor:
    """Resize, crop, then normalise what is left: float32, 3 x SIZE x SIZE."""
    width, height = (SHORTER * side // min(image.size) for side in image.size)
    left, top = (width - SIZE) // 2, (height - SIZE) // 2
    small = image.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + SIZE, top + SIZE))
    pixels = (np.asarray(small, np.float32) / 255 - np.float32(MEAN)) / np.float32(STD)
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


class SyntheticImages(Dataset[tuple[Any, int]]):
    """The images of a folder with their labels, loaded with Pillow; as slow as you like.

    Args:
        folder: what :func:`make` made, or any folder of class folders of JPEGs.
        transform: what is done to each image.
        io_ms: milliseconds that the storage takes to answer, for each file. The CPU has nothing to do meanwhile.
        cpu_ms: milliseconds of CPU time that each image takes in addition, in Python, holding the GIL.

    Raises:
        FileNotFoundError: there are no images.
        ValueError: a time is negative.
    """

    def __init__(
        self,
        folder: Path,
        transform: Callable[[Image.Image], Any] = to_tensor,
        *,
        io_ms: float = 0,
        cpu_ms: float = 0,
    ) -> None:
        if min(io_ms, cpu_ms) < 0:
            raise ValueError(f"io_ms and cpu_ms must be 0 or more, got {io_ms} and {cpu_ms}")
        self.files = sorted(Path(folder).glob("*/*.jpg"))
        if not self.files:
            raise FileNotFoundError(f"no images in {folder}; make some: python synthetic_dataset.py {folder}")
        classes = sorted({file.parent.name for file in self.files})
        self.labels = [classes.index(file.parent.name) for file in self.files]
        self.transform = transform
        self.io_ms, self.cpu_ms = io_ms, cpu_ms

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        time.sleep(self.io_ms / 1e3)
        with Image.open(self.files[index]) as file:
            image = file.convert("RGB")
        until = time.thread_time() + self.cpu_ms / 1e3
        while time.thread_time() < until:
            pass
        return self.transform(image), self.labels[index]


def main() -> None:
    parser = argparse.ArgumentParser(description="Make JPEG files to load.")
    parser.add_argument("folder", type=Path, metavar="DATA")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--classes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    try:
        make(arguments.folder, arguments.images, arguments.classes, arguments.seed)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    sizes = [file.stat().st_size for file in arguments.folder.glob("*/*.jpg")]
    each = sum(sizes) / len(sizes) / 1024
    print(f"{arguments.folder}: {len(sizes)} JPEGs of {WIDTH} x {HEIGHT}, {each:.0f} KiB each")


if __name__ == "__main__":
    sys.exit(main())
