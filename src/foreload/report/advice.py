"""What to change about a loader, with the gain that the model predicts for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from foreload.record.units import size
from foreload.tune.costs import Costs
from foreload.tune.predict import HitForm, hit_bytes, predict

if TYPE_CHECKING:
    from foreload.record.stats import Stats


__all__ = ["Advice", "advise"]

# What gains less is not worth a change.
_WORTH = 1.05

# Of several settings, the smallest that gives this share of what the best one gives.
_NEARLY = 0.95

# Threads that wait cost next to nothing, but not nothing.
_MOST_WORKERS = 32

# The share of free memory that may be advised for a cache.
_FOR_CACHE = 0.6

# From this share of all starts on, what choosing workers took is worth a word.
_MUCH_OF_START = 0.3

# Datasets that read several samples at a time.
_READY = (
    "FileDataset", "HDF5Dataset", "HighPerformanceDataset", "ImageDataset", "MDSDataset", "ParquetDataset",
    "TarDataset", "TextDataset",
)  # fmt: skip


class Advice(NamedTuple):
    """One thing to change.

    Attributes:
        change: what, in words and in terms of the loader's arguments.
        gain: the predicted samples per second over those of now (1.5: half as many again); None where nobody can
            tell before it is tried.
    """

    change: str
    gain: float | None = None


def advise(kind: str, stats: Stats | Mapping[str, Any], costs: Costs) -> list[Advice]:
    """List what is worth changing, the largest predicted gain first."""
    if kind == "consumer-bound":
        return []
    rules = {
        "read-bound": (_workers, _cache, _pack, _alternatives_to_reading),
        "decode-bound": (_workers, _kind, _cache, _cores, _alternatives_to_computing),
        "python-bound": (_workers, _kind, _cache, _alternatives_to_python),
        "batch-bound": (_workers, _batches, _alternatives_to_collating),
        "transfer-bound": (_transfer,),
        "memory-bound": (_memory,),
        "startup-bound": (_start,),
    }[kind]
    now = predict(stats)
    found = [advice for rule in rules for advice in rule(stats, costs, now)]
    if stats["loader"].get("stock"):
        found.append(Advice("use foreload.DataLoader in place of torch's: same arguments, same batches"))
    useful = [advice for advice in found if advice.gain is None or _WORTH <= advice.gain < float("inf")]
    return sorted(useful, key=lambda advice: -(advice.gain or 0.0))


def _gain(stats: Any, now: float, **change: Any) -> float:
    """Predict a gain; the loop cannot take more than it could with no waiting at all."""
    most = stats["seconds"] / stats["loop_seconds"] if stats["loop_seconds"] > 0 else float("inf")
    return min(predict(stats, **change) / now, most)


def _workers(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    count = int(stats["workers"]["count"])
    most = min(_MOST_WORKERS, max(4 * count, 8))
    kind = stats["workers"]["kind"]
    if kind == "processes" or stats["loader"].get("stock"):
        most = min(most, max(2 * int(stats["cpu"]["cores"]), 8))
    more = [number for number in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if count < number <= most]
    tried = [0, *more] if count else more
    gains = {number: _gain(stats, now, workers=number) for number in tried}
    if gains:
        best = max(gains.values())
        number = next(number for number in tried if gains[number] >= _NEARLY * best)
        parts = ", each of which must give a part of its own" if number > 1 and _is_iterable(stats) else ""
        yield Advice(f"num_workers={number} instead of {count}{parts}", gains[number])


def _is_iterable(stats: Any) -> bool:
    return bool(stats["loader"].get("iterable"))


def _kind(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    if stats["workers"]["kind"] == "processes" or costs.native or stats["loader"].get("stock"):
        return
    count = max(int(stats["workers"]["count"]), int(stats["cpu"]["cores"]))
    yield Advice(
        f'workers="processes", num_workers={count}: each process has an interpreter of its own',
        _gain(stats, now, workers=count, kind="processes"),
    )


def _cache(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    if stats["loader"].get("stock") or _is_iterable(stats):
        return
    if stats["cache"] and stats["cache"]["hit_rate"] > 0.9:
        return
    has_encoded = stats["stages"].get("read", {"bytes": 0})["bytes"] and costs.stages["decode"].cpu
    found = [_kept(stats, costs, now, keep) for keep in (("decoded", "encoded") if has_encoded else ("decoded",))]
    best = max(filter(None, found), key=lambda advice: advice.gain or 0.0, default=None)
    if best is None:
        return
    if costs.stages["sample"].cpu + costs.stages["sample"].idle > 0:
        # Nobody can see whether it gives the same each time.
        best = Advice(
            f"{best.change}; for samples that are the same each time (what is random goes into transform=)"
        )
    yield best


def _kept(stats: Any, costs: Costs, now: float, keep: HitForm) -> Advice | None:
    memory = stats["memory"]
    free = _FOR_CACHE * max(0, memory["granted_bytes"] - memory["tree_bytes"])
    each, kept = hit_bytes(stats, costs, keep), (stats["cache"] or {}).get("samples", 0)
    if keep == "decoded" and kept:
        each = max(each, stats["cache"]["used"] / kept)
    # How much larger pictures are decoded is guessed, and room that is not needed is not taken.
    spare = 2.2 if keep == "decoded" and costs.native and not kept else 1.1
    wanted = spare * each * stats["samples"] / max(1, stats["epochs"])
    if wanted <= 0 or free <= 0:
        return None
    rate = min(1.0, free / wanted)
    if stats["cache"] and rate <= stats["cache"]["hit_rate"] + 0.05:
        return None
    room = size(max(1 << 20, min(wanted, free))).replace(" ", "").replace(",", "")
    cache = f'"{room}"' if keep == "decoded" else f'foreload.Cache("{room}", keep="encoded")'
    change = f"cache={cache}, which keeps about {rate:.0%} of the samples from the second epoch on"
    return Advice(change, _gain(stats, now, cache=rate, keep=keep))


def _pack(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    if stats["loader"]["dataset"] in ("ImageDataset", "FileDataset", "HighPerformanceDataset"):
        yield Advice(
            "foreload pack SRC DST, and TarDataset(DST): large files instead of one per sample",
            _gain(stats, now, source="packed"),
        )


def _cores(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    cores = stats["cpu"]["cores"]
    if stats["cpu"]["share"] > 0.8:
        more = 2 * cores
        yield Advice(
            f"{more} cores instead of {cores}, with num_workers={more}",
            _gain(stats, now, workers=more, cores=more),
        )


def _alternatives_to_reading(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    if stats["loader"]["dataset"] not in _READY and not _is_iterable(stats):
        yield Advice("load several samples per request: give the dataset a __getitems__(indices)")


def _alternatives_to_computing(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    if costs.native:
        yield Advice("foreload pack --tiled SRC DST: JPEGs that are decoded only where the crop is")
    else:
        yield Advice(
            "do once what is the same each time, and store the result; foreload.ImageDataset decodes natively"
        )


def _alternatives_to_python(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    yield Advice("replace Python loops by numpy or torch operations on whole arrays, which let other threads run")


def _batches(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    given = stats["loader"]["batch_size"]
    if not given:
        return
    sizes = [given * factor for factor in (2, 4, 8, 16)]
    gains = {wanted: _gain(stats, now, batch_size=wanted) for wanted in sizes}
    best = max(gains.values())
    wanted = next(wanted for wanted in sizes if gains[wanted] >= _NEARLY * best)
    yield Advice(f"batch_size={wanted} instead of {given}, where training allows it", gains[wanted])


def _alternatives_to_collating(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    if costs.batch <= 1:
        yield Advice("batches of several samples (batch_size=): each takes one hand-over")
    elif not costs.native:
        yield Advice("a lighter collate_fn: arrays of one size need none, and are put together natively")
    if not costs.native and not stats["loader"].get("stock"):
        yield Advice("tensors that fit in memory: foreload.CachedDataset gathers a batch in one call")


def _transfer(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    device = stats["stages"].get("device", {"seconds": 0.0})["seconds"]
    rest = max(stats["seconds"] - device, stats["loop_seconds"])
    hidden = stats["seconds"] / rest if rest > 0 else None
    if stats["loader"].get("stock"):
        pin = "" if stats["loader"]["pin_memory"] else "pin_memory=True, and "
        yield Advice(f'{pin}foreload.PrefetchLoader(loader, "cuda"): copies run beside the loop\'s work', hidden)
    elif not stats["loader"]["pin_memory"]:
        yield Advice('device="cuda": batches are page-locked, and copied ahead beside the loop\'s work', hidden)
    yield Advice("smaller batches to copy: uint8 images, normalised on the device, are a quarter of float32")


def _memory(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    limit, batch = stats["memory"]["limit"], stats["memory"]["batch_bytes"]
    if limit is not None and batch:
        yield Advice(f'memory="{size(8 * batch).replace(" ", "")}" or more: room for some batches ahead')
        yield Advice("a smaller batch_size")
    else:
        yield Advice("more memory for this container")
    if stats["cache"]:
        yield Advice("a smaller cache")
    if stats["workers"]["kind"] == "processes":
        yield Advice('fewer workers, or workers="threads", which share the dataset')


def _start(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    who = stats["workers"]
    if who["choosing_seconds"] > _MUCH_OF_START * stats["epochs"] * stats["first_batch_seconds"]:
        yield Advice(
            f'num_workers={who["count"]}, workers="{who["kind"]}": then nothing is measured to choose them'
        )
    start = stats["epochs"] * stats["first_batch_seconds"]
    rest = max(stats["seconds"] - start, stats["loop_seconds"], 1e-9)
    if stats["epochs"] == 1:
        yield Advice(
            "nothing yet: let it run longer, and ask again. This was one epoch, and its first batch comes once"
        )
        return
    if stats["workers"]["kind"] == "processes":
        yield Advice("persistent_workers=True: workers start once, not in each epoch", stats["seconds"] / rest)
        if not stats["loader"].get("stock"):
            yield Advice('workers="threads", which start at once')
    yield Advice("longer epochs: let the sampler give several passes in one")
