"""A folder on a local disk for samples that memory does not hold, and for the next run with the same dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any

from foreload.cache.fingerprint import fingerprint
from foreload.errors import warn_user

__all__ = ["SpillFolder"]

_VERSION = 1
_META = "foreload.json"


class SpillFolder:
    """Prepares the folder: one run at a time, and nothing in it that belongs to another dataset.

    Args:
        path: is created if it is not there.
        dataset: what the samples are of.

    Raises:
        OSError: the folder cannot be made or written.

    Attributes:
        usable: False where another run uses the folder at this moment.
    """

    def __init__(self, path: str | Path, dataset: Any) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        # Held until the last process that has it ends, however it ends.
        self._lock: IO[bytes] = (self.path / "lock").open("ab")
        self.usable = _locked(self._lock)
        if not self.usable:
            warn_user(f"the spill folder {str(path)!r} is in use by another run; going on without one")
            return
        meta = {"version": _VERSION, "fingerprint": fingerprint(dataset), "dataset": type(dataset).__qualname__}
        if self._found() != meta:
            self.clear()
            part = self.path / f"{_META}.part"
            part.write_text(json.dumps(meta))
            part.replace(self.path / _META)

    def _found(self) -> Any:
        try:
            return json.loads((self.path / _META).read_text())
        except (OSError, ValueError):
            return None

    def clear(self) -> None:
        """Delete the samples, and nothing else."""
        for file in self.path.glob("[0-9][0-9][0-9][0-9][0-9].spill"):
            file.unlink(missing_ok=True)


def _locked(file: IO[bytes]) -> bool:
    try:
        import fcntl
    except ImportError:  # not a system with such locks
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
