"""The result of profiling a script: a report to read, and files to keep."""

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

from foreload.cli.profile.loop_report import LoopReport
from foreload.cli.profile.records import LoaderRecord
from foreload.report.report import Report

__all__ = ["Profile"]

# Loaders with a full report; of others only the title and the verdict are shown.
_MAX_FULL_REPORTS = 4

# Python itself reads less than this.
_MIN_BYTES_SHOWN = 1 << 16


class Profile:
    """The profile of a script: what its loaders did.

    Args:
        command: the script and its arguments.
        code: its exit code, or minus the signal that killed it.
        seconds: its running time.
        loaders: the loaders that it iterated, longest first.

    Attributes:
        reports: a report for each loader.
        stopped: whether it was stopped after a time that was given for it; then its code is that of the stop.
        problem: why loops over other things than loaders could not be looked at, if they could not.
    """

    stopped = False
    problem = ""

    def __init__(self, command: Sequence[str], code: int, seconds: float, loaders: Sequence[LoaderRecord]) -> None:
        self.command = list(command)
        self.code = code
        self.seconds = seconds
        self.loaders = list(loaders)
        self.reports = [_report(loader) for loader in loaders]

    def __rich_console__(self, *_: Any) -> Iterator[RenderableType]:
        """Render with rich."""
        yield Text(
            f"\n{Path(self.command[0]).absolute().name} ran for {self.seconds:.1f} s{self._end()}", style="bold"
        )
        if not self.loaders:
            killed = " (or ended before its loaders were recorded)" if self.code else ""
            other = "no loop of its main thread was seen to wait for its next item"
            if self.problem:
                other = f"its other loops could not be looked at, since {self.problem}"
            yield Text(
                f"It took no batch from a DataLoader, neither torch's nor foreload's{killed}, and {other}: "
                "there is nothing to report about how it loads data."
            )
        for number, (loader, report) in enumerate(zip(self.loaders, self.reports, strict=True)):
            yield Text(f"\n{loader.title}", style="bold")
            if number >= _MAX_FULL_REPORTS:
                yield Text(report.verdict.sentence)
                continue
            yield report
            files = _files(loader.stats)
            if files:
                yield Text(files)

    def _end(self) -> str:
        if self.stopped:
            return " and was stopped then (--duration)"
        if self.code < 0:
            return f" and was killed by {signal.Signals(-self.code).name}"
        return f" and ended with exit code {self.code}" if self.code else ""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return {
            "command": self.command,
            "exit_code": self.code,
            "stopped": self.stopped,
            "seconds": self.seconds,
            "loaders": [
                {"title": loader.title, "where": loader.where, "stats": loader.stats, **report.to_dict()}
                for loader, report in zip(self.loaders, self.reports, strict=True)
            ],
        }

    def write_json(self, path: Path) -> None:
        """Write everything as JSON."""
        path.write_text(json.dumps(self.to_dict(), indent=1) + "\n")

    def write_trace(self, path: Path) -> None:
        """Write the spans of all threads, for ui.perfetto.dev."""
        from foreload.export.trace import Recording, write_recordings

        write_recordings(
            [Recording(loader.title, loader.spans, loader.lanes) for loader in self.loaders if loader.lanes], path
        )

    def show(self) -> None:
        """Print everything to standard output."""
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # some terminals lack some letters
        console = Console()
        # A file or pipe has no width of its own.
        console = console if console.is_terminal else Console(width=110)
        # Rich itself would end the process if the reader of a pipe is gone.
        with console.capture() as shown:
            console.print(self)
        print(shown.get(), end="")

    def exit(self) -> None:
        """End this process as the script ended, or with 0 if that was stopped after the time given for it."""
        if self.stopped:
            sys.exit(0)
        if self.code >= 0:
            sys.exit(self.code)
        _no_core_file()
        number = -self.code
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        sys.exit(128 + number)  # a signal that does not end processes


def _report(loader: LoaderRecord) -> Report | LoopReport:
    return Report(loader.stats) if "stages" in loader.stats else LoopReport(loader.stats, loader.package)


def _files(stats: dict[str, Any]) -> str:
    files = stats.get("files")
    if not files or not (files["opened"] or files["bytes"] >= _MIN_BYTES_SHOWN):
        return ""
    text = f"Files: {files['opened']:,} opened, {files['bytes'] / 2**20:,.1f} MiB read"
    if files["page_cache_share"] is not None and files["bytes"] >= _MIN_BYTES_SHOWN:
        text += f", {files['page_cache_share']:.0%} of it from the page cache"
    return text


def _no_core_file() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
