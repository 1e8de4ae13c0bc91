"""``foreload profile``: what holds an unchanged training script back.

The script runs in a Python of its own, as its user would start it (``script.py``). A module that Python imports
when it starts (``inside/``) makes the loaders and image decoders that the script imports count what they do,
there and in every Python process that it starts in turn. Each thread writes to a file of its own, mapped into
memory, so that nothing is lost with a process that is killed; meanwhile the command looks at the processes from
outside (``outside.py``). In the end everything is put together (``records.py``), and said (``show.py``).
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from foreload.cli.profile.outside import Tree
from foreload.cli.profile.records import read_records
from foreload.cli.profile.script import environment, nsys_command, run_script
from foreload.cli.profile.show import Profile

__all__ = ["Profile", "profile"]

# Seconds between two looks from outside, which take about two milliseconds.
_EVERY = 0.25

# Spans kept per thread for a trace; without one they are not needed.
_SPANS = 1 << 16


def profile(
    script: Path, arguments: Sequence[str] = (), *, trace: bool = False, nsys: Path | None = None
) -> Profile:
    """Run a script, and see what its loaders do.

    Args:
        script: a Python file; it runs as ``python script arguments``.
        arguments: its own.
        trace: keep spans, for :meth:`Profile.write_trace`.
        nsys: run it under Nsight Systems, which writes this file.

    Raises:
        FileNotFoundError: there is no such script; or no ``nsys``.
    """
    if not script.exists():
        raise FileNotFoundError(f"there is no script {str(script)!r}; give the path of a Python file")
    command = [sys.executable, str(script), *arguments]
    if nsys is not None:
        command = nsys_command(command, nsys.with_suffix(""))
    folder = Path(tempfile.mkdtemp(prefix="foreload-profile-"))
    try:
        variables = environment(folder, spans=_SPANS if trace else 0, nvtx=nsys is not None)
        tree = Tree()
        began = time.monotonic()
        code = run_script(command, variables, tree.look, _EVERY)
        seconds = time.monotonic() - began
        return Profile([str(script), *arguments], code, seconds, read_records(folder, tree))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
