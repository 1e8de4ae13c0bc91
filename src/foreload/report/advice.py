"""Advice: changes to a loader, with the gain that the model predicts for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from foreload.record.units import size
from foreload.tune.costs import Costs
from foreload.tune.predict import HitForm, hit_bytes, predict

if TYPE_CHECKING:
    from foreload.record.stats import Stats


__all__ = ["Advice", "advise"]

# A smaller gain is not worth a change.
_MIN_GAIN = 1.05

# Of several settings, the smallest that reaches this share of the best one's gain is advised.
_NEAR_BEST = 0.95

# Never without the check, since a wrong sample raises no error.
_THREADS = 'workers="threads", if foreload.check_threads(dataset) finds nothing against it'

# Waiting threads cost little, but not nothing.
_MAX_WORKERS = 32

# The share of free memory that may be advised for a cache.
_CACHE_SHARE = 0.6

# Choosing workers is mentioned if it took this share of the starts of epochs.
_MIN_CHOOSING_SHARE = 0.3

# Datasets that read several samples per request already.
_BATCH_READERS = (
    "FileDataset", "HDF5Dataset", "HighPerformanceDataset", "ImageDataset", "MDSDataset", "ParquetDataset",
    "TarDataset", "TextDataset",
)  # fmt: skip


class Advice(NamedTuple):
    """One thing to change.

    Attributes:
        change: the change, in terms of the loader's arguments.
        gain: the predicted samples per second over the present ones (1.5: half as many again); None if it cannot
            be predicted.
    """

    change: str
    gain: float | None = None


def advise(kind: str, stats: Stats | Mapping[str, Any], costs: Costs) -> list[Advice]:
    """List the changes that are worth making, the largest predicted gain first."""
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
    useful = [advice for advice in found if advice.gain is None or _MIN_GAIN <= advice.gain < float("inf")]
    return sorted(useful, key=lambda advice: -(advice.gain or 0.0))


def _gain(stats: Any, now: float, **change: Any) -> float:
    """Predict a gain, which is at most that of a loop that never waits."""
    most = stats["seconds"] / stats["loop_seconds"] if stats["loop_seconds"] > 0 else float("inf")
    return min(predict(stats, **change) / now, most)


def _workers(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    count = int(stats["workers"]["count"])
    most = min(_MAX_WORKERS, max(4 * count, 8))
    kind = stats["workers"]["kind"]
    if kind == "processes" or stats["loader"].get("stock"):
        most = min(most, max(2 * int(stats["cpu"]["cores"]), 8))
    more = [number for number in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if count < number <= most]
    tried = [0, *more] if count else more
    gains = {number: _gain(stats, now, workers=number) for number in tried}
    if gains:
        best = max(gains.values())
        number = next(number for number in tried if gains[number] >= _NEAR_BEST * best)
        parts = " (each worker must deliver a part of its own)" if number > 1 and _is_iterable(stats) else ""
        yield Advice(f"num_workers={number} instead of {count}{parts}", gains[number])


def _is_iterable(stats: Any) -> bool:
    return bool(stats["loader"].get("iterable"))


def _kind(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    if stats["workers"]["kind"] == "processes" or costs.native or stats["loader"].get("stock"):
        return
    count = max(int(stats["workers"]["count"]), int(stats["cpu"]["cores"]))
    yield Advice(
        f'workers="processes", num_workers={count} (each process has its own interpreter)',
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
        # The user's code may return another sample each time.
        best = Advice(
            f"{best.change}; only if samples are the same each time (move random transforms to transform=)"
        )
    yield best


def _kept(stats: Any, costs: Costs, now: float, keep: HitForm) -> Advice | None:
    memory = stats["memory"]
    free = _CACHE_SHARE * max(0, memory["granted_bytes"] - memory["tree_bytes"])
    each, kept = hit_bytes(stats, costs, keep), (stats["cache"] or {}).get("samples", 0)
    if keep == "decoded" and kept:
        each = max(each, stats["cache"]["used"] / kept)
    # The size of decoded images is a guess, so leave spare room: a cache takes only what it needs.
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
            "foreload pack SRC DST, then TarDataset(DST) (large files instead of one per sample)",
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
    if stats["loader"]["dataset"] not in _BATCH_READERS and not _is_iterable(stats):
        yield Advice("read several samples per request: write a __getitems__(indices) for the dataset")


def _alternatives_to_computing(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    if costs.native:
        yield Advice("foreload pack --tiled SRC DST: JPEGs that need decoding only where the crop is")
    else:
        yield Advice(
            "do repeated work once and store the result; for images, foreload.ImageDataset decodes natively"
        )


def _alternatives_to_python(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    yield Advice("replace Python loops by NumPy or torch operations on whole arrays, which let other threads run")


def _batches(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    given = stats["loader"]["batch_size"]
    if not given:
        return
    sizes = [given * factor for factor in (2, 4, 8, 16)]
    gains = {wanted: _gain(stats, now, batch_size=wanted) for wanted in sizes}
    best = max(gains.values())
    wanted = next(wanted for wanted in sizes if gains[wanted] >= _NEAR_BEST * best)
    yield Advice(f"batch_size={wanted} instead of {given}, if training allows it", gains[wanted])


def _alternatives_to_collating(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    if costs.batch <= 1:
        yield Advice("batches of several samples (batch_size=): each batch is handed over once")
    elif not costs.native:
        yield Advice("a simpler collate_fn, or none: arrays of equal size are collated natively")
    if not costs.native and not stats["loader"].get("stock"):
        yield Advice("for tensors that fit in memory, foreload.CachedDataset: gathers a batch in one call")


def _transfer(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    device = stats["stages"].get("device", {"seconds": 0.0})["seconds"]
    rest = max(stats["seconds"] - device, stats["loop_seconds"])
    hidden = stats["seconds"] / rest if rest > 0 else None
    if stats["loader"].get("stock"):
        pin = "" if stats["loader"]["pin_memory"] else "pin_memory=True, and "
        yield Advice(f'{pin}foreload.PrefetchLoader(loader, "cuda") (copies run during the loop\'s work)', hidden)
    elif not stats["loader"]["pin_memory"]:
        yield Advice('device="cuda" (batches are page-locked, and copied during the loop\'s work)', hidden)
    yield Advice(
        "smaller batches to copy: uint8 images, normalised on the device by "
        "device_transform=foreload.transforms.Normalize(), are a quarter the size of float32"
    )


def _memory(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    limit, batch = stats["memory"]["limit"], stats["memory"]["batch_bytes"]
    if limit is not None and batch:
        yield Advice(f'memory="{size(8 * batch).replace(" ", "")}" or more: room to make batches ahead')
        yield Advice("a smaller batch_size")
    else:
        yield Advice("more memory for this container")
    if stats["cache"]:
        yield Advice("a smaller cache")
    if stats["workers"]["kind"] == "processes":
        yield Advice(f"fewer workers, or {_THREADS}, which share the dataset")


def _start(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    pool = stats["workers"]
    if pool["choosing_seconds"] > _MIN_CHOOSING_SHARE * stats["epochs"] * stats["first_batch_seconds"]:
        kind = f', workers="{pool["kind"]}"' if pool["count"] else ""
        yield Advice(f"num_workers={pool['count']}{kind}: no time is spent on choosing workers")
    start = stats["epochs"] * stats["first_batch_seconds"]
    rest = max(stats["seconds"] - start, stats["loop_seconds"], 1e-9)
    if stats["epochs"] == 1:
        yield Advice("nothing yet: this was one epoch, whose start counts once. Let it run longer, and ask again")
        return
    if stats["workers"]["kind"] == "processes":
        yield Advice(
            "persistent_workers=True (workers start once instead of in each epoch)", stats["seconds"] / rest
        )
        if not stats["loader"].get("stock"):
            yield Advice(f"{_THREADS}, which start at once")
    yield Advice("longer epochs: let the sampler make several passes over the dataset in one epoch")
