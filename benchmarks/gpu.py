"""A GPU and what feeds it: copies against the bus, PrefetchLoader against stock, ResNet-50, and decoding on it.

Everything on the GPU is timed by events on its streams.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Record, Samples, images, median, parser, take_turns
from gpu_time import Gpu, Pass, loop, rate
from resnet import resnet50
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import foreload as fl
from foreload.datasets.images.decoders import decoder_named

# Of the copies that are compared: 1,000 images of 3 x 224 x 224 as float32 have 602 MB.
COPY_BYTES = 128 << 20
BATCH = 256
WORKERS = 8

# The source of batches that nothing is faster than.
THERE = "one batch on the GPU"


class Ready(Dataset[torch.Tensor]):
    """Batches that are there already, so that nothing but moving them takes time."""

    def __init__(self, size: int, count: int) -> None:
        # Once in shared memory, for all workers: each would else move a copy there.
        self.batch, self.count = torch.zeros(size, dtype=torch.uint8).share_memory_(), count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.batch


def moved(gpu: Gpu, batches: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Copy batches that are not on the device to it, as a loop does."""
    for batch in batches:
        yield gpu.copy(batch)


def measure_copies(gpu: Gpu, record: Record, rounds: int, *, size: int = COPY_BYTES) -> None:
    """Copies from ordinary and from page-locked memory, bare and by ``device=``, against the bus."""
    pinned, ordinary = gpu.host_memory(size, pin=True), gpu.host_memory(size, pin=False)
    rows = fl.CachedDataset(torch.zeros(64, size // 16, dtype=torch.uint8))

    def delivered() -> float:
        loader = fl.DataLoader(rows, batch_size=16, device=gpu.device, num_workers=2)
        for _ in loader:
            pass
        gpu.synchronize()
        copied = loader.stats()["stages"]["device"]
        return copied["bytes"] / copied["seconds"] / 1e9

    rates = take_turns(
        {
            "copies, page-locked": partial(rate, gpu, pinned),
            "copies, ordinary": partial(rate, gpu, ordinary),
            "copies of device=": delivered,
        },
        rounds,
    )
    record.samples(rates, "GB/s")
    bus = max(rates["copies, page-locked"])  # nothing else is known of it that holds on every machine
    record.verdict("copies of device=, of the bus", median(rates, "copies of device=") / bus, 0.9)


def work_of(gpu: Gpu, seconds: float, *, side: int) -> Callable[[Any], None]:
    """Return a step that keeps the GPU busy for about so long, with products of matrices."""
    x = torch.randn(side, side, device=gpu.device)

    def multiply(times: int) -> None:
        for _ in range(times):
            torch.mm(x, x)

    multiply(10)
    start = gpu.event()
    multiply(100)
    end = gpu.event()
    gpu.synchronize()
    times = max(1, round(100 * seconds / gpu.seconds(start, end)))
    return lambda batch: multiply(times)


def measure_overlap(
    gpu: Gpu,
    record: Record,
    rounds: int,
    *,
    size: int = COPY_BYTES,
    steps: int = 60,
    workers: int = WORKERS,
    side: int = 2048,
) -> None:
    """Loops whose copies take as long as their work, over torch's loader: as it is, and within PrefetchLoader."""
    step = work_of(gpu, size / rate(gpu, gpu.host_memory(size, pin=True)) / 1e9, side=side)
    data = Ready(size, steps)

    def stock(pin: bool) -> TorchDataLoader[torch.Tensor]:
        return TorchDataLoader(data, batch_size=None, num_workers=workers, pin_memory=pin)

    def run(make: Callable[[], Iterable[Any]]) -> float:
        return loop(gpu, make(), step, steps).seconds * 1e3

    times = take_turns(
        {
            "stock": partial(run, lambda: moved(gpu, stock(False))),
            "stock, pinned": partial(run, lambda: moved(gpu, stock(True))),
            "PrefetchLoader over stock": partial(run, lambda: fl.PrefetchLoader(stock(False), gpu.device)),
            "PrefetchLoader over stock, pinned": partial(run, lambda: fl.PrefetchLoader(stock(True), gpu.device)),
        },
        rounds,
    )
    record.samples(times, "ms/step")
    for pin in ("", ", pinned"):
        gain = median(times, f"stock{pin}") / median(times, f"PrefetchLoader over stock{pin}")
        record.verdict(f"PrefetchLoader over stock{pin}, against stock{pin}", gain, 1.2)


def training(gpu: Gpu) -> Callable[[Any], None]:
    """Return a training step of ResNet-50 in bfloat16."""
    torch.backends.cudnn.benchmark = True
    model = resnet50().to(gpu.device, torch.bfloat16, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=True)

    def step(batch: Any) -> None:
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(model(images).float(), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def measure_training(
    gpu: Gpu,
    record: Record,
    rounds: int,
    sources: dict[str, Callable[[], Iterable[Any]]],
    step: Callable[[Any], None],
    steps: int = 60,
) -> None:
    """The idle share of the GPU in training, by what the batches come from."""
    passes: dict[str, list[Pass]] = {name: [] for name in sources}

    def run(name: str) -> float:
        passes[name].append(loop(gpu, sources[name](), step, steps))
        return passes[name][-1].seconds * 1e3

    times = take_turns({name: partial(run, name) for name in sources}, rounds)
    record.samples(times, "ms/step")
    # The round that does not count is left out here too: it is the one in which cuDNN chooses its kernels.
    idle: Samples = {f"{name}: idle": [100 * each.idle for each in passes[name][1:]] for name in sources}
    first: Samples = {f"{name}: first step": [each.first for each in passes[name][1:]] for name in sources}
    record.samples(idle, "%")
    record.samples(first, "s")
    for name in [each for each in sources if each != THERE]:
        if THERE in sources:
            record.verdict(
                f"{name}: step, against {THERE}", median(times, name) / median(times, THERE), 1.02, most=True
            )
        record.verdict(f"{name}: GPU idle, %", median(idle, f"{name}: idle"), 2, most=True)
        record.verdict(f"{name}: first step, s", median(first, f"{name}: first step"), 2, most=True)


def sources_of(gpu: Gpu, photos: int) -> dict[str, Callable[[], Iterable[Any]]]:
    """A batch that is there, and loaders of uint8 images in memory, and of JPEGs, whose pixels are soon cached."""
    normalize = fl.transforms.Normalize(dtype=torch.bfloat16, channels_last=True)
    pixels = torch.randint(0, 256, (40 * BATCH, 3, 224, 224), dtype=torch.uint8)
    synthetic = fl.CachedDataset((pixels, torch.randint(0, 1000, (len(pixels),))))
    jpegs = fl.ImageDataset(images(photos), transform=fl.transforms.train(224, normalize=False))
    there = normalize((pixels[:BATCH].to(gpu.device), torch.randint(0, 1000, (BATCH,), device=gpu.device)))
    how: dict[str, Any] = {"shuffle": True, "seed": 0, "device": gpu.device, "device_transform": normalize}
    loaders = {
        "uint8 tensors": fl.DataLoader(synthetic, BATCH, **how),
        "JPEG, cached": fl.DataLoader(jpegs, BATCH, cache="50%", drop_last=True, **how),
    }

    def epochs(loader: fl.DataLoader[Any]) -> Iterator[Any]:
        while True:
            yield from loader

    return {THERE: partial(repeat, there), **{name: partial(epochs, each) for name, each in loaders.items()}}


def decoders(gpu: Gpu, file: Path) -> dict[str, str]:
    """Return the names of the decoders that decode a file on this GPU; say why the others do not."""
    data = torch.from_numpy(np.fromfile(file, np.uint8))
    found = {}
    for name in ("nvimagecodec", "torchvision", "dali"):
        try:
            decoder = decoder_named(name)
            assert decoder is not None
            (pixels,) = decoder.decode([data], gpu.device)
        except Exception as error:  # of whatever is installed
            print(f"  {name} is left out: {error}")
            continue
        if pixels is not None:
            found[name] = name
    return found


def measure_decoding(
    gpu: Gpu, record: Record, rounds: int, folder: Path, names: dict[str, Any], steps: int = 20
) -> None:
    """JPEGs to batches on the GPU, by who decodes them; nothing is cached."""
    transform = fl.transforms.train(224, normalize=False)
    how: dict[str, Any] = {"shuffle": True, "seed": 0, "drop_last": True, "device": gpu.device}

    def run(decode: Any) -> float:
        dataset = fl.ImageDataset(folder, transform=transform, cache_size=0, decode=decode)
        loader = fl.DataLoader(dataset, BATCH, **how)

        def batches() -> Iterator[Any]:
            while True:
                yield from loader

        return BATCH / loop(gpu, batches(), lambda batch: None, steps).seconds

    rates = take_turns({f"JPEGs by {name}": partial(run, decode) for name, decode in names.items()}, rounds)
    record.samples(rates, "images/s")
    for name in names:
        if name != "cpu":
            gain = median(rates, f"JPEGs by {name}") / median(rates, "JPEGs by cpu")
            record.verdict(f"JPEGs decoded on the GPU by {name}, against the CPU", gain, 1.0)


def measure_all(record: Record, parts: dict[str, Callable[[], None]]) -> None:
    """Measure each part, and keep its results even if another one fails.

    Raises:
        SystemExit: one failed; the message names it.
    """
    failed = {}
    for name, part in parts.items():
        try:
            part()
        except Exception as error:
            traceback.print_exc()
            failed[name] = f"{type(error).__name__}: {error}"
            record.note("failed", failed)
        record.write()
    if failed:
        raise SystemExit(f"benchmarks/gpu.py could not measure {', '.join(failed)}")


def main() -> None:
    options = parser(__doc__, 5)
    options.add_argument("--photos", type=int, default=2000, help="the number of JPEGs")
    given = options.parse_args()
    gpu, rounds = Gpu(), given.rounds
    record = Record("gpu")
    record.note("gpu", gpu.name)

    def train() -> None:
        measure_training(gpu, record, rounds, sources_of(gpu, given.photos), training(gpu))

    def decode() -> None:
        folder = images(given.photos)
        named = {"cpu": "cpu", **decoders(gpu, next(folder.glob("*/*.jpg")))}
        measure_decoding(gpu, record, rounds, folder, named)

    parts = {
        "copies": partial(measure_copies, gpu, record, rounds),
        "overlap": partial(measure_overlap, gpu, record, rounds),
        "training": train,
        "decoding": decode,
    }
    measure_all(record, parts)


if __name__ == "__main__":
    main()
