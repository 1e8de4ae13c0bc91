"""The command that runs a script under NVIDIA Nsight Systems, with what this version of it can record."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

__all__ = ["nsys_command"]

# Option, the values that it may be given, best first, and what its help must say for the value to be known.
_OPTIONS = (
    ("--osrt-file-access", "true", ""),
    ("--sample", "process-tree", "process-tree"),
    ("--sample", "cpu", ""),
    ("--cpuctxsw", "process-tree", "process-tree"),
    ("--cudabacktrace", "memory,sync", "sync"),
    ("--python-sampling", "true", ""),
    ("--python-backtrace", "cuda", ""),
)

_MISSING = (
    "--nsys needs NVIDIA Nsight Systems, and there is no nsys on the PATH; install the package "
    "nsight-systems-cli from NVIDIA's repository or from https://developer.nvidia.com/nsight-systems, "
    "or leave out --nsys: the report does not need it"
)


def nsys_command(command: Sequence[str], output: Path) -> list[str]:
    """Return the command that runs ``command`` under Nsight Systems.

    It records CUDA, NVTX ranges and calls of the C library; and, as far as this version of ``nsys`` can, file
    accesses, samples of the processors, switches between threads, the interpreter's lock, and Python's stacks.

    Args:
        command: a program and its arguments.
        output: the file to write, without ``.nsys-rep``.

    Raises:
        FileNotFoundError: there is no ``nsys``.
    """
    nsys = shutil.which("nsys")
    if nsys is None:
        raise FileNotFoundError(_MISSING)
    known = subprocess.run([nsys, "profile", "--help"], capture_output=True, text=True, check=False).stdout
    gil = ",python-gil" if "python-gil" in known else ""
    options: dict[str, str] = {}
    for option, value, needed in _OPTIONS:
        about = _help_of(option, known)
        if about is not None and needed in about:
            options.setdefault(option, value)
    return [
        nsys,
        "profile",
        f"--trace=cuda,nvtx,osrt{gil}",
        *(f"{option}={value}" for option, value in options.items()),
        "--force-overwrite=true",
        f"--output={output}",
        *command,
    ]


def _help_of(option: str, known: str) -> str | None:
    r"""Return what the help says of an option, up to the next one; None if it has no such option.

    >>> _help_of("--sample", "see\n --sample=cpu\n -s, --sample=\n cpu or none\n --sampling-period=\n ...")
    '\n cpu or none\n'
    """
    # The option stands alone on its line; at the beginning of others it is only mentioned.
    begin = r"^\s*(?:-\w, *)?"
    found = re.search(
        rf"{begin}{option}=?\s*?$(.*?)(?={begin}--[\w-]+=?\s*?$|\Z)", known, re.DOTALL | re.MULTILINE
    )
    return None if found is None else found[1]
