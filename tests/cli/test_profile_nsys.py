"""``foreload profile --nsys``: the command that runs Nsight Systems, which is not installed here.

What stands for it knows ``--help`` in the layout of nsys' own, writes down its arguments, and runs the program.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from foreload.cli.profile import profile
from foreload.cli.profile.nsys import nsys_command

OLD = """
usage: nsys profile [<args>] [application] [<application args>]

    -b, --backtrace=

       Possible values are 'lbr', 'fp', 'dwarf' or 'none'. Select the backtrace method to use while sampling. See
       --sample=process-tree in later versions.

    --cudabacktrace=

       Possible values are 'all','none','kernel','memory','sync','other'.

    -s, --sample=

       Possible values are 'cpu' or 'none'.

    --sampling-trigger=

       Specify a comma-separated list of backtrace collection triggers.

    -t, --trace=

       Possible values are 'cuda', 'nvtx', 'cublas', 'osrt' or 'none'.
"""
NEW = """
usage: nsys profile [<args>] [application] [<application args>]

    --cpuctxsw=

       Possible values are 'process-tree', 'system-wide', or 'none'. If '--sample' is not 'none', this is ...

    --cudabacktrace=

       Possible values are 'all','none','kernel','memory','sync','other'.

    --osrt-file-access=

       Possible values are 'true' or 'false'.

    --python-backtrace=

       Possible values are 'cuda' or 'none' or 'false'.

    --python-sampling=

       Possible values are 'true' or 'false'.

    --python-sampling-frequency=

       Possible values are integers between 1 and 2000.

    -s, --sample=

       Possible values are 'process-tree', 'system-wide', or 'none'.

    -t, --trace=

       Possible values are 'cuda', 'nvtx', 'osrt', 'python-gil' or 'none'.
"""
IN_OLD = ["--trace=cuda,nvtx,osrt", "--sample=cpu", "--cudabacktrace=memory,sync"]
IN_NEW = [
    "--trace=cuda,nvtx,osrt,python-gil",
    "--osrt-file-access=true",
    "--sample=process-tree",
    "--cpuctxsw=process-tree",
    "--cudabacktrace=memory,sync",
    "--python-sampling=true",
    "--python-backtrace=cuda",
]


def fake_nsys(folder: Path, about: str) -> Path:
    (folder / "bin").mkdir()
    (folder / "help").write_text(about)
    fake = folder / "bin" / "nsys"
    fake.write_text(
        "#!/bin/sh\n"
        f'if [ "$2" = --help ]; then cat {folder}/help; exit; fi\n'
        'while [ "${1#-}" != "$1" ] || [ "$1" = profile ]; do echo "$1" >> '
        f"{folder}/asked; shift; done\n"
        '"$@"\n'  # as a child, as nsys does
    )
    fake.chmod(0o755)
    return fake


@pytest.mark.parametrize(("about", "options"), [(OLD, IN_OLD), (NEW, IN_NEW), ("", ["--trace=cuda,nvtx,osrt"])])
def test_a_version_of_nsys_is_asked_for_what_it_can(
    about: str, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fake_nsys(tmp_path, about)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    assert nsys_command(["python", "x.py", "--lr", "1"], tmp_path / "out") == [
        str(fake),
        "profile",
        *options,
        "--force-overwrite=true",
        f"--output={tmp_path / 'out'}",
        *["python", "x.py", "--lr", "1"],
    ]


SCRIPT = """
import torch
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    def __len__(self): return 40
    def __getitem__(self, index): return torch.tensor(index)
for batch in DataLoader(Rows(), batch_size=4): pass
raise SystemExit(6)
"""


@pytest.mark.slow
def test_the_command_is_shown_and_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = fake_nsys(tmp_path, NEW)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    script = tmp_path / "a script.py"
    script.write_text(SCRIPT)
    found = profile(script, nsys=tmp_path / "out.nsys-rep")
    assert found.code == 6
    assert [loader.stats["batches"] for loader in found.loaders] == [10]
    asked = (tmp_path / "asked").read_text().split()
    assert asked == ["profile", *IN_NEW, "--force-overwrite=true", f"--output={tmp_path / 'out'}"]
    shown = capsys.readouterr().err.strip().removeprefix("foreload: ")
    assert shlex.split(shown) == [str(fake), *asked, sys.executable, str(script)]


ENDLESS = """
import time
def batches():
    while True:
        time.sleep(0.012)
        yield [1]
for batch in batches(): time.sleep(0.004)
"""


@pytest.mark.slow
def test_the_script_is_stopped_and_nsys_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_nsys(tmp_path, NEW)
    fake.write_text(fake.read_text() + f"code=$?\nsleep 1\necho written > {tmp_path}/report\nexit $code\n")
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    script = tmp_path / "script.py"
    script.write_text(ENDLESS)
    found = profile(script, nsys=tmp_path / "out.nsys-rep", duration=10)
    assert found.stopped
    assert (tmp_path / "report").read_text() == "written\n"
    assert [loader.where for loader in found.loaders] == ["script.py:7"]


def test_without_nsys_it_says_where_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(FileNotFoundError, match=r"nsight-systems-cli from NVIDIA.*or leave out --nsys"):
        nsys_command(["x"], tmp_path)


def test_the_stand_in_runs_what_it_is_given(tmp_path: Path) -> None:
    done = subprocess.run([fake_nsys(tmp_path, NEW), "profile", "--a=b", "sh", "-c", "exit 4"], check=False)
    assert done.returncode == 4
