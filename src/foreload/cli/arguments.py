"""Arguments of the commands: what is wrong with one ends in exit code 2, and names it as it was typed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

__all__ = ["check_writable", "examples", "given", "pair"]


@contextmanager
def given(name: str = "") -> Iterator[None]:
    """Report errors of the block as those of the argument ``name``; without one, the errors name it themselves."""
    try:
        yield
    except (ValueError, FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise typer.BadParameter(f"{name}: {error}" if name else str(error)) from None


def pair(name: str, text: str) -> tuple[int, int]:
    """Parse ROWS,COLUMNS.

    >>> pair("--tensors", "5000,100")
    (5000, 100)
    """
    try:
        rows, columns = (int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{name} must be ROWS,COLUMNS, such as 5000,100, got {text!r}") from None
    if min(rows, columns) < 1:
        raise typer.BadParameter(f"{name} must be positive, got {text!r}")
    return rows, columns


def check_writable(**paths: Path | None) -> None:
    """Raise BadParameter for a file that cannot be written, before the work whose results it is for.

    Args:
        paths: the files, by the names of their options.
    """
    for name, path in paths.items():
        try:
            if path is not None:
                path.open("a").close()
        except OSError as error:
            raise typer.BadParameter(f"--{name} {path} cannot be written: {error.strerror}") from None


def examples(*lines: str) -> str:
    """Return the end of a command's help, with one line for each example.

    >>> examples("foreload doctor", "foreload doctor /data").splitlines()
    ['Examples:', '', 'foreload doctor', '', 'foreload doctor /data']
    """
    return "\n\n".join(("Examples:", *lines))
