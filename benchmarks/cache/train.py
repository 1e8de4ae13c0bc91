"""Training a small CNN from JPEGs: images per second with each policy and budget, after the first epoch."""

from __future__ import annotations

import time
from typing import Any

import torch
from experiment import Record, draw, images, median, parser, take_turns
from torch import nn

import foreload as fl
from foreload.options import POLICIES

COUNT, SIDE = 1000, 64
SHARES = [0.10, 0.25, 0.50, 0.75]


def model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip


def epoch(loader: Any, network: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Images per second."""
    started = time.perf_counter()
    for pictures, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(pictures), labels % 10).backward()
        optimizer.step()
    return COUNT / (time.perf_counter() - started)


def main() -> None:
    options = parser(__doc__, 3).parse_args()
    record = Record("cache_train")
    torch.set_num_threads(1)
    data = fl.ImageDataset(
        images(COUNT), transform=fl.transforms.train(SIDE, color_jitter=(0.2, 0.2, 0.2, 0.1)), cache_size=0
    )
    encoded = sum(len(data._files.read(i)) + 192 for i in range(COUNT))
    decoded = COUNT * 500 * 375 * 3 // 2
    print(f"the data: {encoded / 2**20:.0f} MiB as files, {decoded / 2**20:.0f} MiB as 4:2:0 planes")

    def contestant(policy: str | None, share: float) -> Any:
        cache = None if policy is None else fl.Cache(int(share * decoded), policy=policy, keep="decoded")  # type: ignore[arg-type]
        loader = fl.DataLoader(data, 50, shuffle=True, seed=0, num_workers=2, cache=cache)
        network = model()
        optimizer = torch.optim.SGD(network.parameters(), 0.01)
        epoch(loader, network, optimizer)
        return lambda: epoch(loader, network, optimizer)

    lines: dict[str, tuple[list[float], list[float]]] = {policy: ([], []) for policy in POLICIES}
    plain: list[float] = []
    for share in SHARES:
        # Few at a time: what is cached must fit into memory beside the others.
        runs = {"no cache": contestant(None, 0)}
        runs |= {f"{policy}, {share:.0%}": contestant(policy, share) for policy in POLICIES}
        speeds = take_turns(runs, options.rounds)
        record.samples(speeds, "images/s")
        plain.append(median(speeds, "no cache"))
        for policy in POLICIES:
            lines[policy][0].append(share)
            lines[policy][1].append(median(speeds, f"{policy}, {share:.0%}"))
        best = max(lines[policy][1][-1] for policy in POLICIES if policy not in ("opt", "fixed"))
        record.verdict(
            f"{share:.0%}: opt against the best that looks back, speed", lines["opt"][1][-1] / best, 1.0
        )
    lines["no cache"] = (SHARES, plain)
    draw(
        "cache_train", {"training a small CNN": lines}, "budget, share of the decoded images", "images per second"
    )
    record.write()


if __name__ == "__main__":
    main()
