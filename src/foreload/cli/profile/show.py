"""What was found out about a script: to be read, and to be kept."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from foreload.cli.profile.records import LoaderRecord
from foreload.report.report import Report

__all__ = ["Profile"]

# Of more loaders than that only the title and the verdict are shown.
_WHOLE = 4


# Less is what Python itself reads.
_SOME_BYTES = 1 << 16


class Profile:
    """What a script's loaders did.

    Args:
        command: the script and its arguments.
        code: its exit code, or minus the signal that killed it.
        seconds: how long it ran.
        loaders: those that it iterated, the longest first.

    Attributes:
        reports: one for each.
    """

    def __init__(self, command: Sequence[str], code: int, seconds: float, loaders: Sequence[LoaderRecord]) -> None:
        self.command = list(command)
        self.code = code
        self.seconds = seconds
        self.loaders = list(loaders)
        self.reports = [Report(loader.stats) for loader in loaders]

    def __rich_console__(self, *_: Any) -> Iterator[RenderableType]:
        """Show everything."""
        yield Text(
            f"\n{Path(self.command[0]).absolute().name} ran for {self.seconds:.1f} s{self._end()}", style="bold"
        )
        if not self.loaders:
            hard = " (or was ended before anybody looked)" if self.code else ""
            yield Text(
                f"It iterated no DataLoader, neither torch's nor foreload's, as far as a first batch{hard}: "
                "there is nothing to say about how it loads data."
            )
        for number, (loader, report) in enumerate(zip(self.loaders, self.reports, strict=True)):
            yield Text(f"\n{loader.title}", style="bold")
            if number >= _WHOLE:
                yield Text(report.verdict.sentence)
                continue
            yield report
            files = _files(loader.stats)
            if files:
                yield Text(files)

    def _end(self) -> str:
        if self.code < 0:
            return f", and was ended by {signal.Signals(-self.code).name}"
        return f", and ended with exit code {self.code}" if self.code else ""

    def to_dict(self) -> dict[str, Any]:
        """Give everything, for JSON."""
        return {
            "command": self.command,
            "exit_code": self.code,
            "seconds": self.seconds,
            "loaders": [
                {"title": loader.title, "where": loader.where, "stats": loader.stats, **report.to_dict()}
                for loader, report in zip(self.loaders, self.reports, strict=True)
            ],
        }

    def write_json(self, path: Path) -> None:
        """Keep everything."""
        path.write_text(json.dumps(self.to_dict(), indent=1) + "\n")

    def write_trace(self, path: Path) -> None:
        """Write who did what when, for ui.perfetto.dev."""
        from foreload.export.trace import Recording, write_recordings

        write_recordings([Recording(loader.title, loader.spans, loader.lanes) for loader in self.loaders], path)

    def show(self) -> None:
        """Print everything to standard output."""
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # not every terminal knows all letters
        console = Console()
        # A file or pipe has no width of its own.
        console = console if console.is_terminal else Console(width=110)
        # (By itself, rich would end the process where nobody reads.)
        with console.capture() as shown:
            console.print(self)
        print(shown.get(), end="")

    def exit(self) -> None:
        """End this process as the script ended."""
        if self.code >= 0:
            sys.exit(self.code)
        _no_core_file()
        number = -self.code
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        sys.exit(128 + number)  # a signal that does not end processes


def _files(stats: dict[str, Any]) -> str:
    files = stats.get("files")
    if not files or not (files["opened"] or files["bytes"] >= _SOME_BYTES):
        return ""
    text = f"Files: {files['opened']:,} opened, {files['bytes'] / 2**20:,.1f} MiB read"
    if files["page_cache_share"] is not None and files["bytes"] >= _SOME_BYTES:
        text += f", {files['page_cache_share']:.0%} of that from the page cache"
    return text


def _no_core_file() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
