"""Predictions for other settings, against what is then measured with them."""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import replace
from typing import Any

from pipelines import RESULTS, Pipeline, on_cores, parser, pipelines

from foreload.bench.show import machine
from foreload.tune.costs import Costs
from foreload.tune.predict import predict

LOW, HIGH = 0.85, 1.15
FILE = RESULTS / "record_predict.json"


def run(pipeline: Pipeline, settings: dict[str, Any], cores: int, warm: int = 0) -> tuple[float, Any]:
    """Samples per second, and what the loader tells."""
    with on_cores(cores):
        loader = pipeline.make(**settings)
        for _ in range(warm):
            for _ in loader:
                pass
        before = loader.stats()
        for _ in range(pipeline.epochs):
            for batch in loader:
                pipeline.loop(batch)
        after = loader.stats()
        loader.close()
    return (after["samples"] - before["samples"]) / (after["seconds"] - before["seconds"]), after


def show(stats: Any) -> None:
    """Print the figures that a prediction was made from."""
    for name, entry in stats["stages"].items():
        if entry["count"]:
            print(f"      {name:10}", {key: round(value, 4) for key, value in entry.items()})
    print("     ", {name: stats[name] for name in ("seconds", "loop_seconds", "loop_cpu_seconds", "cpu", "lock")})
    costs = Costs.of(stats)
    print("     ", costs.demand, costs.servers)
    print("     ", replace(costs, stages={}), flush=True)


def measure(name: str, pipeline: Pipeline, rounds: int, *, verbose: bool) -> dict[str, Any]:
    before, predicted, after = [], [], []
    for _ in range(rounds):
        rate, stats = run(pipeline, pipeline.before, pipeline.cores[0])
        before.append(rate)
        predicted.append(predict(stats, **pipeline.change))
        rate, then = run(pipeline, pipeline.after, pipeline.cores[1], pipeline.warm)
        after.append(rate)
    # What is measured together is compared, so that a machine that slows down does not count.
    ratio = statistics.median(one / other for one, other in zip(predicted, after, strict=True))
    good = LOW <= ratio <= HIGH
    print(
        f"{'good  ' if good else 'MISSED'} {name:46} {statistics.median(before):9,.0f} -> predicted "
        f"{statistics.median(predicted):9,.0f}, measured {statistics.median(after):9,.0f} samples/s: {ratio:.3f}",
        flush=True,
    )
    if verbose:
        show(stats)
        print("    with the change:")
        show(then)
    return {
        "change": pipeline.change,
        "before": before,
        "predicted": predicted,
        "measured": after,
        "ratio": ratio,
        "good": good,
    }


def main() -> None:
    options = parser(__doc__, 3)
    options.add_argument("--part", default="1/1", help="which part of them, such as 2/3; parts are joined")
    options.add_argument("--only", default="", help="pipelines with one of these in their names; nothing is kept")
    options.add_argument("--verbose", action="store_true", help="show what predictions were made from")
    chosen = options.parse_args()
    part, parts = map(int, chosen.part.split("/"))
    found = pipelines()
    known = json.loads(FILE.read_text())["pipelines"] if FILE.exists() else {}
    for number, (name, pipeline) in enumerate(found.items()):
        if number % parts == part - 1 and any(text in name for text in chosen.only.split(",")):
            known[name] = measure(name, pipeline, chosen.rounds, verbose=chosen.verbose)
    if chosen.only:
        return
    known = {name: known[name] for name in found if name in known}
    good = sum(entry["good"] for entry in known.values())
    print(f"{good} of {len(known)} pipelines within {LOW} to {HIGH}")
    record = {"command": " ".join(["python", *sys.argv]), "machine": machine(), "pipelines": known}
    FILE.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
