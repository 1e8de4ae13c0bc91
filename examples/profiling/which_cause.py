"""Load with a planted cause, slow storage or CPU work, to see what tells them apart.

    python which_cause.py data/profiling --io-ms 20 --workers 0 2 8
    python which_cause.py data/profiling --cpu-ms 20 --workers 0 2 8

Nothing is done with the batches: this is the speed of loading alone. Slow storage leaves the cores idle,
and more workers than cores help; work for the CPU keeps them busy, and no number of workers makes it less.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from loop import Epoch, milliseconds, parser, report, watch
from synthetic_dataset import SyntheticImages

import foreload as fl


def main() -> None:
    arguments_of = parser(__doc__, epochs=1)
    arguments_of.add_argument("--io-ms", type=milliseconds, default=0.0, help="of the storage, for each file")
    arguments_of.add_argument("--cpu-ms", type=milliseconds, default=0.0, help="of the CPU, for each image")
    arguments_of.add_argument("--workers", type=int, nargs="+", default=[0, 2, 8], help="one number after another")
    arguments_of.add_argument("--loader", choices=("torch", "foreload"), default="torch")
    arguments = arguments_of.parse_args()
    if min(arguments.workers) < 0:
        arguments_of.error(f"--workers must be 0 or more, got {min(arguments.workers)}")
    # torch advises against more workers than cores; here that is the experiment.
    warnings.filterwarnings("ignore", "This DataLoader will create")
    images = SyntheticImages(arguments.data, io_ms=arguments.io_ms, cpu_ms=arguments.cpu_ms)
    by_workers: dict[int, Epoch] = {}
    for workers in arguments.workers:
        make: Any = fl.DataLoader if arguments.loader == "foreload" else torch.utils.data.DataLoader
        loader = make(images, batch_size=arguments.batch_size, shuffle=True, num_workers=workers)
        for _ in range(arguments.epochs):
            by_workers[workers] = watch(loader, lambda images, labels: None)
        epoch = by_workers[workers]
        speed, busy = epoch.samples_per_second, epoch.cpu_share
        print(f"{workers} workers: {speed:,.0f} images/s, cores busy {busy:.0%}", flush=True)
    report(list(by_workers.values()), arguments.json, workers=arguments.workers)


if __name__ == "__main__":
    main()
