"""Records left by the processes of a script, combined for each loader."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from foreload.cli.profile.inside.lanes import STAGE_COUNTERS, STAGES
from foreload.cli.profile.lane_files import LaneFile, LaneName
from foreload.cli.profile.outside import Tree
from foreload.machine import granted_cores, granted_memory
from foreload.record.spans import SPAN

__all__ = ["LoaderRecord", "StockLoader", "machine_stats", "read_records"]


@dataclass
class LoaderRecord:
    """Everything recorded of a loader.

    Attributes:
        title: class, dataset, settings and place of the loader.
        where: file and line of the loop.
        stats: as from ``loader.stats()``.
        spans, lanes: as from ``loader.spans.recent()`` and ``loader.spans.lanes``.
        package: where the loader's class is from, if that is neither torch nor foreload.
    """

    title: str
    where: str
    stats: dict[str, Any]
    spans: npt.NDArray[Any]
    lanes: list[LaneName]
    package: str = ""


@dataclass
class StockLoader:
    """A torch DataLoader that a script has iterated.

    Attributes:
        about: its settings and place.
        loop: the records of the thread that iterated it.
        others: the records of its workers, and of the thread that pins memory.
    """

    about: dict[str, Any]
    loop: LaneFile
    others: list[LaneFile] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Class, dataset, settings and place of the loader."""
        about = self.about
        if about.get("foreign"):
            size = "" if about["batch_size"] is None else f"batch_size={about['batch_size']}"
            return f"{about['foreign']}: {about['class']}({size}) iterated at {about['where']}"
        workers = f"{about['workers']} worker{'s' if about['workers'] != 1 else ''}"
        return (
            f"{about['class']}({about['dataset']}, batch_size={about['batch_size']}, {workers}) "
            f"iterated at {about['where']}"
        )

    def recent(self) -> tuple[npt.NDArray[Any], list[LaneName]]:
        """Return the spans of its threads, sorted by begin, and their lanes."""
        lanes = [LaneName("consumer 0", "consumer")]
        spans = [self.loop.spans(0)]
        for number, lane in enumerate(self.others, 1):
            process = lane.name.split("-")[0]
            lanes.append(
                LaneName("pinning", "thread") if lane.is_pinning else LaneName(f"worker {process}", "process")
            )
            spans.append(lane.spans(number))
        together = np.concatenate(spans)
        return together[np.argsort(together["begin"], kind="stable")], lanes

    def loop_stats(self, tree: Tree) -> dict[str, Any]:
        """Return what is known of the loop over any loader: its times, and how busy the machine was."""
        counters = self.loop.counters
        windows = [(int(begin), int(end)) for begin, end in self.loop.epochs]
        return {
            "epochs": counters["epochs"],
            "batches": counters["batches"],
            "samples": counters["samples"],
            **self._times(),
            **machine_stats(tree, windows, cuda=self.about["cuda"]),
        }

    def stats(self, tree: Tree) -> dict[str, Any]:
        """Return what ``loader.stats()`` would return for a foreload loader."""
        files = self._files()
        stages, queued = self._stages(files)
        found = self.loop_stats(tree)
        return {
            **found,
            "stages": stages,
            "bytes_read": files["bytes"],
            "files": files,
            "cache": None,
            "memory": {
                "limit": None,
                "batch_bytes": self.loop.counters["batch_bytes"],
                "decisions": [],
                "container_bytes": None,
                **found["memory"],
            },
            "cpu": {**found["cpu"], "queued_seconds": queued},
            "lock": self._lock(),
            "errors": 0,
            "restarts": [],
            **self._settings(),
        }

    def _times(self) -> dict[str, Any]:
        counters, seconds = self.loop.counters, self.loop.counters["seconds"] / 1e9
        wait, copying = (int(self.loop.stages[STAGES.index(stage), 1]) / 1e9 for stage in ("wait", "device"))
        # A loop that copies a batch to the device still waits for its data.
        copying = min(copying, counters["loop"] / 1e9)
        wait += copying
        return {
            "seconds": seconds,
            "batches_per_second": counters["batches"] / seconds if seconds else 0.0,
            "samples_per_second": counters["samples"] / seconds if seconds else 0.0,
            "batch_seconds": self._batch_seconds(),
            "first_batch_seconds": counters["first"] / 1e9,
            "wait_share": min(1.0, wait / seconds) if seconds else 0.0,
            "wait_seconds": wait,
            "loop_seconds": counters["loop"] / 1e9 - copying,
            "loop_cpu_seconds": counters["loop_cpu"] / 1e9,
        }

    def _settings(self) -> dict[str, Any]:
        about = self.about
        return {
            "workers": {
                "kind": "processes",
                "count": about["workers"],
                "why": "as requested",
                "samples_per_second": {},
                "choosing_seconds": 0.0,
                "depth": about["depth"],
                "tuning": [],
                "start_cpu_seconds": self._starting() / 1e9,
                "end_seconds": self.loop.counters["ending"] / 1e9,
            },
            "loader": {
                "batch_size": about["batch_size"],
                "iterable": about["iterable"],
                "pin_memory": about["pin_memory"],
                "native": False,
                "stock": True,
                "batch_tensors": self.loop.counters["tensors"],
                "dataset": about["dataset"],
                "is_rows": about["is_rows"],
                "direct_problem": None,
            },
        }

    def _starting(self) -> float:
        """Return the CPU time of starting workers."""
        started = sum(lane.counters["started"] for lane in (self.loop, *self.others))
        return started + sum(self._first_excess().values())

    def _first_excess(self) -> dict[str, float]:
        """Return the CPU time that each worker's first batch took beyond that of others, by the lane's name.

        It copies the memory that it shared with the process that forked it.
        """
        workers = [lane for lane in self.others if lane.counters["started"]]
        batches = sum(int(lane.stages[_SAMPLE, 0]) for lane in workers)
        fetched = sum(int(lane.stages[_FETCHING, 2].sum()) for lane in workers)
        first = sum(lane.counters["first_cpu"] for lane in workers)
        usual = (fetched - first) / max(1, batches - len(workers)) if batches > len(workers) else float("inf")
        return {lane.name: max(0.0, lane.counters["first_cpu"] - usual) for lane in workers}

    def _lock(self) -> dict[str, Any] | None:
        """Return how long the thread that pins memory waited for the interpreter's lock, and for little else."""
        pinning = [lane for lane in self.others if lane.is_pinning]
        if not pinning:
            return None
        asked = sum(int(lane.stages[STAGES.index("batch"), 0]) for lane in pinning)
        delay = sum(
            lane.counters["blocked"] * _fetched(lane) / max(1, lane.counters["looked"]) for lane in pinning
        )
        return {"looks": 0, "held_share": 0.0, "held_seconds": 0.0, "asked": asked, "delay_seconds": delay / 1e9}

    def _batch_seconds(self) -> dict[str, float]:
        spans = self.loop.spans(0)
        waits = spans[spans["stage"] == STAGES.index("wait")]
        waits = waits[np.argsort(waits["end"], kind="stable")]
        between = np.diff(waits["end"].astype(np.int64))[waits["batch"][1:] > 0] / 1e9
        if not len(between):
            return {"median": 0.0, "p95": 0.0, "p99": 0.0}
        median, p95, p99 = np.percentile(between, [50, 95, 99])
        return {"median": float(median), "p95": float(p95), "p99": float(p99)}

    def _files(self) -> dict[str, Any]:
        """Return what was read from files, extrapolated from samples of the time."""
        found = {"bytes": 0.0, "disk_bytes": 0.0}
        for lane in (self.loop, *self.others):
            scale = _fetched(lane) / max(1, lane.counters["looked"])
            found["bytes"] += lane.counters["read"] * scale
            found["disk_bytes"] += lane.counters["disk"] * scale
        # Files mapped into memory are read from the disk without a read call.
        read, disk = round(max(found.values())), round(found["disk_bytes"])
        opened = sum(lane.counters["opened"] for lane in (self.loop, *self.others))
        return {
            "opened": opened,
            "bytes": read,
            "disk_bytes": disk,
            "page_cache_share": 1 - disk / read if read else None,
        }

    def _stages(self, files: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], float]:
        """Return the stages, and the seconds in which threads were ready to run but had no core."""
        total = np.zeros((len(STAGES), len(STAGE_COUNTERS)))
        queued, excess = 0.0, self._first_excess()
        samples = sum(lane.stages[STAGES.index("sample"), 3] for lane in (self.loop, *self.others))
        waits_for = "read" if files["bytes"] > _MIN_READ_BYTES * samples else "sample"
        for lane in (self.loop, *self.others):
            stages = lane.stages.astype(float)
            stages[_FETCHING, 1:3] *= 1 - excess.get(lane.name, 0.0) / max(1, int(lane.stages[_FETCHING, 2].sum()))
            if lane is self.loop or not lane.is_pinning:
                queued += _move_idle(lane, stages, waits_for, own=lane is self.loop) / 1e9
            total += stages
        batch = total[STAGES.index("batch")]
        # Handing a batch from process to process is part of making it.
        between = sum(lane.counters["between"] for lane in self.others)
        batch[1:3] += between
        total[STAGES.index("read"), 4] = files["bytes"]
        return {
            stage: {
                "count": int(count),
                "seconds": wall / 1e9,
                "cpu_seconds": cpu / 1e9,
                "samples": int(samples),
                "bytes": int(size),
            }
            for stage, (count, wall, cpu, samples, size) in zip(STAGES, total, strict=True)
        }, queued


# Bytes read per sample from which on blocked time counts as waiting for files.
_MIN_READ_BYTES = 512

_SAMPLE = STAGES.index("sample")
_FETCHING = [STAGES.index(stage) for stage in ("sample", "decode", "transform", "batch")]


def machine_stats(tree: Tree, windows: list[tuple[int, int]], *, cuda: bool) -> dict[str, Any]:
    """Return how busy the machine was in windows of time (begin and end in ns), as parts of ``loader.stats()``."""
    seconds = sum(end - begin for begin, end in windows) / 1e9
    idle = tree.gpu_idle(windows) if cuda else None
    return {
        "memory": {"tree_bytes": tree.memory, "granted_bytes": granted_memory()},
        "cpu": {
            "cores": granted_cores(),
            "share": min(1.0, tree.cpu_seconds(windows) / max(1e-9, seconds * granted_cores())),
        },
        "gpu": None if idle is None else {"idle_share": idle},
    }


def _fetched(lane: LaneFile) -> int:
    return int(lane.stages[_FETCHING, 1].sum())


def _move_idle(lane: LaneFile, stages: npt.NDArray[np.float64], waits_for: str, *, own: bool) -> float:
    """Move the time in which a thread did not run out of its stages; return the part spent waiting for a core.

    The other part, waiting for something else, goes to the stage ``waits_for``. If the loop loads its samples
    itself (``own``), waiting for a core stays part of computing, as it delays each batch.
    """
    idle = np.maximum(0, stages[_FETCHING, 1] - stages[_FETCHING, 2])
    blocked = min(lane.counters["blocked"] * _fetched(lane) / max(1, lane.counters["looked"]), idle.sum())
    stages[_FETCHING, 1] -= idle
    if own and idle.sum() > 0:
        stages[_FETCHING, 1:3] += (idle * (1 - blocked / idle.sum()))[:, None]
    sample = stages[STAGES.index("sample")]
    if blocked > 0:
        count, samples = (sample[0], sample[3]) if waits_for == "read" else (0, 0)
        stages[STAGES.index(waits_for)] += [count, blocked, 0, samples, 0]
    return float(idle.sum() - blocked)


def read_records(folder: Path, tree: Tree) -> list[LoaderRecord]:
    """Read the records in a folder: the loaders that delivered batches, longest first."""
    loaders = [
        LoaderRecord(
            loader.title,
            loader.about["where"],
            loader.loop_stats(tree) if loader.about.get("foreign") else loader.stats(tree),
            *loader.recent(),
            loader.about.get("foreign", ""),
        )
        for loader in _read_stock(folder)
    ]
    for path in folder.glob("*.ours"):
        note = json.loads(path.read_text())
        if note["stats"]["batches"]:
            kept = path.with_suffix(".npy")
            spans = np.load(kept) if kept.exists() else np.zeros(0, SPAN)
            lanes = [LaneName(*lane) for lane in note["lanes"]]
            loaders.append(LoaderRecord(note["title"], note["where"], note["stats"], spans, lanes))
    return sorted(loaders, key=lambda loader: -loader.stats["seconds"])


def _read_stock(folder: Path) -> list[StockLoader]:
    lanes = {path.name: path for path in folder.glob("*.lane")}
    loaders = []
    for path in folder.glob("*.loader"):
        lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        if not lines or f"{path.name}.lane" not in lanes:
            continue
        found = StockLoader(lines[0], LaneFile(lanes[f"{path.name}.lane"]))
        process = str(lines[0]["pid"])
        ids = {str(number) for line in lines[1:] for number in line.get("ids", ())}
        for name, lane in sorted(lanes.items()):
            parts = name.split("-")
            if len(parts) == 3 and parts[1] in ids and parts[0] in (process, parts[1]):
                found.others.append(LaneFile(lane))
        if found.loop.counters["batches"]:
            loaders.append(found)
    return loaders
