"""All contestants on all workloads, in turns: results/peers.json, a table, a plot and docs/benchmarks.md.

python -m benchmarks.peers.run [--only TEXT ... [--renew]] [--contestants NAME ...] [--rounds N]
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import quiet
from benchmarks.peers import install, page
from benchmarks.peers.turns import Contestant, ask, check, summary, time_turns
from benchmarks.peers.work import CORES, ROOT, Work
from benchmarks.peers.workloads import ALL

RESULT = ROOT / "benchmarks" / "results" / "peers.json"

Families = dict[str, list[str]]


def available(names: list[str]) -> tuple[dict[str, Families], dict[str, str]]:
    """The contestants that can run, with their families; and the others, with the reason."""
    found: dict[str, Families] = {}
    missing: dict[str, str] = {}
    for name in names:
        problem = install.problem(name)
        if problem is None:
            answer, _ = ask(install.python(name), name, "list")
            problem = answer.get("failed")
        if problem is None:
            module = install.packages()[name].get("module")
            found[name] = {**answer["families"], **({"import": [f"import {module}"]} if module else {})}
        else:
            missing[name] = problem
            print(f"{name} cannot run: {problem}")
    if not found:
        raise SystemExit("no contestant can run; results are left as they are")
    return found, missing


def contestants_of(work: Work, found: dict[str, Families]) -> list[Contestant]:
    return [
        Contestant(name, settings, install.python(name))
        for name, families in found.items()
        for settings in families.get(work.family, [])
    ]


def chosen(patterns: list[str]) -> list[Work]:
    """The workloads whose names contain one of the texts, or match one as a pattern; all without any."""
    works = [
        work
        for work in ALL
        if not patterns or any(p in work.name or fnmatch.fnmatch(work.name, p) for p in patterns)
    ]
    if not works:
        raise SystemExit(
            f"--only: no workload matches {patterns}; there are: {'; '.join(work.name for work in ALL)}"
        )
    return works


def contest(work: Work, found: dict[str, Families], options: argparse.Namespace) -> dict[str, Any]:
    """One row: make the data, check all, wait for quiet, time those that are right."""
    print(f"==> {work.name}: {work.about}", flush=True)
    work.prepare()
    contestants = contestants_of(work, found)
    check(work, contestants, lambda line: print(line, flush=True))
    is_quiet = quiet.wait(options.wait)
    load = quiet.load()
    if not options.check:
        time_turns(work, contestants, options.rounds)
    rows = [summary(work, contestant) for contestant in contestants]
    row = {"work": work.name, "about": work.about, "unit": work.unit, "shows": work.shows, "samples": work.count}
    command = f'python -m benchmarks.peers.run --renew --rounds {options.rounds} --only "{work.name}"'
    measured = {
        "command": command,
        "date": f"{datetime.date.today()}",
        "rounds": options.rounds,
        "quiet": is_quiet,
        "load": load,
        "machine": machine(),
    }
    return {**row, **measured, "contestants": rows}


def renewed(kept: list[dict[str, Any]], row: dict[str, Any], works: Sequence[Any] = ALL) -> list[dict[str, Any]]:
    """The rows with this one in its workload's place, unless only the one that is there was measured in quiet."""
    rows = {one["work"]: one for one in kept}
    if row["quiet"] or not rows.get(row["work"], row)["quiet"]:
        rows[row["work"]] = row
    return [rows[work.name] for work in works if work.name in rows]


def machine() -> dict[str, Any]:
    from foreload.bench import show

    return {**show.machine(), "cores": CORES, "python": platform.python_version()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="workloads: parts of their names, or patterns")
    parser.add_argument("--contestants", nargs="+", default=[], help="adapters; all by default")
    parser.add_argument("--rounds", type=int, default=5, help="timed turns of each contestant")
    parser.add_argument("--quick", action="store_true", help="few samples: to see that contestants are right")
    parser.add_argument("--check", action="store_true", help="check only, time nothing")
    parser.add_argument(
        "--renew", action="store_true", help="put the rows into results/peers.json, and keep its other rows"
    )
    parser.add_argument(
        "--wait", type=float, default=600, help="seconds to wait, per workload, until nothing else runs"
    )
    parser.add_argument(
        "--json", type=Path, help="where results go; by default results/peers.json, but not of --quick or --only"
    )
    options = parser.parse_args()
    works = [work.shortened() if options.quick else work for work in chosen(options.only)]
    found, missing = available(options.contestants or list(install.packages()))
    partial = options.quick or options.check or options.contestants or (options.only and not options.renew)
    path = options.json or (ROOT / "build" / "peers" / "partial.json" if partial else RESULT)
    content: dict[str, Any] = {
        "machine": machine(),
        "quick": options.quick,
        "missing": missing,
        "rows": [],
    }
    if options.renew and path == RESULT and path.exists():
        # A row compares within one run, so the others may be of another machine; each says of which.
        kept = json.loads(path.read_text())
        content |= {"machine": kept["machine"], "rows": kept["rows"]}
    for work in works:
        content["rows"] = renewed(content["rows"], contest(work, found, options))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n")
    print(page.tables(content))
    if path == RESULT:
        page.write()
    else:
        page.plot(content, path.with_suffix(".png"))
    print(path)


if __name__ == "__main__":
    main()
