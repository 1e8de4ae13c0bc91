"""Workers that are killed at random, and runs that crash at random and resume."""

from __future__ import annotations

import gc
import io
import os
import random
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

import foreload as fl
from foreload.order.samplers import KeyedSampler

sys.path.append(str(Path(__file__).parent.parent))

from common import Record, parser


class Numbers(Dataset[Any]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return {"index": index, "row": torch.full((3000,), float(index))}


def left() -> tuple[int, int]:
    """Descriptors, and mapped slots."""
    return len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count("memfd:foreload")


def kills(wanted: int, epochs: int) -> tuple[int, int, bool]:
    """Kill workers at random; give the kills, the epochs that were exact, and whether nothing is left."""
    chance = random.Random(0)
    dataset = Numbers(400)
    before = None
    done = good = 0
    for number in range(epochs):
        loader = fl.DataLoader(
            dataset, batch_size=4, shuffle=True, seed=1, num_workers=2, workers="processes", max_restarts=1000
        )
        loader.set_epoch(number)
        expected = list(KeyedSampler(dataset, 1, number))
        seen = []
        iterator: Any = iter(loader)
        for position, batch in enumerate(iterator):
            seen += batch["index"].tolist()
            assert (batch["row"][:, 7] == batch["index"]).all()
            due = wanted * (number * 100 + position + 1) // (epochs * 100)
            while done < due:
                process = chance.choice(iterator._workers)
                if process.is_alive():
                    os.kill(process.pid, signal.SIGKILL)
                done += 1
        good += seen == expected
        del iterator, loader, batch  # which is in a slot
        gc.collect()
        before = left() if before is None else before
    return done, good, left() == before


def crashes(wanted: int) -> int:
    """Stop at random, go on elsewhere with other workers; count how often that was exact."""
    chance = random.Random(1)
    dataset = Numbers(500)
    good = 0

    def make(workers: int) -> Any:
        kind: Any = "threads" if workers == 3 else "processes"
        return fl.DataLoader(dataset, batch_size=7, shuffle=True, seed=2, num_workers=workers, workers=kind)

    expected = [batch["index"].tolist() for batch in make(0)]
    for _ in range(wanted):
        stop = chance.randrange(len(expected) + 1)
        loader = make(chance.choice([0, 2, 3]))
        iterator = iter(loader)
        got = [next(iterator)["index"].tolist() for _ in range(stop)]
        file = io.BytesIO()
        torch.save(loader.state_dict(), file)
        del iterator, loader
        file.seek(0)
        again = make(chance.choice([0, 2, 3]))
        again.load_state_dict(torch.load(file))
        got += [batch["index"].tolist() for batch in again]
        good += got == expected
    return good


def main() -> None:
    options = parser(__doc__, 1)
    options.add_argument("--kills", type=int, default=500)
    options.add_argument("--crashes", type=int, default=100)
    chosen = options.parse_args()
    warnings.filterwarnings("ignore", message="DataLoader worker")
    record = Record("workers_faults")
    done, good, clean = kills(chosen.kills, 50)
    record.samples({"workers killed": [done], "epochs complete, exact, in order": [good]}, "")
    record.verdict("epochs complete and exact, of 50", good, 50)
    record.verdict("nothing is left behind (1: yes)", int(clean), 1)
    exact = crashes(chosen.crashes)
    record.verdict(f"exact continuations, of {chosen.crashes}", exact, chosen.crashes)
    record.write()


if __name__ == "__main__":
    main()
