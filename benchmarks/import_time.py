"""Time that ``import foreload`` adds to ``import torch``, each time in a fresh process."""

from __future__ import annotations

import compileall
import subprocess
import sys
import time
from pathlib import Path

from common import Record, median, parser, take_turns

import foreload

TIMED = "import torch, time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"


def process_ms(statement: str) -> float:
    """Time a whole process."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return 1000 * (time.perf_counter() - began)


def statement_ms(statement: str) -> float:
    """Time a statement in a process that has imported torch."""
    command = [sys.executable, "-c", TIMED.format(statement)]
    return 1000 * float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main() -> None:
    arguments = parser(__doc__, 15).parse_args()
    # pip compiles what it installs, but not an editable checkout.
    compileall.compile_dir(Path(foreload.__file__).parent, quiet=1)
    record = Record("import_time")
    samples = take_turns(
        {
            "process: import torch": lambda: process_ms("import torch"),
            "process: import torch, foreload": lambda: process_ms("import torch, foreload"),
            "import foreload, after torch": lambda: statement_ms("import foreload"),
            "and all public names": lambda: statement_ms("from foreload import *; from foreload.export import *"),
        },
        arguments.rounds,
    )
    record.samples(samples, "ms")
    added = median(samples, "process: import torch, foreload") - median(samples, "process: import torch")
    record.verdict("ms that import foreload adds to a process", added, 50, most=True)
    record.verdict("ms of import foreload", median(samples, "import foreload, after torch"), 50, most=True)
    record.write()


if __name__ == "__main__":
    main()
