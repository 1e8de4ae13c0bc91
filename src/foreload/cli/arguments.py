"""Arguments of the commands: what is wrong with one ends in exit code 2, and names it as it was typed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from foreload.options import parse_bytes
from foreload.record.units import size

__all__ = [
    "budgets",
    "check_plot",
    "check_writable",
    "examples",
    "exclude_each_other",
    "given",
    "pair",
    "paragraphs",
    "room_on_disk",
    "typed",
    "whole",
    "within_memory",
    "write_result",
]


_WRONG_PATH = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)


@contextmanager
def given(name: str = "") -> Iterator[None]:
    """Report errors of the block as those of the argument ``name``; without one, the errors name it themselves."""
    try:
        yield
    except (ValueError, *_WRONG_PATH) as error:
        # (The folder of a dataset is its argument `data_path`, which nobody typed here.)
        text = str(error).removeprefix("data_path: ")
        raise typer.BadParameter(f"{name}: {text}" if name else text) from None


@contextmanager
def within_memory(remedy: str) -> Iterator[None]:
    """Say what to do if the block runs out of memory."""
    try:
        yield
    except MemoryError as error:
        raise MemoryError(f"{str(error) or 'out of memory'}; {remedy}") from None


@contextmanager
def typed(**names: str) -> Iterator[None]:
    """Report errors of the block that begin with a parameter's name as those of the argument typed for it.

    All others are errors of the work itself, and pass.

    Args:
        names: the arguments as they are typed, by the names of the parameters.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        parameter, _, text = str(error).partition(": ")
        if parameter not in names:
            raise
        raise typer.BadParameter(f"{names[parameter]}: {text}") from None


def pair(name: str, text: str, each: int, room: int) -> tuple[int, int]:
    """Parse ROWS,COLUMNS, of values that take ``each`` bytes where there are ``room`` bytes.

    >>> pair("--tensors", "5000,100", 4, 1 << 30)
    (5000, 100)
    """
    try:
        rows, columns = (int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{name} must be ROWS,COLUMNS, such as 5000,100, got {text!r}") from None
    if min(rows, columns) < 1:
        raise typer.BadParameter(f"{name} must be positive, got {text!r}")
    if (needed := rows * columns * each) > room:
        raise typer.BadParameter(
            f"{name} {text} needs {size(needed)}, and there are {size(room)}; make it smaller"
        )
    return rows, columns


def budgets(texts: list[str] | None, total: int, *, least: int = 1, bytes_known: bool) -> list[int]:
    """Parse the budgets of ``foreload plan``, in bytes or samples, and add 0.

    Args:
        texts: what was typed; None for shares from 5% to 100%.
        total: what all samples take: bytes, or 1 each.
        least: what the smallest of them takes.
        bytes_known: whether ``total`` is in bytes.

    Raises:
        BadParameter: a budget is none, or a share or a number of samples above all of them; a larger number of
            bytes counts as all, which is said.

    >>> budgets(["25%,400"], 1000, bytes_known=False)
    [0, 250, 400]
    """
    wanted = [part for text in texts or [] for part in text.split(",")] or [
        f"{5 * step}%" for step in range(1, 21)
    ]
    amounts = [_budget(part.strip(), total, least, bytes_known) for part in wanted]
    return sorted({0, *amounts})


def _budget(text: str, total: int, least: int, bytes_known: bool) -> int:
    is_share = text.endswith("%")
    # A number of bytes would be taken for as many samples, and most likely for enough to keep all.
    if not bytes_known and not re.fullmatch(r"\d+|(\d+\.?|\d*\.\d+)\s*%", text):
        raise typer.BadParameter(
            f"--budget must be a share such as 25%, or a number of samples, where DIR_OR_N is a number, got "
            f"{text!r}; for a budget in bytes, give a folder of images"
        )
    if text.isdecimal() and 0 < int(text) < least:
        raise typer.BadParameter(
            f"--budget {text} is that many bytes, and the smallest sample takes {size(least)}; give a "
            "unit, such as 500MiB, or a share, such as 25%"
        )
    with given():
        amount = parse_bytes(text, of=total, name="--budget")
    if amount > total and is_share:
        raise typer.BadParameter(f"--budget must be at most 100%, which is all samples, got {text!r}")
    if amount > total and not bytes_known:
        raise typer.BadParameter(f"--budget must be at most {total}, which is all samples, got {text!r}")
    if amount > total:  # what images take is not known before
        typer.echo(f"--budget {text} is more than all samples take, {size(total)}: it counts as 100%", err=True)
    return min(amount, total)


def exclude_each_other(**given: object) -> None:
    """Raise BadParameter if more than one of some arguments was given: one of them would be ignored.

    Args:
        given: what was typed, or None, by the names of the arguments.

    >>> exclude_each_other(**{"DIR": None, "--images": 5})
    """
    typed = [name for name, value in given.items() if value is not None]
    if len(typed) > 1:
        raise typer.BadParameter(f"{' and '.join(typed)} exclude each other; give one of them")


def room_on_disk(folder: Path) -> int:
    """Return how many bytes can be written to a folder, which need not exist."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.exists(path))
    return shutil.disk_usage(there).free


def whole(least: int, most: int | None = None) -> dict[str, Any]:
    """Return what makes a ``typer.Option`` take a whole number, and name what was typed if it is none.

    >>> whole(1)["parser"]("3")
    3
    """
    limits = f"of at least {least}" if most is None else f"from {least} to {most}"

    def parse(text: str | int) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            raise typer.BadParameter(f"must be a whole number {limits}, got {str(text)!r}")
        return number

    return {"parser": parse, "metavar": "N"}


def check_writable(**paths: Path | None) -> None:
    """Raise BadParameter for a file that cannot be written, before the work whose results it is for.

    No file is made that was not there.

    Args:
        paths: the files, by the names of their options.
    """
    for name, path in paths.items():
        if path == Path("-"):
            raise typer.BadParameter(f"--{name} must name a file, got -, and the standard output has the report")
        try:
            if path is not None:
                was_there = os.path.lexists(path)
                path.open("a").close()
                if not was_there:
                    path.unlink()
        except OSError as error:
            raise typer.BadParameter(f"--{name} {path} cannot be written: {error.strerror}") from None


def write_result(name: str, path: Path | None, write: Callable[..., None], *arguments: Any) -> None:
    """Call ``write(path, *arguments)`` if the option was given; its name is in errors, even that of a full disk.

    Raises:
        BrokenPipeError: nobody reads the pipe ``path`` any more.
        OSError: ``path`` cannot be written.
    """
    if path is None:
        return
    try:
        write(path, *arguments)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(f"--{name} {path} cannot be written: {error.strerror or error}") from error


def check_plot(path: Path | None) -> None:
    """Check that matplotlib is there and has the format of a plot's file, before the work that it shows.

    Raises:
        BadParameter: there is no such format.
        ModuleNotFoundError: matplotlib is not installed.
    """
    if path is None:
        return
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ModuleNotFoundError:
        raise ModuleNotFoundError("--plot needs matplotlib: pip install matplotlib") from None
    formats = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix[1:].lower() not in formats:
        known = ", ".join(f".{name}" for name in sorted(formats))
        raise typer.BadParameter(f"--plot {path} must end in .png or another of matplotlib's formats: {known}")


def examples(*lines: str) -> str:
    """Return the end of a command's help, with one line for each example.

    >>> examples("foreload doctor", "foreload doctor /data").splitlines()
    ['Examples:', '', 'foreload doctor', '', 'foreload doctor /data']
    """
    return "\n\n".join(("Examples:", *lines))


def paragraphs(text: str | None) -> str:
    r"""Return a docstring as a command's help, each paragraph in one line, which is broken to fit the terminal.

    >>> paragraphs("Do it.\n\n    In\n    time.")
    'Do it.\n\nIn time.'
    """
    return "\n\n".join(" ".join(lines.split()) for lines in (text or "").split("\n\n"))
