"""examples/ddp under torchrun: a rank is killed, and the run goes on without a lost sample."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from foreload.order.samplers import KeyedSampler
from tests import leftovers
from tests.programs import python

SCRIPT = Path(__file__).parents[2] / "examples" / "ddp" / "train.py"


# What torchrun does, with ranks that are forks of one process: as programs, each would import torch, and what an
# optimizer needs of it.
LAUNCH = """
import runpy, sys
import torch
import torch._dynamo
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

script, ranks, *arguments = sys.argv[1:]

def rank():
    torch.set_num_threads(1)  # as OMP_NUM_THREADS asks, without which torch was imported
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")

where = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
elastic_launch(LaunchConfig(1, 1, int(ranks), start_method="fork", max_restarts=2, **where), rank)()
"""
# Else the launcher's key-value store is that of the ranks that were killed, where gloo finds their addresses.
SETTINGS = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def launch(folder: Path, ranks: int, *arguments: object) -> str:
    """Run the example on ranks that are forks; return what was said of them."""
    with tempfile.TemporaryDirectory() as temporary:  # forks of the launcher leave its files behind
        environment = {**os.environ, **SETTINGS, "TMPDIR": temporary}
        done = python("-c", LAUNCH, SCRIPT, ranks, folder, *arguments, environment=environment)
    assert done.returncode == 0, done.stderr
    return done.stderr


def torchrun(folder: Path, ranks: int, *arguments: object) -> str:
    """Run the example; return what it printed. All of its processes are ended, whatever happens."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["--max-restarts=2", f"--log-dir={folder.parent / 'logs'}"]
    process = subprocess.Popen(
        [*command, str(SCRIPT), str(folder), *map(str, arguments)],
        env={**os.environ, **SETTINGS},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=leftovers.end_with_parent,
    )
    try:
        out, _ = process.communicate(timeout=300)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    assert process.returncode == 0, out
    return str(out)


def steps_of(folder: Path, run: int, ranks: int) -> list[tuple[int, int, list[list[int]]]]:
    """The steps of a run: epoch, number and what each rank had; of those that all ranks had."""
    lines = [
        [json.loads(line) for line in (folder / f"run{run}-rank{rank}.jsonl").read_text().splitlines()]
        for rank in range(ranks)
    ]
    steps = []
    for parts in zip(*lines, strict=False):
        assert len({(epoch, step) for epoch, step, _ in parts}) == 1
        steps.append((parts[0][0], parts[0][1], [indices for _, _, indices in parts]))
    return steps


@pytest.mark.slow
@pytest.mark.parametrize(("run", "ranks", "workers"), [(torchrun, 2, 1), (launch, 3, 0)])
def test_a_rank_that_is_killed_costs_no_sample(
    run: Callable[..., str], ranks: int, workers: int, tmp_path: Path
) -> None:
    samples, batch, every, kill = 1001, 4, 7, 40 * 2 // ranks
    before = leftovers.shared_memory()
    sizes = ["--samples", samples, "--batch-size", batch, "--save-every", every, "--num-workers", workers]
    folder = tmp_path / "out"
    out = run(folder, ranks, *sizes, "--kill-at", kill)
    # (A launcher may name another one, which the killed rank has left alone.)
    assert "failed (exitcode: " in out
    killed = (folder / f"run0-rank{ranks - 1}.jsonl").read_text().splitlines()
    assert json.loads(killed[-1])[1] == kill
    saved = (kill - 1) // every * every
    first, second = steps_of(folder, 0, ranks), steps_of(folder, 1, ranks)
    assert [step for _, step, _ in first][-1] in (kill - 1, kill)
    each = -(-samples // ranks)
    assert [step for _, step, _ in second] == list(range(saved + 1, 2 * -(-each // batch) + 1))
    # Until the checkpoint, and after it in the second run: every step is that of an undisturbed run.
    whole = [*first[:saved], *second]
    for epoch in range(2):
        order = list(KeyedSampler(range(samples), 0, epoch))
        padded = order + order[: each * ranks - samples]
        parts = [padded[rank::ranks] for rank in range(ranks)]
        expected = [[part[at : at + batch] for part in parts] for at in range(0, each, batch)]
        assert [step for number, _, step in whole if number == epoch] == expected
    # After the checkpoint, each of the samples that were left comes exactly once.
    had = {index for _, _, step in first[:saved] for part in step for index in part}
    counts = Counter(index for number, _, step in second if number == 0 for part in step for index in part)
    twice = set(list(KeyedSampler(range(samples), 0, 0))[: -samples % ranks])  # to make the shares equal
    assert set(counts) - twice == set(range(samples)) - had - twice
    assert sum(counts.values()) == each * ranks - saved * batch * ranks
    assert leftovers.shared_memory() == before
    assert not [path for path in folder.iterdir() if path.suffix not in (".pt", ".jsonl")]


@pytest.mark.slow
def test_another_number_of_ranks_goes_on(tmp_path: Path) -> None:
    sizes = ["--samples", 997, "--batch-size", 4, "--save-every", 7]
    launch(tmp_path / "run", 2, *sizes, "--epochs", 1)  # whose last checkpoint is of step 119 of 125
    first = steps_of(tmp_path / "run", 0, 2)
    assert len(first) == 125
    launch(tmp_path / "run", 4, *sizes, "--epochs", 1)
    rest = steps_of(tmp_path / "run", 0, 4)
    had = [index for _, _, step in first[:119] for part in step for index in part]
    left = Counter(index for _, _, step in rest for part in step for index in part)
    assert set(had) | set(left) == set(range(997))
    assert sum(left.values()) == -(-(997 - 119 * 8) // 4) * 4
