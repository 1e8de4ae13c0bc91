"""Instructions of each native path per item, against those kept in results/counts.json.

python3 -m benchmarks.counts.check [--keep] [--only TEXT ...] [--jobs N]

Cachegrind runs the code on a simulated processor and counts its instructions, the misses of simulated caches and
the branches that a simple predictor gets wrong: the same numbers on a busy machine as on a quiet one.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "benchmarks" / "results" / "counts.json"
BUILD = ROOT / "build" / "native-plain"  # which scripts/native-tests.sh builds too
MOST = 0.03  # more instructions than this are a step back

# Caches of a fixed size, whatever this machine has: bytes, ways, bytes of a line.
CACHEGRIND = [
    "--tool=cachegrind",
    "--cache-sim=yes",
    "--branch-sim=yes",
    "--I1=32768,8,64",
    "--D1=32768,8,64",
    "--LL=8388608,16,64",
]
# No more of the user's environment, which lies in the program's memory.
ENVIRONMENT = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}

# What cachegrind calls the events that are summed up.
EVENTS = {
    "instructions": ["Ir"],
    "L1 data misses": ["D1mr", "D1mw"],
    "last-level misses": ["ILmr", "DLmr", "DLmw"],
    "mispredictions": ["Bcm", "Bim"],
}

Counts = dict[str, float]


class Change(NamedTuple):
    """Instructions per item that were kept and that are counted now; None: there is no such path."""

    path: str
    kept: float | None
    now: float | None

    @property
    def share(self) -> float | None:
        """Return the increase of instructions over those kept, as a share."""
        return None if self.kept is None or self.now is None else self.now / self.kept - 1

    @property
    def problem(self) -> str | None:
        """Return what keeps the check from passing."""
        if self.kept is None:
            return "is new"
        if self.now is None:
            return "is gone"
        return f"takes {self.now / self.kept - 1:+.1%} instructions" if self.now > self.kept * (1 + MOST) else None


def build() -> Path:
    """Build the program that runs the paths; return where it is."""
    for tool in ("cmake", "valgrind"):
        if shutil.which(tool) is None:
            raise SystemExit(f"needs {tool}, which is not installed; Debian: apt install {tool}")
    BUILD.mkdir(parents=True, exist_ok=True)
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DFORELOAD_BUILD_BENCHMARKS=ON"]
    with open(f"{BUILD}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one at a time
        for command in (
            ["cmake", "-S", ROOT, "-B", BUILD, *options],
            ["cmake", "--build", BUILD, "--target", "counts", "--parallel", str(os.cpu_count())],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stdout + done.stderr)
    return BUILD / "counts"


def under_valgrind(options: list[str], program: Path, *arguments: str) -> tuple[str, str]:
    """Run the program in a folder of its own; return what it printed, and what cachegrind wrote."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "cachegrind.out")
        to_file = [f"--cachegrind-out-file={out}"] if "--tool=cachegrind" in options else []
        (data := Path(folder, "data")).mkdir()
        command = ["valgrind", "-q", *options, *to_file, str(program), *arguments]
        done = subprocess.run(command, cwd=data, env=ENVIRONMENT, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
        return done.stdout, out.read_text() if to_file else ""


def describe(program: Path) -> tuple[dict[str, str], dict[str, int]]:
    """Return what the counts depend on besides the code; and the items of each path.

    The program chooses its instruction set as it does when it is counted: AVX2 at best, because Valgrind has no
    AVX-512.
    """
    conditions: dict[str, Any] = json.loads(under_valgrind(["--tool=none"], program)[0])
    items = conditions.pop("paths")
    version = subprocess.run(["valgrind", "--version"], capture_output=True, text=True, check=True).stdout
    return {**conditions, "valgrind": version.strip()}, items


def events(written: str) -> dict[str, int]:
    """Read the sums of a file of cachegrind's."""
    named = ("events: ", "summary: ")
    lines = dict(line.split(": ", 1) for line in written.splitlines() if line.startswith(named))
    return dict(zip(lines["events"].split(), map(int, lines["summary"].split()), strict=True))


def per_item(once: dict[str, int], twice: dict[str, int], items: int) -> Counts:
    """The counts of one item: what a second pass over all items has added."""
    return {
        name: round(sum(twice[part] - once[part] for part in parts) / items, 2) for name, parts in EVENTS.items()
    }


def count(program: Path, path: str, items: int) -> Counts:
    """Count one pass over the items of a path, and two."""
    once, twice = (events(under_valgrind(CACHEGRIND, program, path, passes)[1]) for passes in ("1", "2"))
    return per_item(once, twice, items)


def other_conditions(kept: dict[str, str], now: dict[str, str]) -> list[str]:
    """Say where the kept counts come from another compiler, library or instruction set."""
    pairs = {name: (kept.get(name), now.get(name)) for name in sorted({*kept, *now})}
    return [
        f"{name}: kept {before!r}, now {after!r}" for name, (before, after) in pairs.items() if before != after
    ]


def compare(kept: dict[str, Counts], now: dict[str, Counts]) -> list[Change]:
    """The instructions of all paths, those first that are there now."""
    return [
        Change(path, *(counts[path]["instructions"] if path in counts else None for counts in (kept, now)))
        for path in dict.fromkeys([*now, *kept])
    ]


def table(changes: Iterable[Change], now: dict[str, Counts]) -> str:
    """The counts per item as text."""
    rows = [["path, per item", "kept", "now", "change", *list(EVENTS)[1:]]]
    for change in changes:
        share = "" if change.share is None else f"{change.share:+.2%}"
        others = [now[change.path][name] if change.path in now else None for name in list(EVENTS)[1:]]
        rows.append([change.path, _shown(change.kept), _shown(change.now), share, *map(_shown, others)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    )


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def count_all(program: Path, items: dict[str, int], jobs: int) -> dict[str, Counts]:
    with ThreadPoolExecutor(jobs) as pool:
        counted = pool.map(lambda path: count(program, path, items[path]), items)
        return dict(zip(items, counted, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="keep the counts, for the next checks")
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="paths by a part of their names")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many paths are run at a time")
    options = parser.parse_args()
    if options.keep and options.only:
        parser.error("--keep keeps all paths together; leave --only out")
    program = build()
    conditions, items = describe(program)
    kept: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {"conditions": {}, "paths": {}}
    differences = other_conditions(kept["conditions"], conditions)
    if differences and not options.keep:
        print("\n".join(differences))
        print("The counts cannot be compared. Renew them, from code that is good: make bench-check OPTIONS=--keep")
        return 2

    def chosen(paths: Iterable[str]) -> list[str]:
        return [path for path in paths if not options.only or any(text in path for text in options.only)]

    now = count_all(program, {path: items[path] for path in chosen(items)}, options.jobs)
    changes = compare({path: kept["paths"][path] for path in chosen(kept["paths"])}, now)
    print(table(changes, now))
    if options.keep:
        content = {"command": "make bench-check OPTIONS=--keep", "cachegrind": " ".join(CACHEGRIND)}
        RESULT.write_text(json.dumps({**content, "conditions": conditions, "paths": now}, indent=1) + "\n")
        return 0
    problems = [f"{change.path} {problem}" for change in changes if (problem := change.problem)]
    if problems:
        print("\n".join(["", *problems, "If that is meant, keep it: make bench-check OPTIONS=--keep"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
