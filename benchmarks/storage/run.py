"""The number of emulated accelerators that a core keeps busy: results/storage.json, a table, docs/benchmarks.md.

    python -m benchmarks.storage.run [--only TEXT ...] [--contestants TEXT ...] [--quick] [--cpu]

Each row of all contestants is kept as soon as it is measured, in the place of the one before; with ``--quick``,
``--cpu`` or ``--contestants``, rows go to ``build/storage`` instead.

``--cpu`` does not emulate: it lets one rank take batches as fast as they come, and shows the processor time that a
sample takes in all processes of each contestant, which is nearly the same on a machine that is not quiet.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
from typing import Any

from benchmarks import quiet
from benchmarks.peers import install
from benchmarks.peers.run import machine, renewed
from benchmarks.peers.work import CORES, ROOT
from benchmarks.storage import check, contestants, data, page, search
from benchmarks.storage.accelerator import Emulated
from benchmarks.storage.contestants import Contestant
from benchmarks.storage.ranks import Failed, run, served
from benchmarks.storage.work import ALL, Work

STEPS = 60  # at least, in each run
PASSES = 2  # over the data, where batches are taken as fast as they come


class Trial:
    """One contestant on one workload."""

    def __init__(
        self, work: Work, contestant: Contestant, urls: list[str], seconds: float, *, quick: bool
    ) -> None:
        self.work, self.contestant, self.seconds = work, contestant, seconds
        self.wanted = {"work": work.name, "quick": quick, "urls": urls, "step": 0.0, "checks": False}
        self.tries: list[dict[str, float]] = []

    def check(self) -> None:
        """Raise :class:`Failed` unless two ranks get the samples of their orders, byte by byte."""
        count = min(3 * self.work.batch_size, self.work.count // 2)
        steps = max(1, count // self.work.batch_size)
        answers = run(self.contestant, {**self.wanted, "checks": True, "steps": steps}, 2)
        for rank, answer in enumerate(answers):
            order = self.work.order(rank, 2, steps * self.work.batch_size)
            right = [check.digest(content) for content in check.expected(self.work, order)]
            if answer["digests"] != right:
                same = sum(a == b for a, b in zip(answer["digests"], right, strict=False))
                raise Failed(f"wrong: {same} of {len(right)} samples are right")

    def free(self, ranks: int) -> tuple[float, float]:
        """Take batches as fast as they come; samples per second of all ranks, and processor seconds a sample."""
        steps = max(STEPS, PASSES * self.work.count // self.work.batch_size // ranks)
        found = [Emulated(**one) for one in run(self.contestant, {**self.wanted, "steps": steps}, ranks)]
        return sum(one.samples / one.seconds for one in found), sum(one.cpu for one in found) / ranks

    def utilisation(self, accelerators: float) -> float:
        """The mean utilisation of so many accelerators."""
        ranks, step = search.layout(accelerators, self.work.step, CORES)
        steps = max(STEPS, math.ceil(self.seconds / step))
        answers = run(self.contestant, {**self.wanted, "step": step, "steps": steps}, ranks)
        found = [Emulated(**one) for one in answers]
        mean = sum(one.utilisation(step) for one in found) / ranks
        rate = sum(one.samples / one.seconds for one in found)
        self.tries.append({"accelerators": accelerators, "ranks": ranks, "utilisation": mean, "rate": rate})
        print(
            f"    {accelerators:8.3f} accelerators: {mean:6.1%} of the time busy, {rate:,.0f} samples/s",
            flush=True,
        )
        return mean

    def result(self, *, emulate: bool, rounds: int) -> dict[str, Any]:
        """Return what is kept: the largest number of accelerators and all tries, or rates without emulation."""
        kept: dict[str, Any] = {"contestant": self.contestant.name, "family": self.contestant.family}
        try:
            self.check()
            turns = [self.free(1) for _ in range(1 if emulate else rounds)]
            rate, cpu = sorted(turns)[len(turns) // 2]
            kept |= {"cpu": cpu, "rate": rate}
            if emulate and self.work.step:
                guess = max(search.LEAST, self.work.threshold * rate / self.work.rate)
                found = search.largest(self.utilisation, self.work.threshold, guess)
                sustained = [one["rate"] for one in self.tries if one["accelerators"] == found]
                kept |= {"accelerators": found, "per_core": found / CORES, "tries": self.tries}
                kept["rate"] = sustained[0] if sustained else 0.0
        except Failed as error:
            kept["reason"] = str(error)
        return kept


def contest(work: Work, chosen: list[Contestant], options: argparse.Namespace) -> dict[str, Any]:
    """One row: make the data, wait for quiet, let each contestant run."""
    print(f"==> {work.name}: {work.about}", flush=True)
    work.prepare()
    if work.source != "disk":
        data.warm(work.files)
    is_quiet = False if options.cpu else quiet.wait(options.wait)
    rows = []
    with served(work) as urls:
        for contestant in chosen:
            if contestant.loads(work):
                trial = Trial(work, contestant, urls, options.seconds, quick=options.quick)
                rows.append(trial.result(emulate=not options.cpu, rounds=options.rounds))
                print(f"  {contestant.name}: {page.words(work.step > 0, rows[-1])}", flush=True)
    about = {"work": work.name, "about": work.about, "decoded": work.decoded, "threshold": work.threshold}
    measured = {
        "command": f'python -m benchmarks.storage.run --only "{work.name}"',
        "date": f"{datetime.date.today()}",
        "machine": machine(),
    }
    return {
        **about,
        "size": work.size,
        "emulated": work.step > 0,
        "quiet": is_quiet,
        **measured,
        "contestants": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="workloads: their names, or parts of these")
    parser.add_argument("--contestants", nargs="+", default=[""], help="parts of their names")
    parser.add_argument("--seconds", type=float, default=5, help="the least length of a run")
    parser.add_argument("--rounds", type=int, default=3, help="turns where nothing is emulated")
    parser.add_argument("--quick", action="store_true", help="few samples: to see that contestants are right")
    parser.add_argument("--cpu", action="store_true", help="processor time per sample only")
    parser.add_argument(
        "--wait", type=float, default=600, help="seconds to wait for a quiet machine, per workload"
    )
    options = parser.parse_args()
    whole = {work.name for work in ALL}.intersection(options.only)  # of which others begin with the names
    works = [
        work
        for work in ALL
        if work.name in whole or any(text in work.name for text in options.only if text not in whole)
    ]
    works = [work.shortened() if options.quick else work for work in works]
    missing = {}
    chosen = [one for one in contestants.ALL if any(text in one.name for text in options.contestants)]
    if (problem := install.problem("dali")) is not None:
        missing["DALI"] = problem
        chosen = [one for one in chosen if one.family != "dali"]
    is_partial = options.quick or options.cpu or options.contestants != [""]
    path = ROOT / "build" / "storage" / "partial.json" if is_partial else page.RESULT
    path.parent.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"machine": machine(), "missing": missing, "rows": []}
    if not is_partial and path.exists():
        kept = json.loads(path.read_text())
        content |= {"machine": kept["machine"], "rows": kept["rows"]}
    for work in works:
        content["rows"] = renewed(content["rows"], contest(work, chosen, options), ALL)
        path.write_text(json.dumps(content, indent=1) + "\n")
    print(page.tables(content))
    if not is_partial:
        page.write()
    print(path)


if __name__ == "__main__":
    main()
