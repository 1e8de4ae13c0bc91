"""Advice: changes to a loader, with the gain that the model predicts for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from foreload.record.pace import choosing_seconds, start_seconds
from foreload.record.units import size
from foreload.report.workers import MIN_GAIN, excess_workers, numbers_of_workers, predicted_gain, smallest_good
from foreload.tune.costs import Costs
from foreload.tune.handover import TORCHVISION_IMAGES, swap_unknown
from foreload.tune.predict import HitForm, hit_bytes, predict

if TYPE_CHECKING:
    from foreload.record.stats import Stats


__all__ = ["Advice", "advise"]

# Never without the check, since a wrong sample raises no error.
_THREADS = 'workers="threads", if foreload.check_threads(dataset) finds nothing against it'

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
    """List the changes that are worth making: the largest predicted gain first, then those without one.

    Of equal gains, the smaller change comes first, and another machine last. Of changes to the workers, which
    exclude each other, only the best is listed.
    """
    if kind == "consumer-bound":
        return []
    # In the order of the effort that they take.
    rules = {
        "read-bound": (_workers, _swap, _cache, _pack, _alternatives_to_reading),
        "decode-bound": (_workers, _swap, _cache, _images, _alternatives_to_computing),
        "python-bound": (_workers, _swap, _cache, _alternatives_to_python),
        "lock-bound": (_processes, _swap, _alternatives_to_locking),
        "batch-bound": (_workers, _swap, _batches, _alternatives_to_collating),
        "transfer-bound": (_transfer, _swap, _smaller_copies),
        "memory-bound": (_memory, _swap),
        "startup-bound": (_start, _swap),
        "too-many-workers": (_fewer, _swap, _images, _cache),
    }[kind]
    now = predict(stats, fitted=costs)
    found = [advice for rule in rules for advice in rule(stats, costs, now)]
    found.sort(key=lambda advice: -(advice.gain or 0.0))
    if kind == "decode-bound":
        found += _cores(stats, costs, now)
    return [advice for advice in found if advice.gain is None or MIN_GAIN <= advice.gain < float("inf")]


def _workers(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    """Advise another number of workers, or processes instead of threads, whichever is better."""
    if stats["workers"].get("alone"):
        return  # others have been tried
    count = int(stats["workers"]["count"])
    tried = [0, *numbers_of_workers(stats)] if count else numbers_of_workers(stats)
    gains = {number: predicted_gain(stats, costs, now, workers=number) for number in tried}
    number = smallest_good(gains)
    parts = " (each worker must deliver a part of its own)" if number > 1 and _is_iterable(stats) else ""
    best = Advice(f"num_workers={number} instead of {count}{parts}", gains[number])
    yield max([best, *_processes(stats, costs, now)], key=lambda advice: advice.gain or 0.0)


def _fewer(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    enough = excess_workers(stats, costs)
    if enough is not None:
        number, gain = enough
        yield Advice(
            f"num_workers={number} instead of {stats['workers']['count']}", gain if gain >= MIN_GAIN else None
        )


def _is_iterable(stats: Any) -> bool:
    return bool(stats["loader"].get("iterable"))


def _processes(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    if stats["workers"]["kind"] != "threads" or costs.native or stats["loader"].get("stock"):
        return
    cores = int(stats["cpu"]["cores"])
    tried = sorted({max(1, int(stats["workers"]["count"])), cores})
    gains = {count: predicted_gain(stats, costs, now, workers=count, kind="processes") for count in tried}
    count = smallest_good(gains)
    # What threads wait for, between two samples and in them, is not told apart: they may gain more than predicted.
    gain = gains[count] if gains[count] >= MIN_GAIN or not costs.holding else None
    yield Advice(f'workers="processes", num_workers={count} (each process has its own interpreter)', gain)


def _swap(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    if not stats["loader"].get("stock"):
        return
    change = "use foreload.DataLoader in place of torch's: same arguments, same samples in the same order"
    why = swap_unknown(stats)
    if why is None:
        gain = predicted_gain(stats, costs, now, loader="foreload")
        if gain >= MIN_GAIN:
            yield Advice(change, gain)
            return
        why = "little gain is predicted, as collating and handing over batches takes little of the time"
    yield Advice(f"{change} ({why})")


def _images(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    if stats["loader"].get("stock") and stats["loader"]["dataset"] in TORCHVISION_IMAGES:
        change = (
            "foreload.ImageDataset in foreload.DataLoader, with foreload.transforms.train() in place of a random "
            "crop, flip and normalisation: decodes JPEGs natively"
        )
        yield Advice(change, predicted_gain(stats, costs, now, loader="foreload", decoder="native"))


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
    return Advice(change, predicted_gain(stats, costs, now, cache=rate, keep=keep))


def _pack(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    if stats["loader"]["dataset"] in ("ImageDataset", "FileDataset", "HighPerformanceDataset"):
        yield Advice(
            "foreload pack SRC DST, then TarDataset(DST) (large files instead of one per sample)",
            predicted_gain(stats, costs, now, source="packed"),
        )


def _cores(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    cores = stats["cpu"]["cores"]
    if stats["cpu"]["share"] > 0.8:
        more = 2 * cores
        yield Advice(
            f"{more} cores instead of {cores}, with num_workers={more}",
            predicted_gain(stats, costs, now, workers=more, cores=more),
        )


def _alternatives_to_reading(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    if stats["loader"]["dataset"] not in _BATCH_READERS and not _is_iterable(stats):
        yield Advice("read several samples per request: write a __getitems__(indices) for the dataset")


def _alternatives_to_computing(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    if stats["loader"].get("is_rows"):
        return
    if costs.native:
        yield Advice("foreload pack --tiled SRC DST: JPEGs that need decoding only where the crop is")
    else:
        yield Advice(
            "do repeated work once and store the result; for images, foreload.ImageDataset decodes natively"
        )


def _alternatives_to_python(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    yield Advice("replace Python loops by NumPy or torch operations on whole arrays, which let other threads run")


def _alternatives_to_locking(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    yield Advice(
        "less Python in the loop: NumPy or torch operations on whole batches let other threads run, Python loops "
        "over samples do not"
    )


def _batches(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    given = stats["loader"]["batch_size"]
    if not given:
        return
    sizes = [given * factor for factor in (2, 4, 8, 16)]
    gains = {wanted: predicted_gain(stats, costs, now, batch_size=wanted) for wanted in sizes}
    wanted = smallest_good(gains)
    yield Advice(f"batch_size={wanted} instead of {given}, if training allows it", gains[wanted])


def _alternatives_to_collating(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
    if costs.batch <= 1:
        yield Advice("batches of several samples (batch_size=): each batch is handed over once")
    elif not (costs.native or stats["loader"].get("is_rows")):
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


def _smaller_copies(stats: Any, costs: Costs, now: float) -> Iterator[Advice]:
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
    if choosing_seconds(stats) > _MIN_CHOOSING_SHARE * start_seconds(stats):
        kind = f', workers="{pool["kind"]}"' if pool["count"] else ""
        yield Advice(f"num_workers={pool['count']}{kind}: no time is spent on choosing workers")
    rest = max(stats["seconds"] - start_seconds(stats), stats["loop_seconds"], 1e-9)
    if stats["epochs"] == 1:
        yield Advice("longer runs: this was one epoch, whose start counts once. Let it run longer, and ask again")
        return
    if stats["workers"]["kind"] != "threads":
        yield Advice(
            "persistent_workers=True (workers start once instead of in each epoch)", stats["seconds"] / rest
        )
        if not stats["loader"].get("stock"):
            yield Advice(f"{_THREADS}, which start at once")
    yield Advice("longer epochs: let the sampler make several passes over the dataset in one epoch")
