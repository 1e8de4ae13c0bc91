"""The cost of recording spans: the same loaders, in one process, with recording and without it.

Recording cannot be switched off, so "without" is the same code minus the lines that record: it is compiled again
without them (`Quiet`), and the workers have no lane to write to. Both take hundreds of turns of some hundredths of
a second; each pair of turns gives one ratio. In two processes, two versions of a program would differ in memory
layout, which alone makes one up to a tenth faster.

Photos are a usual load. The other samples are as small as possible: a batch of them takes microseconds, so that
every call counts.
"""

from __future__ import annotations

import argparse
import inspect
import multiprocessing
import re
import statistics
import sys
import tempfile
import textwrap
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Self

sys.path.append(str(Path(__file__).resolve().parent.parent))
from common import Record

from foreload import _native
from foreload.batch.samples import SampleAssembly
from foreload.epochs import base, inline, processes, threads
from foreload.record.recorder import Recorder
from foreload.record.spans import Lane
from foreload.workers.threads import ThreadPool

FILES, FILE_BYTES = 32_768, 8192
ROWS = 400_000
IMAGES, SIDE = 8000, 48
PHOTOS, WIDTH, HEIGHT = 256, 500, 375


def make_data(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    (folder / "files").mkdir()
    for number in range(FILES):
        (folder / "files" / f"{number:05}.bin").write_bytes(random.bytes(FILE_BYTES))
    (folder / "images").mkdir()
    for number in range(IMAGES):
        pixels = np.kron(random.integers(0, 255, (6, 6, 3)), np.ones((SIDE // 6, SIDE // 6, 1))).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{number:05}.jpg", quality=90)
    (folder / "photos").mkdir()
    for number in range(PHOTOS):
        coarse = Image.fromarray(random.integers(0, 255, (HEIGHT // 12, WIDTH // 12, 3)).astype(np.uint8))
        photo = coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        photo.save(folder / "photos" / f"{number:05}.jpg", quality=90)


class Pillow:
    """The dataset of images that people write themselves."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        import numpy as np
        import torch
        from PIL import Image

        with Image.open(self.paths[index]) as image:
            return torch.from_numpy(np.array(image.convert("RGB").resize((224, 224))))


def loaders(folder: Path) -> dict[str, Any]:
    import torch

    import foreload as fl

    images = fl.ImageDataset(
        folder / "images",
        transform=fl.transforms.train(32, color_jitter=(0.2, 0.2, 0.2, 0.1)),
        labels=[0] * IMAGES,
        cache_size=0,
    )
    photos = fl.ImageDataset(
        folder / "photos",
        transform=fl.transforms.train(224, color_jitter=(0.2, 0.2, 0.2, 0.1)),
        labels=[0] * PHOTOS,
        cache_size=0,
    )
    files, pillow = fl.FileDataset(folder / "files"), Pillow(folder / "photos")
    rows = fl.CachedDataset((torch.randn(ROWS, 100), torch.arange(ROWS)))
    items = list(range(ROWS))

    def load(dataset: Any, workers: int = 0, kind: str = "threads", **others: Any) -> Any:
        return fl.DataLoader(
            dataset,
            batch_size=64,
            shuffle=True,
            seed=0,
            num_workers=workers,
            workers=kind,
            persistent_workers=kind == "processes",
            **others,
        )

    return {
        "photos, 2 threads": load(photos, 2),
        "photos by Pillow, 2 threads": load(pillow, 2),
        "photos by Pillow, 2 processes": load(pillow, 2, "processes", multiprocessing_context="fork"),
        "8 KB files, 2 threads": load(files, 2),
        "48 x 48 images, 2 threads": load(images, 2),
        "48 x 48 images, no workers": load(images),
        "64 rows of tensors": load(rows),
        "python items, no workers": load(items),
        "python items, 2 threads": load(items, 2),
        "transformed items, no workers": load(items, transform=float),
    }


# Worker processes that are forked from here look it up.
_is_quiet = multiprocessing.Value("b", False, lock=False)
_records = _native.Work
_native.Work = lambda lane, number: nullcontext() if _is_quiet.value else _records(lane, number)  # type: ignore


class _Watch:
    """A watch that records nothing."""

    def __init__(self) -> None:
        self.lane = Lane("nobody", "consumer", _native.Lane())
        self.loop = _native.Loop(self.lane.native)
        self.lock = None

    def begun(self, epoch: Any) -> None: ...
    def end(self) -> None: ...


# What records, and what is there in its place.
_LINES = [
    (r"^ *(self\._(order_)?)?loop\.(mark_requested|mark|ordered|gathered|mark_delivered)\(.*\)$", ""),
    (r"super\(\)", "super(type(self), self)"),  # outside of its class
    (r"^ *self\._watch\..*$", ""),
    (r"self\._samples_of\(indices\)|count\(indices\)", "0"),
    (r"self\.source\(\)", "self._dataset"),
    (r"run_in\(.*\)", "run_here()"),
    (r"self\._loop\.pays_together", "self._MOST"),
]


class Quiet:
    """While it lasts, nothing is recorded."""

    def __init__(self) -> None:
        watch = _Watch()
        self._own = [
            (ThreadPool, "_work", _work),
            (ThreadPool, "_start", _without(ThreadPool._start, [(r"self\._spans\.take\(.*\)", "[_NOBODY]")])),
            (ThreadPool, "close", _without(ThreadPool.close, [(r"(?s)self\._spans\.give_back\(.*\)", "pass")])),
            (Recorder, "begin", lambda recorder: watch),
            *(
                (owner, name, _without(vars(owner)[name], _LINES))
                for owner, name in (
                    (base.Epoch, "_deliver"),
                    (base.Epoch, "_draw"),
                    (inline.InlineEpoch, "_next"),
                    (inline.GatherEpoch, "_deliver"),
                    (inline.GatherEpoch, "_gather"),
                    (threads.ThreadEpoch, "_next"),
                    (threads.ThreadEpoch, "_fill"),
                    (processes.ProcessEpoch, "_ask"),
                    (SampleAssembly, "_one_by_one"),
                )
            ),
        ]
        self._recorded = [(owner, name, vars(owner)[name]) for owner, name, _ in self._own]

    def __enter__(self) -> Self:
        _is_quiet.value = True
        for owner, name, function in self._own:
            setattr(owner, name, function)
        return self

    def __exit__(self, *_: object) -> None:
        _is_quiet.value = False
        for owner, name, function in self._recorded:
            setattr(owner, name, function)


_NOBODY = Lane("nobody", "thread", _native.Lane())


def _work(pool: ThreadPool, worker: int, identity: Any, lane: Any) -> None:
    identity.assume(worker)
    pool._native.work(worker, None)


def _without(function: Any, lines: list[tuple[str, str]]) -> Any:
    """Compile a method without what records."""
    source = textwrap.dedent(inspect.getsource(function))
    for what, instead in lines:
        source = re.sub(what, instead, source, flags=re.MULTILINE)
    known = {**function.__globals__, "_NOBODY": _NOBODY}
    exec(source, known)  # it is our own source
    return known[function.__name__]


def seconds(loader: Any, epochs: int) -> float:
    began = time.perf_counter()
    for _ in range(epochs):
        for _ in loader:
            pass
    return time.perf_counter() - began


def batches(loader: Any) -> int:
    found: int = loader.stats()["batches"]
    return found


def ratios(loader: Any, pairs: int) -> list[float]:
    """Time of turns without recording, over that of those with it."""
    quiet = Quiet()
    with quiet:
        seconds(loader, 1)
    # Turns are about as long as a look at them by the system takes no part of.
    epochs = max(1, round(0.06 / seconds(loader, 1)))
    found = []
    for number in range(pairs):
        took = {}
        for is_quiet in (True, False) if number % 2 else (False, True):
            before = batches(loader)
            with quiet if is_quiet else nullcontext():
                took[is_quiet] = seconds(loader, epochs)
            recorded = batches(loader) - before
            if recorded != (0 if is_quiet else epochs * len(loader)):
                raise RuntimeError(f"{recorded} batches were recorded, quietly: {is_quiet}")
        found.append(took[True] / took[False])
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--pairs", type=int, default=200, help="of turns, of each loader")
    options.add_argument("--only", default="", help="what the names begin with")
    chosen = options.parse_args()
    record = Record("record_overhead")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_data(folder)
        for name, loader in loaders(folder).items():
            if not name.startswith(chosen.only):
                continue
            found = ratios(loader, chosen.pairs // 3 if "photos" in name else chosen.pairs)
            record.samples({f"{name}: with, of without": found}, "ratio")
            record.verdict(f"{name}: with spans, of without", statistics.median(found), 0.99)
    record.write()


if __name__ == "__main__":
    main()
