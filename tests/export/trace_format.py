"""A reader of traces that checks the Trace Event Format."""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any


class Read:
    """A trace, read and checked as "Trace Event Format" (Google, 2016) and Perfetto's reader of it have it."""

    def __init__(self, path: Path) -> None:
        content = path.read_bytes()
        self.all = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
        assert self.all["displayTimeUnit"] in ("ms", "ns")
        self.processes: dict[int, str] = {}
        self.threads: dict[tuple[int, int], str] = {}
        self.slices: list[dict[str, Any]] = []
        self.counters: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
        last = 0.0
        for event in self.all["traceEvents"]:
            assert isinstance(event["name"], str)
            assert type(event["pid"]) is int
            if event["ph"] == "M":
                self._name(event)
                continue
            assert type(event["ts"]) is float
            assert math.isfinite(event["ts"])
            assert event["ts"] >= last
            last = event["ts"]
            if event["ph"] == "C":
                ((series, value),) = event["args"].items()
                assert isinstance(value, (int, float))
                self.counters[event["pid"], series].append((event["ts"], value))
            else:
                assert event["ph"] == "X"
                assert type(event["tid"]) is int
                assert event["dur"] >= 0
                self.slices.append(event)
        self._check_rows()

    def _name(self, event: dict[str, Any]) -> None:
        if event["name"] == "process_name":
            assert event["pid"] not in self.processes
            self.processes[event["pid"]] = event["args"]["name"]
        elif event["name"] == "thread_name":
            assert (event["pid"], event["tid"]) not in self.threads
            self.threads[event["pid"], event["tid"]] = event["args"]["name"]
        else:
            assert event["name"] == "thread_sort_index"
            assert type(event["args"]["sort_index"]) is int

    def _check_rows(self) -> None:
        assert len({thread for _, thread in self.threads}) == len(self.threads)
        assert {process for process, _ in self.threads} == set(self.processes)
        rows = defaultdict(list)
        for each in self.slices:
            # Perfetto multiplies by 1000 and drops the fraction.
            begin, length = int(each["ts"] * 1000), int(each["dur"] * 1000)
            rows[each["pid"], each["tid"]].append((begin, begin + length))
        for row, spans in rows.items():
            assert row in self.threads
            ends: list[int] = []
            for begin, end in spans:
                while ends and ends[-1] <= begin:
                    ends.pop()
                assert not ends or end <= ends[-1], "a slice begins in another, and ends after it"
                ends.append(end)
        assert {process for process, _ in self.counters} <= set(self.processes)

    def rows(self) -> Counter[tuple[Any, ...]]:
        begin = int(self.all["otherData"]["begin_ns"])
        return Counter(
            (
                self.threads[each["pid"], each["tid"]].partition(" (")[0],
                each["name"],
                *(each["args"][name] for name in ("batch", "samples", "bytes")),
                begin + int(each["ts"] * 1000),
                int(each["dur"] * 1000),
            )
            for each in self.slices
        )
