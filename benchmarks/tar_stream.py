"""Small records from tar shards by one thread: processor time per record, against reading the same bytes.

python3 -m benchmarks.tar_stream [--rounds N]

Processor time, and all of it in one process in turns, so that it can be compared on a machine that is not idle.
"""

from __future__ import annotations

import tarfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.common import ROOT, Record, parser, take_turns
from benchmarks.peers.work import made
from benchmarks.peers.workloads.files import SIZE, make_shards

import foreload as fl

COUNT = 20_000


def read(folder: Path) -> int:
    """The bytes alone, in the steps in which streams read."""
    memory, total = memoryview(bytearray(256 << 10)), 0
    for shard in sorted(folder.iterdir()):
        with shard.open("rb", buffering=0) as file:
            while count := file.readinto(memory):
                total += count
    return total


def by_tarfile(folder: Path) -> int:
    """A loop over tarfile's members, in their order."""
    total = 0
    for shard in sorted(folder.iterdir()):
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                content = tar.extractfile(member)
                total += len(content.read()) if content else 0
    return total


def stream(folder: Path) -> int:
    """Shuffled, in batches."""
    dataset = fl.TarStream(folder, seed=0)
    return sum(len(batch["bin"]) for batch in fl.DataLoader(dataset, 64, num_workers=0))


def main() -> None:
    """Measure, show and keep."""
    rounds = parser(__doc__, rounds=15).parse_args().rounds
    folder = made(ROOT / "data" / "peers" / f"tar-{COUNT}", lambda folder: make_shards(folder, COUNT))
    assert stream(folder) == COUNT

    def microseconds(run: Callable[[Path], int]) -> Callable[[], float]:
        def measured() -> float:
            before = time.process_time()
            run(folder)
            return 1e6 * (time.process_time() - before) / COUNT

        return measured

    samples = take_turns(
        {
            "the bytes read, into one buffer": microseconds(read),
            "tarfile, in order": microseconds(by_tarfile),
            "TarStream, shuffled, batches of 64": microseconds(stream),
        },
        rounds,
    )
    record = Record("tar_stream")
    print(f"{COUNT:,} records of {SIZE} bytes, in memory; microseconds of a core for each")
    record.samples(samples, "us/record")
    record.write()


if __name__ == "__main__":
    main()
