"""``foreload profile -m`` and ``--duration``: modules run as by ``python -m``, and scripts are stopped in time."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import leftovers
from tests.cli.profiled import COMMAND, write
from tests.programs import Program, python

UTIL = """
import time
def batches():
    for number in range(100):
        time.sleep(0.012)
        yield [number]
"""
TRAIN = """
import os, sys, time
from .util import batches
print(__name__, __package__, __file__, __spec__.name, __spec__.parent, sys.argv, sys.path[0], bool(__loader__))
if __name__ == "__main__":
    for batch in batches():
        time.sleep(0.004)
    sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "mine" / "sub").mkdir(parents=True)
    for name, text in (("__init__", ""), ("sub/__init__", ""), ("sub/util", UTIL), ("sub/train", TRAIN)):
        (tmp_path / "mine" / f"{name}.py").write_text(text)
    (tmp_path / "mine" / "sub" / "__main__.py").write_text("import sys\nprint(__package__, sys.argv[1:])\n")
    return tmp_path


@pytest.mark.slow
def test_a_module_runs_as_python_runs_it(package: Path) -> None:
    arguments = ["-m", "mine.sub.train", "5", "--json", "x", "-m", "y", "--duration"]
    plain = subprocess.run([sys.executable, *arguments], cwd=package, capture_output=True, text=True)
    watched = python(*COMMAND, "--json", "kept.json", *arguments, folder=package)
    assert plain.returncode == watched.returncode == 5
    assert watched.stdout.startswith(plain.stdout)
    assert watched.stderr == plain.stderr
    record = json.loads((package / "kept.json").read_text())
    assert record["command"] == arguments[1:]
    (loop,) = record["loaders"]
    assert loop["where"] == "train.py:6"
    assert loop["verdict"]["kind"] == "loader-bound"
    assert not (package / "x").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["-m", "mine.sub", "a"], 0, "mine.sub ['a']"),
        (["-mmine.sub", "-b"], 0, "mine.sub ['-b']"),
        (["-m", "nosuch"], 2, "there is no module 'nosuch' (-m); give a name that `python -m` finds here"),
        (["-m", "mine.none"], 2, "there is no module 'mine.none' (-m)"),
        (["-m", "mine.sub.train.x"], 2, "there is no module 'mine.sub.train.x' (-m)"),
        (["-m", "mine.sub.train.py"], 2, "(-m); write 'mine.sub.train', without .py"),
        (["-m", "mine"], 2, "'mine' (-m) is a package without a __main__.py"),
        (["-m", ".mine"], 2, "there is no module '.mine' (-m)"),
        (["-m"], 2, "-m needs the name of a module"),
        (["--duration", "soon", "x.py"], 2, "such as 30, 30s or 2m, got 'soon'"),
        (["--duration", "0", "x.py"], 2, "such as 30, 30s or 2m, got '0'"),
        (["none.py"], 2, "or -m and the name of a module"),
    ],
    ids=str,
)
def test_what_is_to_run_is_understood(arguments: list[str], code: int, words: str, package: Path) -> None:
    found = python(*COMMAND, *arguments, folder=package)
    assert found.returncode == code
    assert words in " ".join((found.stdout + found.stderr).replace("│", " ").split())
    assert "foreload/cli" not in found.stderr


def test_modules_are_looked_up_without_importing_their_package(package: Path) -> None:
    """A module is left to Python where the folder of its package does not tell what there is."""
    (package / "mine" / "__init__.py").write_text("print('imported'); __path__.append(__path__[0] + '/../more')")
    (package / "more").mkdir()
    (package / "more" / "late.py").write_text("print('late')")
    (package / "space" / "inner").mkdir(parents=True)
    (package / "space" / "inner" / "train.py").write_text("print('in space')")
    for name, words in (("mine.late", "imported\nlate\n"), ("space.inner.train", "in space\n")):
        found = python(*COMMAND, "-m", name, folder=package)
        assert found.returncode == 0, found.stderr
        assert found.stdout.startswith(words)


DOCUMENTED = """
import argparse, time
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
for epoch in range(parser.parse_args().epochs):
    for batch in map(lambda number: time.sleep(0.01), range(100)): time.sleep(0.004)
"""


@pytest.mark.slow
@pytest.mark.parametrize("document", ["profiling.md", "nsys.md"])
def test_the_documents_commands_run(document: str, tmp_path: Path) -> None:
    (tmp_path / "my" / "package").mkdir(parents=True)
    for name in ("train.py", "my/package/train.py"):
        (tmp_path / name).write_text(DOCUMENTED)
    (tmp_path / "nsys").write_text(
        '#!/bin/sh\nwhile [ "${1#-}" != "$1" ] || [ "$1" = profile ]; do shift; done\n"$@"\n'
    )
    (tmp_path / "nsys").chmod(0o755)
    text = (Path(__file__).parents[2] / "docs" / document).read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    commands = [line for block in blocks for line in block.splitlines() if line.startswith("foreload profile")]
    assert commands
    for command in commands:
        arguments = shlex.split(command)[2:]
        path = {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"}
        done = python(*COMMAND, *arguments, folder=tmp_path, environment=path)
        assert done.returncode == 0, done.stderr
        assert "for batch in map" in done.stdout, command
        assert "loader-bound" in done.stdout


FOREVER = """
import os, signal, subprocess, sys, time
def batches():
    while True:
        time.sleep(0.012)
        yield [1]
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.getpid(), child.pid, flush=True)
how = sys.argv[1]
if how == "deaf": signal.signal(signal.SIGINT, signal.SIG_IGN)
try:
    for batch in batches(): time.sleep(0.004)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    if how == "plain": raise
    sys.exit(3)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["plain", "tidy", "deaf", "background"])
def test_a_script_without_end_is_stopped_and_reported(how: str, tmp_path: Path, temporary_folder: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(FOREVER)
    own = tmp_path / "temporary"
    own.mkdir()
    options = ["--duration", "10s", "--json", tmp_path / "kept.json"]
    command = [*COMMAND, *options, script, how]
    if how == "background":  # a shell starts it with SIGINT ignored
        ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
        command = ["-c", f"{ignoring}; from foreload.cli.main import main; main()", *command[2:]]
    done = python(*command, environment={**os.environ, "TMPDIR": str(own)})
    assert done.returncode == 0, done.stderr
    process, child = map(int, done.stdout.splitlines()[0].split())
    assert leftovers.has_ended(process)
    until = time.monotonic() + leftovers.PATIENCE
    while time.monotonic() < until and not leftovers.has_ended(child):
        time.sleep(0.05)
    assert leftovers.has_ended(child)
    assert list(own.iterdir()) == []
    assert ("interrupted" in done.stdout) == (how != "deaf")
    assert ("KeyboardInterrupt" in done.stderr) == (how == "plain")
    assert "was stopped then (--duration)" in done.stdout
    record = json.loads((tmp_path / "kept.json").read_text())
    assert record["stopped"] is True
    assert record["seconds"] >= 10
    assert record["exit_code"] == {"plain": -signal.SIGINT, "deaf": -signal.SIGTERM}.get(how, 3)
    (loop,) = record["loaders"]
    assert loop["where"] == "script.py:12"


@pytest.mark.slow
def test_a_script_that_ends_before_keeps_its_exit_code(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit(7)")
    found = python(*COMMAND, "--duration", "1m", script)
    assert found.returncode == 7
    assert "exit code 7" in found.stdout
    assert "--duration" not in found.stdout


OTHER_THREAD = """
import os, signal, sys, threading, time
from foreload.cli.profile.script import run_script
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
script = "import signal, time; signal.signal(15, lambda *_: exit(5)); print('ready', flush=True); time.sleep(60)"
def sample(process):
    time.sleep(0.3)  # nearly always, this thread waits for no signal
command = [sys.executable, "-c", script]
code = run_script(command, dict(os.environ), sample, lambda: 0.01)
print(code, signal.getsignal(15) == signal.SIG_DFL, flush=True)
os._exit(0)
"""


def test_signals_that_another_thread_receives_are_passed_on() -> None:
    process = Program("-c", OTHER_THREAD, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.communicate(timeout=300)[0] == "5 True\n"
    assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_costs_no_other_result(tmp_path: Path) -> None:
    script = write(tmp_path, "for batch in DataLoader(Rows(), batch_size=4): pass\nsys.exit(3)\n")
    (full := tmp_path / "full.json").symlink_to("/dev/full")
    ran = python(*COMMAND, "--json", full, "--trace", tmp_path / "trace.json", script)
    assert ran.returncode == 3
    assert ran.stderr == f"foreload: --json {full} cannot be written: No space left on device\n"
    assert "iterated at script.py:" in ran.stdout
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    ran = python(*COMMAND, "--trace", full, script)
    assert (ran.returncode, full.is_symlink()) == (3, True)
    assert ran.stderr == f"foreload: --trace {full} cannot be written: No space left on device\n"
    assert "iterated at script.py:" in ran.stdout
    assert "trace: " not in ran.stdout
