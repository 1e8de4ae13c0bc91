"""Stacks of a Python process's main thread, read from outside while it runs (proc(5), ``mem``)."""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Function", "StackReader"]

# The deepest stack that is followed: the memory may change while it is read.
_MAX_DEPTH = 400

_MAX_NAME = 4096


class Function(NamedTuple):
    """A code object of the process.

    Attributes:
        path, name, line: its file, its name, and its first line.
    """

    path: str
    name: str
    line: int


class StackReader:
    """Reads the stack of the main thread of a process that has said where its frames are.

    Args:
        path: the file written by ``inside/frames.py``.

    Attributes:
        process: the process's id.

    Raises:
        PermissionError: the system does not let this process read the other's memory.
        OSError: the process has ended.
        ValueError: it runs another version of Python than this process does.
    """

    def __init__(self, path: Path) -> None:
        layout: dict[str, Any] = json.loads(path.read_text())
        if layout["version"] != sys.hexversion:
            raise ValueError(f"it runs Python {layout['version']:x}")
        self.process = int(path.stem)
        self._layout = layout
        self._frame_size = max(layout[key] for key in ("code", "instruction", "previous")) + 8
        self._functions: dict[tuple[int, ...], Function] = {}
        self._memory = os.open(f"/proc/{self.process}/mem", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the process's memory."""
        os.close(self._memory)

    def read(self) -> list[tuple[Function, int]]:
        """Return the functions under way, outermost first, each with the offset of its instruction.

        Raises:
            ProcessLookupError: the process has ended.
            OSError: its stack changed meanwhile.
        """
        layout = self._layout
        address = layout["state"]
        for place in layout["path"]:
            (address,) = self._words(address + place, 8)
        found = []
        for _ in range(_MAX_DEPTH):
            if not address:
                break
            words = self._words(address, self._frame_size)
            code, at = words[layout["code"] // 8], words[layout["instruction"] // 8]
            function = self._function(code)
            if function is not None:
                found.append((function, at - code - layout["first"]))
            address = words[layout["previous"] // 8]
        found.reverse()
        return found

    def _words(self, address: int, size: int) -> tuple[int, ...]:
        raw = os.pread(self._memory, size, address)
        if not raw:
            raise ProcessLookupError(f"process {self.process} has ended")
        if len(raw) < size:  # a stale address, at the end of what is mapped
            raise OSError(f"process {self.process} has no memory at {address + size:#x}")
        return struct.unpack(f"{size // 8}Q", raw)

    def _function(self, code: int) -> Function | None:
        """Return a function by the address of its code; None for the interpreter's own frames."""
        layout = self._layout
        begin = min(layout["file"], layout["name"], layout["line"]) // 8 * 8
        size = max(layout["file"], layout["name"], layout["line"]) // 8 * 8 + 8 - begin
        try:
            words = self._words(code + begin, size)
        except (OSError, OverflowError):
            return None
        file, name, line = (words[(layout[key] - begin) // 8] for key in ("file", "name", "line"))
        # The address alone may be that of another function, which is gone.
        if (code, file, name, line) not in self._functions:
            number = line >> 32 if layout["line"] % 8 else line & 0xFFFFFFFF
            try:
                found = Function(self._text(file), self._text(name), number)
            except (OSError, OverflowError):
                return None
            self._functions[code, file, name, line] = found
        return self._functions[code, file, name, line]

    def _text(self, address: int) -> str:
        (length,) = self._words(address + 16, 8)
        if length > _MAX_NAME:
            raise OverflowError
        short = os.pread(self._memory, length, address + self._layout["ascii"])
        if short.isascii() and b"\0" not in short:
            return short.decode("ascii")
        # Not ASCII: as many bytes per letter as the widest letter needs.
        begin = address + self._layout["wide"]
        for size, encoding in ((1, "latin-1"), (2, "utf-16-le"), (4, "utf-32-le")):
            text = os.pread(self._memory, size * length, begin).decode(encoding, errors="replace")
            if "\0" not in text and os.path.exists(text):
                return text
        raise OverflowError
