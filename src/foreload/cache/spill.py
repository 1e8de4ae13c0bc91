"""A folder on a local disk for samples that do not fit into memory, reused by the next run."""

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
    """The folder, locked by one run at a time, and cleared of samples from another dataset.

    Args:
        path: of the folder, which is created if it does not exist.
        dataset: the dataset of the samples.

    Raises:
        OSError: the folder cannot be created or written.

    Attributes:
        usable: False if another run is using the folder.
    """

    def __init__(self, path: str | Path, dataset: Any) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        # The lock lasts until the last process that inherited it ends, however it ends.
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
        """Delete the samples, but no other files."""
        for file in self.path.glob("[0-9][0-9][0-9][0-9][0-9].spill"):
            file.unlink(missing_ok=True)


def _locked(file: IO[bytes]) -> bool:
    try:
        import fcntl
    except ImportError:  # a system without such locks
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
