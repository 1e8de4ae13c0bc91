"""Hit rates and times per epoch over the size of a cache, computed without running any epoch."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from foreload import transforms
from foreload.cache.plan import compile_plan
from foreload.checks import Array
from foreload.datasets.images.dataset import ImageDataset
from foreload.loader import DataLoader
from foreload.machine import granted_cores, granted_memory
from foreload.options import POLICIES, Cache, Keep, Policy
from foreload.order.samplers import KeyedSampler
from foreload.record.units import quantity, seconds

if TYPE_CHECKING:
    from rich.table import Table


__all__ = [
    "OrderKind",
    "SampleCosts",
    "amount",
    "curves",
    "draw_order",
    "enough",
    "measure_folder",
    "plot",
    "recommended_cache",
    "style",
    "table",
]  # fmt: skip

OrderKind = Literal["permutation", "replacement", "weighted", "zipf"]

# A policy within this factor of the fastest is as good.
_NEAR_BEST = 1.01
# Hit rates that are as good as equal.
_SAME_RATE = 0.005

# Images that are loaded to measure what loading costs.
_NUM_MEASURED = 256


@dataclass(frozen=True)
class SampleCosts:
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
    def alike(cls, count: int, ranks: int = 1) -> SampleCosts:
        """Describe ``count`` equal samples; an epoch of a rank without a cache takes 1."""
        return cls(np.ones(count, np.int64), np.full(count, ranks / count))


@dataclass(frozen=True)
class BudgetPoint:
    """A policy with a budget: hit rate and seconds per epoch, after the first epoch."""

    policy: str
    budget: int
    hit_rate: float
    seconds: float


def measure_folder(folder: Path, keep: Keep) -> SampleCosts:
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
    return SampleCosts(
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


def draw_order(kind: OrderKind, samples: int, epochs: int, ranks: int = 1, seed: int = 0) -> list[Array]:
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
    samples: SampleCosts,
    epochs: Sequence[Array],
    budgets: Sequence[int],
    done: Callable[[], object] = lambda: None,
) -> list[BudgetPoint]:
    """Compile every policy for every budget, and return hit rates and times after the first epoch."""
    accesses = np.concatenate(epochs)
    warm = slice(len(epochs[0]), None) if len(epochs) > 1 else slice(None)
    passes = max(1, len(epochs) - 1)

    def point(policy: Policy, budget: int) -> BudgetPoint:
        plan = compile_plan(accesses, len(samples.sizes), budget, policy, sizes=samples.sizes, costs=samples.loads)
        hits, asked = plan.hits[warm], accesses[warm]
        took = (samples.loads[asked[~hits]].sum() + samples.rest * len(asked)) / passes / samples.workers
        done()
        return BudgetPoint(policy, int(budget), float(hits.mean()), float(took))

    with ThreadPoolExecutor(granted_cores()) as threads:
        return list(threads.map(point, *zip(*itertools.product(POLICIES, budgets), strict=True)))


def enough(points: Sequence[BudgetPoint], share: float = 0.05) -> int | None:
    """Return the smallest budget of ``opt`` from which on more saves less than ``share`` of the uncached time."""
    best = sorted((point for point in points if point.policy == "opt"), key=lambda point: point.budget)
    slowest, fastest = best[0].seconds, best[-1].seconds
    for point in best[:-1]:
        if point.seconds - fastest < share * slowest:
            return point.budget
    return None


def table(points: Sequence[BudgetPoint], samples: SampleCosts) -> Table:
    """Return a table for the terminal: hit rate and time for each budget and policy."""
    from rich.table import Table

    grid = Table(title="hit rate, and time per epoch, after the first epoch", title_justify="left")
    for name in ("budget", *POLICIES):
        grid.add_column(name, justify="right")
    total = int(samples.sizes.sum())
    found = {(point.policy, point.budget): point for point in points}
    for budget in sorted({point.budget for point in points}):
        row = [found[policy, budget] for policy in POLICIES]
        cells = [f"{point.hit_rate:.3f}  {_time(point.seconds, samples)}" for point in row]
        grid.add_row(f"{amount(budget, samples)} ({budget / total:.0%})", *cells)
    notes = [] if samples.known else ["100%: an epoch without a cache"]
    if any(point.hit_rate > found["opt", point.budget].hit_rate for point in points):
        notes.append("opt saves the most time; of samples that load in less time, another policy may keep more")
    grid.caption, grid.caption_justify = "\n".join(notes), "left"
    return grid


def amount(budget: int, samples: SampleCosts) -> str:
    """Return a budget as text: bytes with three significant digits, rounded up so that it is enough.

    >>> folder = SampleCosts(np.array([1 << 30]), np.array([1.0]), known=True)
    >>> amount(3435973836, folder), amount(1 << 20, folder), amount(500, SampleCosts.alike(1000))
    ('3.2 GiB', '1 MiB', '500 samples')
    """
    if not samples.known:
        return quantity(budget, "sample", "samples")
    unit, size = _unit(budget)
    value = budget / size
    step = 10.0 ** min(0, math.floor(math.log10(max(value, 1.0))) - 2)
    return f"{math.ceil(value / step) * step:.6g} {unit}"


def _unit(budget: float) -> tuple[str, int]:
    """Return the largest unit in which an amount is at least 1, and its bytes."""
    units = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)]
    return next((unit for unit in units if budget >= unit[1]), units[-1])


def _time(value: float, samples: SampleCosts) -> str:
    return seconds(value) if samples.known else f"{100 * value:.0f}%"


def recommended_cache(
    points: Sequence[BudgetPoint], samples: SampleCosts, keep: Keep = "auto", ranks: int = 1
) -> tuple[str, str]:
    """Return what the curves speak for: a line on what it gives, and the argument of a DataLoader.

    It is the smallest budget from which on more saves little (see :func:`enough`), of those that this machine has
    the memory for; with the policy that is fastest there, if that is not the default.
    """
    most = granted_memory() if samples.known else math.inf
    fitting = [point for point in points if point.budget <= most]
    largest = max(point.budget for point in fitting)
    least = enough(points)
    budget = largest if least is None else min(least, largest)
    here = {point.policy: point for point in fitting if point.budget == budget}
    best = min(here.values(), key=lambda point: point.seconds)
    chosen = here["opt"] if here["opt"].seconds <= _NEAR_BEST * best.seconds else best
    without = next(point for point in points if point.budget == 0)
    if budget == 0:
        return "none of these budgets saves 5% of the time:", "cache=None"
    took, before = (_time(point.seconds, samples) for point in (chosen, without))
    if samples.known:
        gives = f"{took} per epoch instead of {before}"
        size = '"' + amount(budget, samples).replace(" ", "") + '"'
    else:
        gives = f"an epoch in {took} of its time, if a sample takes sample_bytes in memory"
        size = f"{budget} * sample_bytes"
    more = {"policy": chosen.policy} if chosen.policy != "opt" else {}
    more |= {"keep": keep} if keep != "auto" else {}
    options = [
        size,
        *(f'{name}="{value}"' for name, value in more.items()),
        *(["share=False"] if ranks > 1 else []),
    ]
    return f"hit rate {chosen.hit_rate:.3f}, {gives}, with:", f"cache={size}" if options == [
        size
    ] else f"cache=foreload.Cache({', '.join(options)})"


def write_json(path: Path, points: Sequence[BudgetPoint], about: dict[str, Any]) -> None:
    """Write every figure to a JSON file."""
    path.write_text(json.dumps({**about, "points": [asdict(point) for point in points]}, indent=1) + "\n")


def plot(path: Path, points: Sequence[BudgetPoint], samples: SampleCosts) -> None:
    """Plot hit rates and times over the budget.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ModuleNotFoundError("a plot needs matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    rates, times = figure.subplots(1, 2)
    total = float(samples.sizes.sum())
    unit, size = _unit(total) if samples.known else ("samples", 1)
    for number, policy in enumerate(POLICIES):
        mine = sorted((point for point in points if point.policy == policy), key=lambda point: point.budget)
        same = next((other for other in POLICIES[:number] if _is_alike(points, policy, other)), None)
        look = style(number, len(mine), policy if same is None else f"{policy} (as {same})")
        across = [point.budget / size for point in mine]
        rates.plot(across, [100 * point.hit_rate for point in mine], **look)
        times.plot(across, [point.seconds * (1 if samples.known else 100) for point in mine], **look)
    time_name = "seconds per epoch" if samples.known else "time per epoch, % of that without a cache"
    for axes, name in ((rates, "hit rate, %"), (times, time_name)):
        axes.set_xlabel(f"budget, {unit}")
        axes.set_ylabel(name)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        shares = (lambda budget: 100 * budget * size / total, lambda share: share * total / size / 100)
        axes.secondary_xaxis("top", functions=shares).set_xlabel("% of the data")
    figure.legend(
        *rates.get_legend_handles_labels(), loc="outside lower center", ncols=len(POLICIES), handlelength=4
    )
    figure.savefig(path, dpi=130)


def style(number: int, count: int, label: str) -> dict[str, Any]:
    """Return how a policy's line looks: without colours too, and below a line that lies on it."""
    colours = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")  # Okabe and Ito's
    dashes: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)), (0, (3, 3)), (0, (1, 3)))
    # Later lines are thinner, so that an earlier one shows on both sides; their markers are at other places.
    return {
        "label": label,
        "color": colours[number],
        "linestyle": dashes[number],
        "linewidth": 6.0 - 0.9 * number,
        "marker": "os^DvX"[number],
        "markersize": 7,
        "markeredgecolor": "black",
        "markeredgewidth": 0.7,
        "markevery": (number % count, len(dashes)),
    }


def _is_alike(points: Sequence[BudgetPoint], one: str, other: str) -> bool:
    """Whether nobody could tell the lines of two policies apart."""
    rates = [{point.budget: point.hit_rate for point in points if point.policy == name} for name in (one, other)]
    return all(abs(rate - rates[1][budget]) < _SAME_RATE for budget, rate in rates[0].items())


def order_kinds() -> tuple[str, ...]:
    """List the kinds of order."""
    return get_args(OrderKind)
