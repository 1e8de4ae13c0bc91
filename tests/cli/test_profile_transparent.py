"""Scripts behave under ``foreload profile`` as without it, interrupted or not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests import leftovers
from tests.cli.profiled import COMMAND, write
from tests.programs import Program, python

TRANSPARENT = """
import atexit, threading
print(__name__, __file__, sys.argv, sys.path[1:], os.getcwd(), __spec__, __package__)
print(sys.stdin.readline().strip(), getattr(sys, "mark", None), sys.modules["sitecustomize"].__file__)
atexit.register(print, "at exit")
class Bad(Rows):
    def __getitem__(self, index):
        if index == 21:
            raise ValueError("sample 21")
        return super().__getitem__(index)
if __name__ == "__main__":
    import traceback
    for workers in (0, 1):
        try:
            for batch in DataLoader(Bad(), batch_size=4, num_workers=workers):
                pass
        except ValueError:
            print(traceback.format_exc())
    for batch in DataLoader(Bad(), batch_size=4, collate_fn=lambda samples: 1 / 0):
        pass
"""


@pytest.mark.slow
def test_a_script_cannot_tell_that_it_is_watched(tmp_path: Path) -> None:
    script = write(tmp_path, TRANSPARENT)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/sitecustomize.py").write_text("import sys; sys.mark = 'mine'")
    arguments = [script.name, "a", "--json", "-x"]
    own = {**os.environ, "PYTHONPATH": str(tmp_path / "other")}
    plain = subprocess.run(
        [sys.executable, *arguments], input="typed\n", cwd=tmp_path, env=own, capture_output=True, text=True
    )
    watched = python(*COMMAND, *arguments, stdin="typed\n", folder=tmp_path, environment=own)
    assert watched.returncode == plain.returncode == 1
    assert watched.stderr == plain.stderr
    assert "ZeroDivisionError" in plain.stderr
    assert watched.stdout.startswith(plain.stdout)
    assert "typed mine" in plain.stdout
    assert "exit code 1" in watched.stdout[len(plain.stdout) :]


FOREVER = """
if __name__ == "__main__":
    for epoch in range(10**9):
        for number, batch in enumerate(DataLoader(Rows(), batch_size=4, num_workers=1, persistent_workers=False)):
            if (epoch, number) == (2, 5):
                print("ready", flush=True)
"""


def _interrupted(process: Program, number: signal.Signals) -> tuple[str, str]:
    """Send a signal until a process ends: Python drops a KeyboardInterrupt in the callback of a weak reference."""
    for _ in range(6):
        process.send_signal(number)
        try:
            return process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            continue
    return process.communicate(timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupted_script_ends_as_ever_and_is_reported(number: signal.Signals, tmp_path: Path) -> None:
    script = write(tmp_path, FOREVER)
    kept = tmp_path / "kept.json"
    for _ in range(3):  # the signal may come just when a time is noted
        process = Program(*COMMAND, "--json", kept, script, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        out, errors = _interrupted(process, number)
        assert process.returncode == -number
        assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)
        if "foreload/cli/profile" not in errors:
            break
    assert "foreload/cli/profile" not in errors
    assert f"was killed by {number.name}" in out
    record = json.loads(kept.read_text())
    assert record["exit_code"] == -number
    assert record["loaders"][0]["stats"]["epochs"] >= 3
    assert record["loaders"][0]["verdict"]["sentence"].split()[0] in out


@pytest.mark.slow
def test_who_kills_the_command_kills_the_script(tmp_path: Path) -> None:
    script = write(tmp_path, "import os, time; print(os.getpid(), flush=True); time.sleep(600)", loader=False)
    # What is killed does not remove its temporary files.
    own = {**os.environ, "TMPDIR": str(tmp_path)}
    process = Program(*COMMAND, script, stdout=subprocess.PIPE, env=own)
    assert process.stdout is not None
    inner = int(process.stdout.readline())
    process.kill()
    process.stdout.read()  # until nobody has it open
    process.wait()
    until = time.monotonic() + leftovers.PATIENCE
    while time.monotonic() < until and not leftovers.has_ended(inner):
        time.sleep(0.05)
    assert leftovers.has_ended(inner)


CURIOUS = """
import warnings
import numpy as np
import foreload

def collate(samples):
    warnings.warn("collating", stacklevel=2)
    return samples

class Three:
    batch_size = np.int64(3)
    def __iter__(self): return iter([[1, 2, 3]] * 5)

for batch in DataLoader(Rows(), batch_sampler=Three(), pin_memory=True, collate_fn=collate): pass
for batch in foreload.DataLoader(Rows(), batch_size=4, pin_memory=True): pass
sys.exit(5)
"""


@pytest.mark.slow
def test_curious_scripts_run_as_without_it_and_nobody_needs_to_read_the_report(tmp_path: Path) -> None:
    script = write(tmp_path, CURIOUS).rename(tmp_path / "größe.py")
    for encoding, device in (("ascii", subprocess.PIPE), ("utf-8", "/dev/full")):
        told = {**os.environ, "PYTHONIOENCODING": encoding}
        plain = subprocess.run([sys.executable, script], capture_output=True, text=True, env=told)
        assert plain.stderr.count("Warning") >= 3
        with open(device, "w") if isinstance(device, str) else nullcontext(device) as out:
            watched = subprocess.run(
                [sys.executable, *COMMAND, "--json", tmp_path / "r.json", script],
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
                env=told,
            )
        assert watched.returncode == plain.returncode == 5
        assert watched.stderr.startswith(plain.stderr)
        assert watched.stderr[len(plain.stderr) :] == (
            "" if encoding == "ascii" else "foreload: [Errno 28] No space left on device\n"
        )
        kept = json.loads((tmp_path / "r.json").read_text())["loaders"]
        assert sorted((each["stats"]["samples"], each["stats"]["loader"]["batch_size"]) for each in kept) == [
            (15, 3),
            (40, 4),
        ]
        (tmp_path / "r.json").unlink()
