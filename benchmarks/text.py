"""1 GB of lines in one file, batch 256, random access: against stock torch; the index; memory.

Stock's dataset does the same with a list of line starts, seek and readline. Both read from the page cache.
Each contestant for memory runs in a process of its own; this program, called with --child, is that process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tokenizers
import torch
from common import ROOT, Record, median, parser, take_turns
from memory import only_torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import foreload as fl
from foreload import _native
from foreload.machine import granted_cores
from foreload.record.usage import tree_bytes

BATCH = 256
SIZE = 10**9
LENGTH = 512
FILE = ROOT / "data" / "text" / "lines.txt"


def make_file() -> None:
    """Lines of words as frequent as in natural language (Zipf-Mandelbrot), 300,000 different ones."""
    if FILE.exists() and FILE.stat().st_size >= SIZE:
        return
    FILE.parent.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    words = ["".join(draw.choice(letters, n)) for n in draw.integers(1, 6, 300_000) + draw.integers(0, 6, 300_000)]
    words[100::10] = [word.capitalize() for word in words[100::10]]
    words[500::50] = [str(number) for number in draw.integers(0, 10**5, len(words[500::50]))]
    ends = ["", "", "", "", "", "", "", ",", ".", "'s"]
    shares = np.cumsum(1 / (np.arange(len(words)) + 2.7))
    lines = []
    for _ in range(300_000):
        count = int(draw.integers(15, 50))
        chosen = np.searchsorted(shares, draw.random(count) * shares[-1])
        lines.append(
            " ".join(words[i] + ends[k] for i, k in zip(chosen, draw.integers(0, 10, count), strict=True))
        )
    coded = [line.encode() + b"\n" for line in lines]
    with FILE.open("wb") as file:
        while file.tell() < SIZE:
            file.write(b"".join(coded[i] for i in draw.permutation(len(coded))))


class StockLines(Dataset[torch.Tensor]):
    """The dataset that one writes oneself: line starts (compact, for forks), seek, readline, ids, padding."""

    def __init__(self, tokenizer: tokenizers.Tokenizer | None) -> None:
        self.tokenizer = tokenizer
        self.starts = array("q", [0])
        with FILE.open("rb") as file:
            for line in file:
                self.starts.append(self.starts[-1] + len(line))
        self.starts.pop()
        self.file: Any = None

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.file is None:
            self.file = FILE.open("rb")
        self.file.seek(self.starts[index])
        text = self.file.readline().rstrip(b"\r\n").decode()
        ids = list(map(ord, text)) if self.tokenizer is None else self.tokenizer.encode(text).ids
        sample = torch.zeros(LENGTH, dtype=torch.int64)
        count = min(len(ids), LENGTH)
        sample[:count] = torch.tensor(ids[:count])
        return sample


def train_tokenizer() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    with FILE.open() as file:
        lines = [next(file) for _ in range(20_000)]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=16_000, special_tokens=["[PAD]"], show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


class RandomBatches:
    """Batches of random lines, so many per pass: a whole epoch is 5 million lines."""

    def __init__(self, lines: int, batches: int) -> None:
        self.lines, self.batches = lines, batches

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Any:
        return iter(torch.randint(self.lines, (self.batches, BATCH)).tolist())


def rate(loader: Iterable[Any]) -> Callable[[], float]:
    """Lines per second of a pass, from its first batch on: workers that start are not what is compared."""

    def run() -> float:
        batches = iter(loader)
        next(batches)
        started = time.perf_counter()
        count = sum(len(batch) for batch in batches)
        return count / (time.perf_counter() - started)

    return run


def loaders(dataset: Dataset[Any], kind: Any, batches: int) -> dict[str, Callable[[], float]]:
    name = "stock" if kind is TorchDataLoader else "foreload"
    sampler = RandomBatches(len(dataset), batches)  # type: ignore[arg-type]
    return {f"{name}, {n} workers": rate(kind(dataset, batch_sampler=sampler, num_workers=n)) for n in (0, 1, 2)}


def build_index(threads: int) -> Callable[[], float]:
    def run() -> float:
        started = time.perf_counter()
        source = _native.LineFile(os.fsencode(FILE), "lines", ",", threads, lambda _: None)
        return source.size / (time.perf_counter() - started) / 1e9

    return run


def build_cold() -> float:
    """The same, after the page cache has let go of the file."""
    descriptor = os.open(FILE, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    return build_index(granted_cores())()


def child(batches: int) -> float:
    """Give the largest PSS in MiB while batches are loaded, less the index."""
    dataset = fl.TextDataset(FILE)
    peak = 0
    loader = fl.DataLoader(dataset, batch_sampler=RandomBatches(len(dataset), batches), num_workers=2)
    for number, _ in enumerate(loader):
        if number % 50 == 0:
            peak = max(peak, tree_bytes())
    return (peak - dataset.entries.source.index_bytes) / 2**20


def measure(batches: int) -> float:
    command = [sys.executable, "-W", "ignore", __file__, "--child", str(batches)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return float(json.loads(output.splitlines()[-1]))


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(child(int(sys.argv[2]))))
        return
    options: argparse.ArgumentParser = parser(__doc__, 5)
    chosen = options.parse_args()
    make_file()
    record = Record("text")
    memory = {"only torch": [], "foreload, less the index": []}  # type: dict[str, list[float]]
    measure(10)
    for _ in range(3):
        memory["only torch"].append(only_torch())
        memory["foreload, less the index"].append(measure(1000))
    record.samples(memory, "MiB")
    above = median(memory, "foreload, less the index") - median(memory, "only torch")

    indexing = take_turns(
        {"index, 1 thread": build_index(1), f"index, {granted_cores()} threads": build_index(granted_cores())},
        chosen.rounds,
    )
    record.samples(indexing, "GB/s")
    reached = {"index": max(median(indexing, name) for name in indexing)}
    for what, tokenizer, batches in (("characters", None, 200), ("BPE", train_tokenizer(), 60)):
        contestants = loaders(StockLines(tokenizer), TorchDataLoader, batches)
        contestants |= loaders(fl.TextDataset(FILE, tokenizer, LENGTH), fl.DataLoader, batches)
        rates = take_turns(contestants, chosen.rounds)
        best = {
            who: max(median(rates, name) for name in rates if name.startswith(who))
            for who in ("stock", "foreload")
        }
        record.samples({f"{what}: {name}": values for name, values in rates.items()}, "lines/s")
        reached[what] = best["foreload"] / best["stock"]
    record.samples({"index, cold file": [build_cold() for _ in range(2)]}, "GB/s")
    record.verdict("characters, each at its best number of workers", reached["characters"], 2)
    record.verdict("BPE tokens, each at its best number of workers", reached["BPE"], 2)
    record.verdict("index of a file in the page cache, GB/s", reached["index"], 1)
    record.verdict("memory above torch and the index, MiB", above, 60, most=True)
    record.write()


if __name__ == "__main__":
    main()
