"""Run the scripts of this folder, keep their figures, and write analysis.md from them.

    python measure.py data/profiling      # measure, keep the figures in measured.json, write analysis.md
    python measure.py --render            # write analysis.md from the figures that are kept

The text is in analysis.template.md, with placeholders such as {slow.later.samples_per_second:,.0f}: no figure of
analysis.md is written by hand. The machine should be otherwise idle.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import synthetic_dataset
import torch
from loop import positive

from foreload.machine import granted_cores, granted_memory

HERE = Path(__file__).parent
# What is run: by its name in the template, the script with its arguments, and whether more than once.
RUNS: dict[str, tuple[str, bool]] = {
    "slow": ("slow_dataloader.py DATA", True),
    "fast": ("fast_dataloader.py DATA --epochs 6", True),
    "steps": ("one_at_a_time.py DATA", False),
    "train_slow": ("train_with_data.py DATA --loader slow --epochs 4", True),
    "train_fast": ("train_with_data.py DATA --loader fast --epochs 4", True),
    "train_dali": ("train_with_dali.py DATA --epochs 4", True),
    "plain": ("which_cause.py DATA --workers 0 2 8", False),
    "io": ("which_cause.py DATA --io-ms 20 --workers 0 2 8", False),
    "cpu": ("which_cause.py DATA --cpu-ms 20 --workers 0 2 8", False),
}
# What foreload profile is asked about.
PROFILED = ("slow_dataloader.py DATA", "fast_dataloader.py DATA --epochs 6")


def measure(data: Path, repeats: int, more: list[str]) -> dict[str, Any]:
    """Run everything; what the scripts reported, by name."""
    runs = {}
    for name, (command, often) in RUNS.items():
        reports = []
        for _ in range(repeats if often else 1):
            print(f"{name}: {command} {' '.join(more)}", flush=True)
            with tempfile.TemporaryDirectory() as temporary:
                out = Path(temporary, "report.json")
                script, *arguments = [str(data) if word == "DATA" else word for word in command.split()]
                ended = subprocess.run(
                    [sys.executable, str(HERE / script), *arguments, *more, "--json", str(out)],
                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                )  # fmt: skip
                if ended.returncode == 0:
                    reports.append(json.loads(out.read_text()))
                elif "needs NVIDIA DALI" in ended.stderr:
                    print(f"  left out: {ended.stderr.strip()}")
                else:
                    sys.exit(f"{command} ended with {ended.returncode}:\n{ended.stderr}")
        if reports:
            runs[name] = {"command": " ".join(["python", command, *more]), "reports": reports}
    return runs


def profile(data: Path, more: list[str]) -> dict[str, str]:
    """Ask ``foreload profile`` about the pair; its verdicts, none where the command does not run here."""
    verdicts = {}
    for command in PROFILED:
        print(f"foreload profile {command} {' '.join(more)}", flush=True)
        with tempfile.TemporaryDirectory() as temporary:
            out = Path(temporary, "profile.json")
            script, *arguments = [str(data) if word == "DATA" else word for word in command.split()]
            ended = subprocess.run(
                [sys.executable, "-c", "from foreload.cli.main import main; main()", "profile", "--json", str(out),
                 str(HERE / script), *arguments, *more],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            if ended.returncode != 0 or not out.exists():
                print(f"  left out: {ended.stderr.strip()}")
                return {}
            found = json.loads(out.read_text())
        verdicts[" ".join(["foreload profile", command, *more])] = found["loaders"][0]["verdict"]["sentence"]
    return verdicts


def machine(data: Path) -> dict[str, Any]:
    """Describe what it was measured on."""
    files = list(data.glob("*/*.jpg"))
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": (names or [platform.machine()])[0],
        "cores": granted_cores(),
        "memory_gib": round(granted_memory() / 2**30),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "images": len(files),
        "kib": round(sum(os.path.getsize(file) for file in files) / len(files) / 1024),
    }


def figures(measured: dict[str, Any]) -> dict[str, Any]:
    """Turn what is kept into what the template names: medians over all repeats."""
    names: dict[str, Any] = {"machine": SimpleNamespace(**measured["machine"])}
    for name, run in measured["runs"].items():
        epochs = [report["epochs"] for report in run["reports"]]
        losses = [report.get("losses", [0.0]) for report in run["reports"]]
        names[name] = SimpleNamespace(
            command=run["command"],
            first=_median([each[0] for each in epochs]),
            later=_median([epoch for each in epochs for epoch in (each[1:] or each)]),
            each=[SimpleNamespace(**epoch) for epoch in epochs[0]],
            names=run["reports"][0].get("names", []),
            loss=SimpleNamespace(first=losses[0][0], last=losses[0][-1]),
        )
    names["times"] = SimpleNamespace(
        loop=names["fast"].later.samples_per_second / names["slow"].later.samples_per_second,
        training=names["train_fast"].later.samples_per_second / names["train_slow"].later.samples_per_second,
        io=names["io"].each[-1].samples_per_second / names["io"].each[1].samples_per_second,
        cpu=names["cpu"].each[-1].samples_per_second / names["cpu"].each[1].samples_per_second,
    )
    verdicts = [f"- `{command}`: {says}" for command, says in measured["verdicts"].items()]
    names["verdicts"] = "\n".join(verdicts or ["- (it did not run where this was measured)"])
    names["steps_table"] = "\n".join(
        f"| {name} | {epoch.samples_per_second:,.0f} | {epoch.idle_share:.0%} | {epoch.cpu_share:.0%} |"
        for name, epoch in zip(names["steps"].names, names["steps"].each, strict=True)
    )
    names["dali_row"] = "| with DALI on the CPU | not installed where this was measured | | | |"
    if (dali := names.get("train_dali")) is not None:
        names["dali_row"] = (
            f"| `{dali.command}` | {dali.later.samples_per_second:,.0f} | {dali.later.data_share:.0%} | "
            f"{dali.loss.first:.2f} | {dali.loss.last:.2f} |"
        )
    return names


def _median(epochs: list[dict[str, float]]) -> SimpleNamespace:
    return SimpleNamespace(**{key: statistics.median(epoch[key] for epoch in epochs) for key in epochs[0]})


def render(measured: dict[str, Any]) -> str:
    """Give the text of analysis.md."""
    return (HERE / "analysis.template.md").read_text().format(**figures(measured))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure, and write analysis.md.")
    parser.add_argument("data", type=Path, nargs="?", metavar="DATA", help="made where it is not there")
    parser.add_argument(
        "--render", action="store_true", help="only write the text, from the figures that are kept"
    )
    parser.add_argument("--repeats", type=positive, default=3)
    parser.add_argument("--epochs", type=positive, help="of every run, instead of its own number")
    parser.add_argument("--out", type=Path, default=HERE, help="where measured.json and analysis.md go")
    arguments = parser.parse_args()
    kept = arguments.out / "measured.json"
    if not arguments.render:
        if arguments.data is None:
            parser.error("name a folder for the images, such as data/profiling; or say --render")
        try:
            if next(arguments.data.glob("*/*.jpg"), None) is None:
                synthetic_dataset.make(arguments.data, images=256)
        except OSError as error:
            parser.error(str(error))
        more = [] if arguments.epochs is None else ["--epochs", str(arguments.epochs)]
        verdicts = profile(arguments.data, more)
        runs = measure(arguments.data, arguments.repeats, more)
        measured = {"machine": machine(arguments.data), "runs": runs, "verdicts": verdicts}
        kept.write_text(json.dumps(measured, indent=1) + "\n")
    elif not kept.exists():
        parser.error(f"there is no {kept}; measure first")
    (arguments.out / "analysis.md").write_text(render(json.loads(kept.read_text())))
    print(arguments.out / "analysis.md")


if __name__ == "__main__":
    main()
