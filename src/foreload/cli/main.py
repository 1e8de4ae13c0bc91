"""Entry point of the ``foreload`` command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; ``arguments`` are the process's own by default."""
    try:
        _app()(args=None if arguments is None else list(arguments), prog_name="foreload")
    except KeyboardInterrupt:  # while the commands are imported; later, typer ends in the same way
        sys.exit(130)
    except (OSError, ValueError, RuntimeError, ImportError, MemoryError) as error:
        sys.exit(f"foreload: {error}")


def _app() -> Callable[..., Any]:
    try:
        from foreload.cli.commands import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"the foreload command needs {error.name}: pip install typer rich")
    return app
