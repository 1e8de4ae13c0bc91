"""A GPU and what feeds it: copies against the bus, PrefetchLoader against stock, ResNet-50, and decoding on it.

Everything on the GPU is timed by events on its streams.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from common import Record, Samples, images, median, parser, take_turns
from resnet import resnet50
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import foreload as fl
from foreload.datasets.images.decoders import decoder_named

# Of the copies that are compared: 1,000 images of 3 x 224 x 224 as float32 have 602 MB.
COPY_BYTES = 128 << 20
BATCH = 256
WORKERS = 8


class Gpu:
    """The device that is measured."""

    device = torch.device("cuda")

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise SystemExit(
                "benchmarks/gpu.py measures a CUDA device, and torch finds none: nothing was measured."
            )
        self.name = torch.cuda.get_device_name()

    def event(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) * 1e-3

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def host_memory(self, size: int, *, pin: bool) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8, pin_memory=pin)

    def copy(self, host: torch.Tensor) -> torch.Tensor:
        return host.to(self.device, non_blocking=True)


class Pass(NamedTuple):
    """A loop over some batches.

    Attributes:
        seconds: from the first step's end to the last one's, per step.
        first: seconds from the beginning to the end of the first step.
        idle: the share of the time, from the first step's end on, in which the GPU did no work of a step.
    """

    seconds: float
    first: float
    idle: float


def rate(gpu: Gpu, host: torch.Tensor, repeats: int = 10) -> float:
    """GB/s of copies of some memory to the device."""
    start = gpu.event()
    for _ in range(repeats):
        gpu.copy(host)
    end = gpu.event()
    gpu.synchronize()
    return repeats * host.nbytes / gpu.seconds(start, end) / 1e9


def loop(gpu: Gpu, batches: Iterable[Any], step: Callable[[Any], None], steps: int) -> Pass:
    """Work with batches, as a training loop does: without waiting for the GPU, but once after the first step."""
    began = time.perf_counter()
    first = 0.0
    spans = []
    for batch in islice(batches, steps):
        begin = gpu.event()
        step(batch)
        spans.append((begin, gpu.event()))
        if len(spans) == 1:
            gpu.synchronize()
            first = time.perf_counter() - began
    gpu.synchronize()
    if len(spans) < 2:
        raise ValueError(f"a pass needs two steps, and there were batches for {len(spans)}")
    total = gpu.seconds(spans[0][1], spans[-1][1])
    idle = sum(gpu.seconds(end, begin) for (_, end), (begin, _) in pairwise(spans))
    return Pass(total / (len(spans) - 1), first, idle / total)


class Ready(Dataset[torch.Tensor]):
    """Batches that are there already, so that nothing but moving them takes time."""

    def __init__(self, size: int, count: int) -> None:
        self.batch, self.count = torch.zeros(size, dtype=torch.uint8), count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.batch


def moved(gpu: Gpu, batches: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """What a loop does about batches that are not on the device."""
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
    for name in sources:
        record.verdict(f"{name}: GPU idle, %", median(idle, f"{name}: idle"), 2, most=True)
        record.verdict(f"{name}: first step, s", median(first, f"{name}: first step"), 2, most=True)


def sources_of(gpu: Gpu, photos: int) -> dict[str, Callable[[], Iterable[Any]]]:
    """Loaders of uint8 images in memory, and of JPEGs, whose pixels are cached after the first pass."""
    normalize = fl.transforms.Normalize(dtype=torch.bfloat16, channels_last=True)
    pixels = torch.randint(0, 256, (40 * BATCH, 3, 224, 224), dtype=torch.uint8)
    synthetic = fl.CachedDataset((pixels, torch.randint(0, 1000, (len(pixels),))))
    jpegs = fl.ImageDataset(images(photos), transform=fl.transforms.train(224, normalize=False))
    how: dict[str, Any] = {"shuffle": True, "seed": 0, "device": gpu.device, "device_transform": normalize}
    loaders = {
        "uint8 tensors": fl.DataLoader(synthetic, BATCH, **how),
        "JPEG, cached": fl.DataLoader(jpegs, BATCH, cache="50%", drop_last=True, **how),
    }

    def epochs(loader: fl.DataLoader[Any]) -> Iterator[Any]:
        while True:
            yield from loader

    return {name: partial(epochs, loader) for name, loader in loaders.items()}


def decoders() -> list[str]:
    """Return the names of the decoders for a GPU that are installed."""
    found = []
    for name in ("nvimagecodec", "torchvision", "dali"):
        try:
            decoder_named(name)
        except RuntimeError:
            continue
        found.append(name)
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


def main() -> None:
    options = parser(__doc__, 5)
    options.add_argument("--photos", type=int, default=2000, help="the number of JPEGs")
    given = options.parse_args()
    gpu = Gpu()
    record = Record("gpu")
    record.note("gpu", gpu.name)
    measure_copies(gpu, record, given.rounds)
    measure_overlap(gpu, record, given.rounds)
    measure_training(gpu, record, given.rounds, sources_of(gpu, given.photos), training(gpu))
    named = {name: name for name in ("cpu", *decoders())}
    measure_decoding(gpu, record, given.rounds, images(given.photos), named)
    record.write()


if __name__ == "__main__":
    main()
