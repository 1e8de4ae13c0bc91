"""The ``profile`` subcommand: parse arguments, run the script, print."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foreload.cli.arguments import check_writable, write_result

if TYPE_CHECKING:
    from foreload.cli.profile.show import Profile

__all__ = ["EXAMPLES", "profile"]

EXAMPLES = (
    "foreload profile train.py --epochs 1",
    "foreload profile --duration 2m --json profile.json -m package.train --lr 0.1",
)


def profile(
    command: Annotated[
        list[str],
        typer.Argument(
            help="A Python script or a module, run unchanged as `python` would, and its arguments.",
            metavar="[SCRIPT | -m MODULE] [ARGS]...",
        ),
    ],
    duration: Annotated[
        str | None,
        typer.Option(
            help="Stop it after this time, such as 30s or 2m, as Ctrl-C would; the exit code is then 0.",
            metavar="TIME",
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write every figure to this file.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace of all workers to this file, for ui.perfetto.dev.")
    ] = None,
    nsys: Annotated[
        bool,
        typer.Option(
            "--nsys",
            help="Run it under NVIDIA Nsight Systems: CUDA, NVTX ranges for loading, calls of the system, file "
            "accesses, CPU samples and Python's stacks, as far as the installed version can.",
        ),
    ] = False,
) -> None:
    """Run a training script, and report what it waits for in its data loaders.

    Any loop over batches counts: torch's and foreload's DataLoader in detail, DALI and all others by how long the
    loop waits. Options come before SCRIPT; everything after it goes to the script. The exit code is the script's.
    """
    from foreload.cli.profile import profile as run
    from foreload.cli.profile.stop import parse_duration

    script, arguments, is_module = _split(command)
    # A script may run for hours, so a file that cannot be written must fail before.
    check_writable(json=json, trace=trace)
    name = script.rpartition(".")[2] if is_module else Path(script).stem
    try:
        seconds = None if duration is None else parse_duration(duration)
    except ValueError as error:
        raise typer.BadParameter(f"--duration {error}") from None
    try:
        found = run(
            script,
            arguments,
            module=is_module,
            duration=seconds,
            trace=trace is not None,
            nsys=Path.cwd() / f"{name}.nsys-rep" if nsys else None,
        )
    except FileNotFoundError as error:
        raise typer.BadParameter(str(error)) from None
    # After hours the disk may be full, or the pipe closed: each result is independent, the exit code the script's.
    with _reported():
        write_result("json", json, found.write_json)
    is_traced = False
    with _reported():
        write_result("trace", trace, found.write_trace)
        is_traced = trace is not None
    try:
        _show(found, trace if is_traced else None, f"{name}.nsys-rep" if nsys else "")
    except OSError as error:
        print(f"foreload: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    found.exit()


@contextmanager
def _reported() -> Iterator[None]:
    """Print an error of the block to standard error, and go on."""
    try:
        yield
    except OSError as error:
        print(f"foreload: {error}", file=sys.stderr)


def _split(command: list[str]) -> tuple[str, list[str], bool]:
    """Return script or module, its arguments, and whether it is a module (``-m name``, or ``-mname``)."""
    first, *rest = command
    if not first.startswith("-m"):
        return first, rest, False
    module = [first[2:]] if first != "-m" else rest[:1]
    if not module:
        raise typer.BadParameter("-m needs the name of a module")
    return module[0], rest if first != "-m" else rest[1:], True


def _show(found: Profile, trace: Path | None, nsys: str) -> None:
    found.show()
    if trace is not None:
        print(f"trace: {trace} (open it in https://ui.perfetto.dev)")
    if nsys:
        import torch

        print(f"Nsight Systems: {nsys} (open it in nsys-ui, or read it with nsys stats)")
        if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
            print("It has no NVTX ranges: this torch has no CUDA")
    print(end="", flush=True)
