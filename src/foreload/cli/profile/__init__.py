"""``foreload profile``: find the data-loading bottleneck of an unchanged training script.

The script runs in a Python process of its own, as its user would start it (``script.py``). A module that Python
imports first (``inside/``) makes the loaders and image decoders that the script imports record what they do, in
that process and in every Python process that it starts. Each thread writes to a file of its own, mapped into
memory, so that a killed process loses nothing; meanwhile the command samples the processes from outside
(``outside.py``). At the end the records are combined (``records.py``) and shown (``show.py``).
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

# Seconds between two samples from outside, which take about two milliseconds each.
_SAMPLING_SECONDS = 0.25

# Spans kept per thread for a trace; only a trace needs them.
_TRACE_SPANS = 1 << 16


def profile(
    script: Path, arguments: Sequence[str] = (), *, trace: bool = False, nsys: Path | None = None
) -> Profile:
    """Run a script, and record what its loaders do.

    Args:
        script: a Python file; it runs as ``python script arguments``.
        arguments: the arguments of the script.
        trace: keep spans, for :meth:`Profile.write_trace`.
        nsys: run the script under Nsight Systems, which writes this file.

    Raises:
        FileNotFoundError: there is no such script, or no ``nsys``.
    """
    if not script.exists():
        raise FileNotFoundError(f"there is no script {str(script)!r}; give the path of a Python file")
    command = [sys.executable, str(script), *arguments]
    if nsys is not None:
        command = nsys_command(command, nsys.with_suffix(""))
    folder = Path(tempfile.mkdtemp(prefix="foreload-profile-"))
    try:
        variables = environment(folder, spans=_TRACE_SPANS if trace else 0, nvtx=nsys is not None)
        tree = Tree()
        began = time.monotonic()
        code = run_script(command, variables, tree.sample, _SAMPLING_SECONDS)
        seconds = time.monotonic() - began
        return Profile([str(script), *arguments], code, seconds, read_records(folder, tree))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
