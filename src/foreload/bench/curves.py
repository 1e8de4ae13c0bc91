"""Hit rates and times per epoch over the size of a cache, computed without running any epoch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from foreload import transforms
from foreload.cache.plan import compile_plan
from foreload.checks import Array
from foreload.datasets.images.dataset import ImageDataset
from foreload.loader import DataLoader
from foreload.machine import granted_cores
from foreload.options import POLICIES, Cache, Keep
from foreload.order.samplers import KeyedSampler

if TYPE_CHECKING:
    from rich.table import Table


__all__ = ["OrderKind", "Samples", "curves", "enough", "foresee_order", "measure_folder", "plot", "table"]

OrderKind = Literal["permutation", "replacement", "weighted", "zipf"]

# Images that are loaded to measure what loading costs.
_NUM_MEASURED = 256


@dataclass(frozen=True)
class Samples:
    """Sizes and costs of the samples that are to be cached.

    Attributes:
        sizes: bytes that each sample takes in the cache; 1 each if only their number is known.
        loads: seconds that a hit saves, for each sample.
        rest: seconds that a hit takes nevertheless.
        workers: the number of workers that load at once.
        known: whether sizes are bytes and times are seconds.
    """

    sizes: Array
    loads: Array
    rest: float = 0.0
    workers: int = 1
    known: bool = False

    @classmethod
    def alike(cls, count: int, ranks: int = 1) -> Samples:
        """Describe ``count`` equal samples; an epoch of a rank without a cache takes 1."""
        return cls(np.ones(count, np.int64), np.full(count, ranks / count))


@dataclass(frozen=True)
class Point:
    """A policy with a budget: hit rate and seconds per epoch, after the first epoch."""

    policy: str
    budget: int
    hit_rate: float
    seconds: float


def measure_folder(folder: Path, keep: Keep) -> Samples:
    """Measure sizes and costs of a folder of images by loading some of them with and without a cache."""
    images = ImageDataset(folder, transform=transforms.train(224), cache_size=0)
    chosen = KeyedSampler(images, 0).positions(0, min(_NUM_MEASURED, len(images)))
    tried = ImageDataset([images.samples[i][0] for i in chosen], transform=images.transform, cache_size=0)
    with DataLoader(tried, batch_size=32, cache=Cache("25%", keep=keep)) as loader:
        slow, fast = _seconds(loader), min(_seconds(loader) for _ in range(3))
        sizes = loader.sample_cache.store.sizes() if loader.sample_cache is not None else np.zeros(0)
        costs = tried.form_costs()
    with DataLoader(tried, batch_size=32) as loader:
        slow = min(_seconds(loader) for _ in range(3))
    encoded = np.array([Path(path).stat().st_size for path, _ in images.samples], np.int64)
    # Memory and time per image are taken to be proportional to the size of its file.
    share = encoded / max(1.0, float(costs[2].mean()))
    workers = granted_cores()
    return Samples(
        sizes=np.maximum(1, (share * sizes.mean()).astype(np.int64)),
        loads=share * max(0.0, slow - fast) / len(chosen) * workers,
        rest=fast / len(chosen) * workers,
        workers=workers,
        known=True,
    )


def _seconds(loader: DataLoader[Any]) -> float:
    begin = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - begin


def foresee_order(kind: OrderKind, samples: int, epochs: int, ranks: int = 1, seed: int = 0) -> list[Array]:
    """Draw an order: the samples that one of ``ranks`` ranks requests in each epoch.

    ``"weighted"`` draws with weights that spread by a factor of about ten, ``"zipf"`` with weights 1 / rank.
    """
    if kind == "permutation":
        positions = (KeyedSampler(range(samples), seed, epoch).positions(0, samples) for epoch in range(epochs))
        return [order[::ranks] for order in positions]
    random = np.random.default_rng(seed)
    weights = np.ones(samples)
    if kind == "weighted":
        weights = random.lognormal(0.0, 1.0, samples)
    elif kind == "zipf":
        weights = 1.0 / np.arange(1, samples + 1)
    ends = np.cumsum(weights) / weights.sum()
    count = samples // ranks
    return [np.minimum(np.searchsorted(ends, random.random(count)), samples - 1) for _ in range(epochs)]


def curves(
    samples: Samples, epochs: Sequence[Array], budgets: Sequence[int], done: Callable[[], object] = lambda: None
) -> list[Point]:
    """Compile every policy for every budget, and return hit rates and times after the first epoch."""
    accesses = np.concatenate(epochs)
    warm = slice(len(epochs[0]), None) if len(epochs) > 1 else slice(None)
    passes = max(1, len(epochs) - 1)
    points = []
    for policy in POLICIES:
        for budget in budgets:
            plan = compile_plan(
                accesses, len(samples.sizes), budget, policy, sizes=samples.sizes, costs=samples.loads
            )
            hits, asked = plan.hits[warm], accesses[warm]
            seconds = (samples.loads[asked[~hits]].sum() + samples.rest * len(asked)) / passes / samples.workers
            points.append(Point(policy, int(budget), float(hits.mean()), float(seconds)))
            done()
    return points


def enough(points: Sequence[Point], share: float = 0.05) -> int | None:
    """Return the smallest budget of ``opt`` from which on more saves less than ``share`` of the uncached time."""
    best = sorted((point for point in points if point.policy == "opt"), key=lambda point: point.budget)
    slowest, fastest = best[0].seconds, best[-1].seconds
    for point in best[:-1]:
        if point.seconds - fastest < share * slowest:
            return point.budget
    return None


def table(points: Sequence[Point], samples: Samples) -> Table:
    """Return a table for the terminal: hit rate and time for each budget and policy."""
    from rich.table import Table

    grid = Table(title="hit rate, and time per epoch, after the first epoch", title_justify="left")
    for name in ("budget", *POLICIES):
        grid.add_column(name, justify="right")
    total = int(samples.sizes.sum())
    found = {(point.policy, point.budget): point for point in points}
    for budget in sorted({point.budget for point in points}):
        cells = []
        for policy in POLICIES:
            point = found[policy, budget]
            took = f"{point.seconds:.2f} s" if samples.known else f"{point.seconds:.2f}"
            cells.append(f"{point.hit_rate:.3f}  {took}")
        grid.add_row(f"{amount(budget, samples)} ({budget / total:.0%})", *cells)
    return grid


def amount(budget: int, samples: Samples) -> str:
    """Return a budget as text."""
    return f"{budget / 2**30:,.2f} GiB" if samples.known else f"{budget:,} samples"


def write_json(path: Path, points: Sequence[Point], about: dict[str, Any]) -> None:
    """Write every figure to a JSON file."""
    path.write_text(json.dumps({**about, "points": [asdict(point) for point in points]}, indent=1) + "\n")


def plot(path: Path, points: Sequence[Point], samples: Samples) -> None:
    """Plot hit rates and times over the budget.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ModuleNotFoundError("a plot needs matplotlib: pip install 'foreload[plots]'") from None
    figure = Figure(figsize=(10, 4), layout="constrained")
    rates, times = figure.subplots(1, 2)
    total = float(samples.sizes.sum())
    for policy in POLICIES:
        mine = sorted((point for point in points if point.policy == policy), key=lambda point: point.budget)
        across = [100 * point.budget / total for point in mine]
        rates.plot(across, [point.hit_rate for point in mine], label=policy, marker=".")
        times.plot(across, [point.seconds for point in mine], label=policy, marker=".")
    for axes, name in (
        (rates, "hit rate"),
        (times, "seconds per epoch" if samples.known else "time, 1: no cache"),
    ):
        axes.set_xlabel("budget, % of the data")
        axes.set_ylabel(name)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    rates.legend()
    figure.savefig(path)


def order_kinds() -> tuple[str, ...]:
    """List the kinds of order."""
    return get_args(OrderKind)
