"""Tar shards on a server 30 ms away, 16 x 512 samples of 64 KB, in batches of 64: samples per second.

WebDataset reads whole shards, several at a time where it has workers, and shuffles shards and a buffer of 1,000
samples; foreload reads each sample by itself, in an order shuffled over all of them. Whole epochs with their
start, the server on the same cores.
"""

from __future__ import annotations

import io
import os
import socket
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import webdataset as wds
from common import ROOT, Record, median, parser, take_turns

import foreload as fl

SHARDS, EACH, SIZE, BATCH = 16, 512, 64 << 10, 64
COUNT = SHARDS * EACH


def written() -> Path:
    """Noise: made once, then read once."""
    folder = ROOT / "data" / "remote"
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for shard in range(SHARDS):
        path = folder / f"shard-{shard:06}.tar"
        if not path.exists():
            with tarfile.open(path.with_suffix(".part"), "w") as tar:
                for number in range(shard * EACH, (shard + 1) * EACH):
                    for field, content in (("bin", rng.bytes(SIZE)), ("cls", str(number % 10).encode())):
                        member = tarfile.TarInfo(f"{number:06}.{field}")
                        member.size = len(content)
                        tar.addfile(member, io.BytesIO(content))
            path.with_suffix(".part").rename(path)
        path.read_bytes()
    fl.TarDataset(folder)  # which writes the indexes
    return folder


def server(folder: Path, milliseconds: float) -> tuple[subprocess.Popen[bytes], str]:
    """Compile and start it."""
    program = ROOT / "build" / "slow_server"
    program.parent.mkdir(exist_ok=True)
    source = Path(__file__).with_name("slow_server.cpp")
    subprocess.run(["c++", "-O2", "-std=c++20", "-o", program, source], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([program, folder, str(port), str(milliseconds)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process, f"http://127.0.0.1:{port}"


def epoch(make: Callable[[], Iterable[Any]], count: Callable[[Any], int]) -> Callable[[], float]:
    def run() -> float:
        started = time.perf_counter()
        given = sum(count(batch) for batch in make())
        seconds = time.perf_counter() - started
        assert given == COUNT, given
        return given / seconds

    return run


def web(base: str, workers: int, pipe: bool) -> Callable[[], Iterable[Any]]:
    urls = [f"{base}/shard-{shard:06}.tar" for shard in range(SHARDS)]
    if pipe:
        urls = [f"pipe:curl -s {url}" for url in urls]

    def make() -> Iterable[Any]:
        dataset = wds.WebDataset(urls, shardshuffle=SHARDS, empty_check=False).shuffle(1000)
        dataset = dataset.to_tuple("__key__", "bin", "cls").batched(BATCH)
        loader: Iterable[Any] = wds.WebLoader(dataset, batch_size=None, num_workers=workers)
        return loader

    return make


def main() -> None:
    options = parser(__doc__, 5)
    options.add_argument("--milliseconds", type=float, default=30, help="latency of each request")
    arguments = options.parse_args()
    process, base = server(written(), arguments.milliseconds)
    record = Record("remote")
    try:
        dataset = fl.TarDataset(f"{base}/shard-{{000000..{SHARDS - 1:06}}}.tar")
        loader = fl.DataLoader(dataset, BATCH, shuffle=True)
        contestants: dict[str, Callable[[], float]] = {}
        for workers in (0, 2, 4):
            for pipe in (False, True):
                name = f"WebDataset, {workers} workers, {'pipe:curl' if pipe else 'http'}"
                contestants[name] = epoch(web(base, workers, pipe), lambda batch: len(batch[0]))
        others = list(contestants)
        contestants["foreload"] = epoch(lambda: loader, lambda batch: len(batch["__key__"]))
        print(f"load average {os.getloadavg()[0]:.1f}")
        rates = take_turns(contestants, arguments.rounds)
        record.samples(rates, "samples/s")
        best = max(median(rates, name) for name in others)
        record.verdict("samples/s, against WebDataset's best", median(rates, "foreload") / best, 1.5)
        print(f"foreload's workers: {loader.stats()['workers']}; load average {os.getloadavg()[0]:.1f}")
    finally:
        process.kill()
        process.wait()
    record.write()


if __name__ == "__main__":
    main()
