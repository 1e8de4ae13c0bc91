"""``foreload profile``: find the data-loading bottleneck of an unchanged training script.

The script runs in a Python process of its own, as its user would start it (``script.py``). A module that Python
imports first (``inside/``) makes the loaders and image decoders that the script imports record what they do, in
that process and in every Python process that it starts. Each thread writes to a file of its own, mapped into
memory, so that a killed process loses nothing; meanwhile the command samples the processes from outside: their use
of the machine (``outside.py``), and the loops that their main threads are in (``stacks.py``, ``loops.py``), for
loops over anything that does not record itself. At the end the records are combined (``records.py``) and shown
(``show.py``, ``loop_report.py``).
"""

from __future__ import annotations

import random
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from foreload.cli.profile.loops import LoopSamples, loop_records
from foreload.cli.profile.nsys import nsys_command
from foreload.cli.profile.outside import Tree
from foreload.cli.profile.records import read_records
from foreload.cli.profile.script import environment, run_script
from foreload.cli.profile.show import Profile
from foreload.cli.profile.stop import Stop
from foreload.cli.profile.target import check_module, check_script

__all__ = ["Profile", "profile"]

# Seconds between two samples of the machine's use, which take about two milliseconds each.
_SAMPLING_SECONDS = 0.25

# Mean seconds between two samples of stacks, which take about a tenth of a millisecond each.
_STACK_SECONDS = 0.02

# Spans kept per thread for a trace; only a trace needs them.
_TRACE_SPANS = 1 << 16


def profile(
    script: Path | str,
    arguments: Sequence[str] = (),
    *,
    module: bool = False,
    duration: float | None = None,
    trace: bool = False,
    nsys: Path | None = None,
) -> Profile:
    """Run a script, and record what its loaders do.

    Args:
        script: a Python file, which runs as ``python script arguments``.
        arguments: the arguments of the script.
        module: ``script`` is the name of a module, which runs as ``python -m script arguments``.
        duration: seconds after which the script is stopped, as Ctrl-C would; None: it runs to its end.
        trace: keep spans, for :meth:`Profile.write_trace`.
        nsys: run the script under Nsight Systems, which writes this file.

    Raises:
        FileNotFoundError: there is no such script or module, or no ``nsys``.
    """
    (check_module if module else check_script)(str(script))
    own = [sys.executable, *(("-m",) if module else ()), str(script), *arguments]
    command = own if nsys is None else nsys_command(own, nsys.with_suffix(""))
    folder = Path(tempfile.mkdtemp(prefix="foreload-profile-"))
    sampler = _Sampler(folder)
    try:
        variables = environment(folder, spans=_TRACE_SPANS if trace else 0, nvtx=nsys is not None)
        if nsys is not None:
            print(f"foreload: {shlex.join(command)}", file=sys.stderr, flush=True)
        stop = None if duration is None else Stop(duration, own)
        began = time.monotonic()
        code = run_script(command, variables, sampler.sample, sampler.pause, stop)
        ran = time.monotonic() - began
        if stop is not None and stop.begun:
            stop.clean_up()
        loaders = read_records(folder, sampler.tree)
        loaders += loop_records(sampler.loops, loaders, sampler.tree)
        found = Profile([str(script), *arguments], code, ran, loaders)
        found.stopped = stop is not None and stop.begun
        found.problem = sampler.loops.problem
        return found
    finally:
        sampler.loops.close()
        shutil.rmtree(folder, ignore_errors=True)


class _Sampler:
    """Samples a script's processes from outside."""

    def __init__(self, folder: Path) -> None:
        self.tree = Tree()
        self.loops = LoopSamples(folder)
        self._next = 0.0
        self._random = random.Random(0)

    def pause(self) -> float:
        """Return the seconds until the next sample: random, so that samples do not keep step with a loop."""
        return _STACK_SECONDS * (0.5 + self._random.random())

    def sample(self, process: int) -> None:
        """Sample the stacks, and at times the machine's use."""
        self.loops.sample()
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _SAMPLING_SECONDS
            self.loops.look_for_processes()
            self.tree.sample(process)
