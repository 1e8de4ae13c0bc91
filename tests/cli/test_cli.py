"""The commands, as a user types them."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import foreload as fl
from foreload import machine
from tests.programs import Program, python


def run(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return python("-m", "foreload", *arguments)


# The command, without contestants that are not asked for: each takes seconds to start. (All run in
# test_bench_compares_and_keeps_everything and in tests/bench.)
BENCH = """
import sys
from foreload.bench.contestants import IMAGE_CONTESTANTS, TENSOR_CONTESTANTS
from foreload.cli.main import main
asked = ("stock, in the loop", "CachedDataset", "AsyncPrefetchDataset", "index_select", "pinned + device")
for contestants in (IMAGE_CONTESTANTS, TENSOR_CONTESTANTS):
    contestants[:] = [each for each in contestants if each.name.endswith(asked)]
main(["bench", *sys.argv[1:]])
"""


def bench(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return python("-c", BENCH, *arguments)


@pytest.mark.slow
def test_synthetic_photos_are_like_photos_and_come_from_their_seed(tmp_path: Path) -> None:
    from foreload.bench.synth import synth_images

    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        synth_images(tmp_path / name, 60, seed=seed)
    files = {name: sorted((tmp_path / name).glob("*/*.jpg")) for name in "abc"}
    content = {name: [file.read_bytes() for file in paths] for name, paths in files.items()}
    assert len(content["a"]) == 60
    assert content["a"] == content["b"]
    assert content["a"] != content["c"]
    assert 85 * 1024 < np.mean([len(data) for data in content["a"]]) < 115 * 1024
    sizes = [Image.open(file).size for file in files["a"]]
    assert sizes.count((500, 375)) > 20
    assert sizes.count((375, 500)) > 3
    assert {Image.open(file).mode for file in files["a"]} == {"RGB"}


def test_synth_writes_what_it_is_told(tmp_path: Path) -> None:
    result = run("synth", tmp_path / "t", "--tensors", "50,4", "--text", 20)
    assert result.returncode == 0, result.stderr
    assert np.load(tmp_path / "t" / "x.npy").shape == (50, 4)
    assert np.load(tmp_path / "t" / "y.npy").dtype == np.int64
    assert len((tmp_path / "t" / "lines.txt").read_text().splitlines()) == 20
    result = run("synth", tmp_path / "i", "--images", 7)
    assert result.returncode == 0, result.stderr
    assert len(list((tmp_path / "i").glob("class_*/*.jpg"))) == 7
    assert "i: 7 files, " in result.stdout
    assert re.search(r" \d+ KiB$", result.stdout)
    result = run("synth", tmp_path / "i", "--images", 3)
    assert result.returncode == 2
    assert "holds 4 other images, such as" in " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["synth", "{}/new"], "--images"),
        (["synth", "{}/new", "--images", 0], "images"),
        (["synth", "{}/new", "--images", "many"], "'--images': must be a whole number of at least 1, got 'many'"),
        (["synth", "{}/new", "--tensors", "5"], "ROWS,COLUMNS"),
        (["synth", "{}/new", "--tensors", "5,0"], "positive"),
        (["synth", "{}/used", "--images", 1], "--force"),
        (["synth", "{}/used/file", "--images", 1], "is a file"),
        (["bench", "{}/none"], "does not exist"),
        (["bench", "--json", "{}/none/file"], "--json {}/none/file cannot be written"),
        (["bench", "--num-workers", 0], "--num-workers"),
        (["serve", "--port", 99999], "'--port': must be a whole number from 0 to 65535, got '99999'"),
        (["plan", "{}/none"], "DIR_OR_N must be a folder of images or a number of samples"),
        (["plan", 10, "--budget", "3q"], "or a number of samples, where DIR_OR_N is a number, got '3q'"),
        (["pack", "{}/none", "{}/new"], "SRC"),
        (
            ["pack", "{}/used", "{}/new", "--shard-size", "3q"],
            "--shard-size must be a size of at least 1 byte, such as 1GiB, got '3q'",
        ),
        (["pack", "{}/used", "{}/new", "--shard-size", "0"], "--shard-size must be a size of at least 1 byte"),
        (["pack", "{}/used", "{}/new", "--shard-size", "50%"], "--shard-size must be a size of at least 1 byte"),
        (["pack", "{}/used/file", "{}/new"], "SRC: '{}/used/file' is a file"),
        (["pack", "{}/used", "{}/used/file"], "DST"),
        (["pack", "{}/empty", "{}/new"], "SRC: no file in '{}/empty'"),
        (["pack", "{}/used", "{}/shards"], "DST: '{}/shards' holds shards that are not of a pack"),
        (["pack", "{}/used", "{}/shards/other.tar/x"], "DST: '{}/shards/other.tar/x' cannot be made: Not a"),
        (["pack", "{}/used", "/proc/x/y"], "DST: '/proc/x/y' cannot be made: No such file or directory"),
        (["synth", "/proc/x/y", "--text", 1], "DIR: '/proc/x/y' cannot be written to: No such file or directory"),
        (["synth", "/sys/x", "--text", 1], "'/sys/x'"),
        (["bench", "{}/used"], "DIR: no image"),
        (["bench", "--plot", "{}/plot.doc"], "--plot {}/plot.doc must end in .png"),
        (["plan", 10, "--plot", "{}/plot"], "--plot {}/plot must end in .png"),
        (["plan", "{}/empty"], "DIR_OR_N: no image in '{}/empty'"),
        (["bench", "--dataset-size", "x"], "ROWS,COLUMNS"),
        (["bench", "--dataset-size", f"{10**11},{10**11}"], "--dataset-size"),
        (["synth", "{}/new", "--tensors", f"{10**11},{10**11}"], "--tensors"),
        (["synth", "{}/new", "--hdf5", f"{10**11},1000"], "--hdf5"),
        (["bench", "{}/used", "--dataset-size", "5,5"], "DIR and --dataset-size exclude each other; give one"),
        (["bench", "{}/used", "--images", 5], "DIR and --images exclude each other; give one of them"),
        (["bench", "--images", 5, "--dataset-size", "5,5"], "--images and --dataset-size exclude each other"),
        (["doctor", "{}/none"], "none"),
        (["dance"], "dance"),
    ],
    ids=str,
)
def test_wrong_input_is_said_plainly(tmp_path: Path, arguments: list[Any], words: str) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "other.tar").write_bytes(b"")
    result = run(*[str(argument).replace("{}", str(tmp_path)) for argument in arguments])
    assert result.returncode == 2
    # The words of a long path are broken over lines.
    assert words.replace("{}", str(tmp_path)).replace(" ", "") in "".join(result.stderr.replace("│", "").split())
    assert "Traceback" not in result.stderr
    assert "data_path" not in result.stderr
    assert (tmp_path / "used" / "file").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "shards", "used"]


@pytest.mark.slow
def test_bench_names_an_image_that_is_gone_or_not_for_this_user(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    Image.new("RGB", (64, 48)).save(tmp_path / "class" / "image.jpg")
    (lost := tmp_path / "class" / "lost.jpg").symlink_to(tmp_path / "none.jpg")
    result = bench(tmp_path, "--seeds", 1)
    assert result.returncode == 1
    assert str(lost) in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_bench_names_a_damaged_image(tmp_path: Path) -> None:
    damaged = tmp_path / "class" / "damaged.jpg"
    damaged.parent.mkdir()
    Image.new("RGB", (64, 48)).save(damaged)
    damaged.write_bytes(damaged.read_bytes()[:400])
    result = bench(tmp_path, "--seeds", 1)
    assert result.returncode == 1
    assert result.stderr.startswith(f"{damaged}: ")
    assert "Traceback" not in result.stderr


_COMPARE = """
from foreload.bench.contestants import TENSOR_CONTESTANTS, Work
from foreload.bench.measure import compare

compare(TENSOR_CONTESTANTS[:1], Work(rows=2000, columns=4), 999, lambda: print("an epoch", flush=True))
"""


@pytest.mark.slow
def test_ctrl_c_ends_contestants_without_their_tracebacks() -> None:
    running = Program("-c", _COMPARE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stdout.readline() == "an epoch\n"
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does
    _, errors = running.communicate(timeout=300)
    assert errors.count("Traceback") == 1
    assert errors.endswith("KeyboardInterrupt\n")


@pytest.mark.slow
def test_bench_compares_and_keeps_everything(tmp_path: Path) -> None:
    from foreload.bench.synth import synth_images

    synth_images(tmp_path / "images", 24)
    result = run(
        "bench",
        tmp_path / "images",
        "--seeds",
        2,
        "--batch-size",
        8,
        "--json",
        tmp_path / "b.json",
        "--plot",
        tmp_path / "b.png",
    )
    assert result.returncode == 0, result.stderr
    assert "times what stock torch reached" in result.stdout.splitlines()[-1]
    record = json.loads((tmp_path / "b.json").read_text())
    assert {"command", "machine", "work", "results"} <= set(record)
    names = [entry["name"] for entry in record["results"]]
    assert {"stock, in the loop", "foreload, LRU", "foreload, async prefetch", "foreload, full"} < set(names)
    for entry in record["results"]:
        assert len(entry["samples_per_second"]) == len(entry["first_batch_ms"]) == 2
        assert min(entry["samples_per_second"]) > 0
        assert f"{entry['name']} " in result.stdout
        assert entry["about"] in result.stdout
    assert Image.open(tmp_path / "b.png").size[0] > 500


@pytest.mark.slow
def test_bench_of_tensors(tmp_path: Path) -> None:
    result = bench("--dataset-size", "500,10", "--batch-size", "50", "--seeds", 1)
    assert result.returncode == 0, result.stderr
    assert (
        "Left out, since there is no GPU: foreload, pinned" in result.stdout
    ) != torch.accelerator.is_available()
    for words in ("index_select", "foreload, CachedDataset", "stock, AsyncPrefetchDataset"):
        assert words in result.stdout
    assert "rows/s" in result.stdout


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_a_full_disk_is_named_with_the_file_that_did_not_fit(tmp_path: Path, option: str) -> None:
    (path := tmp_path / "full.png").symlink_to("/dev/full")
    result = run("plan", 10, "--budget", "50%", option, path)
    assert result.returncode == 1
    assert result.stderr == f"foreload: {option} {path} cannot be written: No space left on device\n"


@pytest.mark.slow
def test_without_its_extra_the_command_says_what_to_install() -> None:
    code = "import sys; sys.modules['typer'] = None; from foreload.cli.main import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1
    assert "pip install typer rich" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_importing_foreload_brings_nothing_heavy() -> None:
    code = (
        "import torch, sys; before = set(sys.modules); import foreload; new = set(sys.modules) - before; "
        "print([m for m in ('typer', 'rich', 'matplotlib', 'PIL.Image', 'foreload.bench') if m in new])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_limits_of_containers_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine._cpu_quota(tmp_path) is None
    assert machine._memory_limit(tmp_path) is None
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert machine._cpu_quota(tmp_path) == 1.5
    assert machine._memory_limit(tmp_path) is None
    for controller, file, value in (
        ("cpu", "cpu.cfs_quota_us", "50000"),
        ("cpu", "cpu.cfs_period_us", "100000"),
        ("memory", "memory.limit_in_bytes", "1073741824"),
    ):
        (tmp_path / controller).mkdir(exist_ok=True)
        (tmp_path / controller / file).write_text(value + "\n")
    assert machine._cpu_quota(tmp_path) == 0.5
    assert machine._memory_limit(tmp_path) == 1 << 30
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    assert machine.granted_cores() == 1
    assert machine.granted_memory() == 1 << 30


@pytest.mark.parametrize("root", ["/", "/docker/4f2a", "/elsewhere"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_containers_own_group_is_found(
    version: int, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / ("memory" if version == 1 else "") / "jobs/7"
    own.mkdir(parents=True)
    (own / ("memory.limit_in_bytes" if version == 1 else "memory.max")).write_text("1073741824\n")
    seen = "/jobs/7" if root != "/docker/4f2a" else "/docker/4f2a/jobs/7"
    kind, controller = (("cgroup", "rw,memory"), "4:memory:") if version == 1 else (("cgroup2", "rw"), "0::")
    process = tmp_path / "self"
    process.mkdir()
    (process / "mountinfo").write_text(
        "23 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
        f"35 31 0:32 {root} /sys/fs/cgroup rw,relatime shared:7 master:1 - {kind[0]} {kind[0]} {kind[1]}\n"
    )
    (process / "cgroup").write_text(f"9:name=systemd:/\n{controller}{seen}\n")
    monkeypatch.setattr(machine, "_PROCESS", process)
    assert machine._memory_limit(tmp_path) == 1 << 30


def test_every_help_has_examples_that_its_options_allow() -> None:
    from typer.main import get_command

    from foreload.cli.commands import app

    command: Any = get_command(app)
    assert command.epilog.startswith("Examples:\n\nforeload ")
    for name, sub in command.commands.items():
        heading, *examples = sub.epilog.split("\n\n")
        assert heading == "Examples:"
        assert examples
        for example in examples:
            program, typed, *arguments = example.split()
            assert (program, typed) == ("foreload", name)
            existing = ["." if argument.startswith("/data") else argument for argument in arguments]
            sub.make_context(f"foreload {name}", existing)  # raises for what it does not know


def test_the_version_and_the_shells_completion() -> None:
    assert run("--version").stdout == f"foreload {fl.__version__}\n"
    typed = {"_FORELOAD_COMPLETE": "complete_bash", "COMP_WORDS": "foreload pl", "COMP_CWORD": "1"}
    result = python("-m", "foreload", environment={**os.environ, **typed})
    assert result.stdout.split() == ["plan"], result.stderr


def test_ctrl_c_while_torch_is_imported_ends_the_command_quietly(tmp_path: Path) -> None:
    # (Torch's own code catches the exception, or ends in abort(), where it comes from one of its callbacks.)
    torch = "try: signal.raise_signal(signal.SIGINT)\nexcept KeyboardInterrupt: raise ImportError('half of it')"
    (tmp_path / "torch.py").write_text(f"import signal\n{torch}\n")
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="foreload")
    code = f"from {script.module} import {script.attr}; {script.attr}()"
    search = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": search}, capture_output=True, text=True
    )
    assert (result.returncode, result.stderr) == (-signal.SIGINT, "")  # of which shells make 130


def test_an_error_while_a_command_runs_is_not_one_of_its_arguments(tmp_path: Path) -> None:
    gone = tmp_path / "images" / "class" / "gone.jpg"
    gone.parent.mkdir(parents=True)
    gone.symlink_to("nowhere")
    result = run("pack", "--tiled", tmp_path / "images", tmp_path / "shards")
    assert result.returncode == 1
    assert result.stderr.startswith("foreload: ")
    assert str(gone) in result.stderr
    assert "Traceback" not in result.stderr
