"""A terminal, and what a person would see on it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
import threading
from contextlib import suppress


class Terminal:
    """A pseudo-terminal, and what a person would see on it."""

    def __init__(self, columns: int = 80) -> None:
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.stream = os.fdopen(os.dup(self.slave), "w")
        self.written = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            while data := os.read(self.master, 65536):
                self.written += data
        except OSError:  # the other end was closed
            return

    def close(self) -> None:
        with suppress(OSError):
            self.stream.close()
        os.close(self.slave)
        self._reader.join(20)
        os.close(self.master)

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.written.decode())

    @property
    def screen(self) -> list[str]:
        """Return what is left on the screen in the end."""
        lines, row, column = [""], 0, 0
        for code, character in re.findall(r"\x1b\[([0-9;?]*[A-Za-z])|(.)", self.written.decode(), re.DOTALL):
            if code.endswith("A"):
                row = max(0, row - int(code[:-1] or 1))
            elif code in ("K", "0K"):
                lines[row] = lines[row][:column]
            elif code == "2K":
                lines[row] = ""
            elif character == "\r":
                column = 0
            elif character == "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif character:
                lines[row] = lines[row][:column].ljust(column) + character + lines[row][column + 1 :]
                column += 1
        return [line.rstrip() for line in lines if line.strip()]
