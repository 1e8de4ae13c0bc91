"""NVIDIA's Nsight Systems around a script."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

__all__ = ["nsys_command"]


def nsys_command(command: list[str], output: Path) -> list[str]:
    """Give the command that runs ``command`` under Nsight Systems.

    It records CUDA, NVTX ranges, what the system's library is called for, and, where this version of ``nsys`` can,
    which files are read and written.

    Args:
        command: a program and its arguments.
        output: the file to write, without ``.nsys-rep``.

    Raises:
        FileNotFoundError: there is no ``nsys``.
    """
    nsys = shutil.which("nsys")
    if nsys is None:
        raise FileNotFoundError(
            "--nsys needs NVIDIA Nsight Systems, and there is no nsys on the PATH; install the package "
            "nsight-systems-cli from NVIDIA's repository, or what https://developer.nvidia.com/nsight-systems "
            "offers, or leave out --nsys: the report does not need it"
        )
    known = subprocess.run([nsys, "profile", "--help"], capture_output=True, text=True, check=False).stdout
    files = ["--osrt-file-access=true"] if "--osrt-file-access" in known else []
    return [
        nsys,
        "profile",
        "--trace=cuda,nvtx,osrt",
        *files,
        "--force-overwrite=true",
        f"--output={output}",
        *command,
    ]
