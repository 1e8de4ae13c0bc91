"""A folder on a local disk for samples that do not fit into memory, reused by the next run."""

from __future__ import annotations

import hashlib
import json
import multiprocessing.reduction
import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from foreload.cache.fingerprint import fingerprint
from foreload.errors import warn_user

__all__ = ["SpillFolder", "SpillTarget"]

_VERSION = 3
_META = "foreload.json"
_KEY = "key"
_KEY_BYTES = 32
_MAX_META_BYTES = 1 << 16
_OWN_FILE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class SpillTarget:
    """A spill folder that a process can read and write samples in; pickled to a process that is being spawned.

    Args:
        path: of the folder, for messages.
        descriptor: of the folder, so that nobody can exchange it for another; closed with this object.
        key: 32 secret bytes; samples that were not written with them are not read.
    """

    def __init__(self, path: str, descriptor: int, key: bytes) -> None:
        self.path = path
        self.descriptor = descriptor
        self.key = key

    def __reduce__(self) -> Any:
        """Send the descriptor along."""
        return _received, (self.path, multiprocessing.reduction.DupFd(self.descriptor), self.key)

    # (At the exit of the interpreter, what a module has imported may be gone already.)
    def __del__(self, close: Callable[[int], None] = os.close, ignore: Any = suppress) -> None:
        """Close the descriptor."""
        with ignore(OSError):
            close(self.descriptor)


def _received(path: str, descriptor: Any, key: bytes) -> SpillTarget:
    return SpillTarget(path, descriptor.detach(), key)


class SpillFolder:
    """The folder, locked by one run at a time, and cleared of samples from another dataset.

    It is created for its user alone. Samples may be pickles, which run any code when they are loaded; so each is
    stored with a tag, which only a holder of the folder's key can make, and is not read without it. The key is a
    file that only this user can read.

    Args:
        path: of the folder, which is created if it does not exist; its parents may be links, but not itself.
        dataset: the dataset of the samples.

    Raises:
        PermissionError: the folder belongs to another user, or others can write to it.
        OSError: it cannot be created or written, or is a link.

    Attributes:
        usable: False if another run, another rank, or another loader is using the folder.
        target: for the processes that read and write samples, if it is usable.
    """

    def __init__(self, path: str | Path, dataset: Any) -> None:
        self.path = Path(path)
        self._folder = _opened(self.path)
        # The lock lasts until the last process that inherited it ends, however it ends.
        self._lock = self._open("lock", os.O_RDWR | os.O_CREAT)
        self.usable = _locked(self._lock)
        if not self.usable:
            warn_user(
                f"the spill folder {str(path)!r} is in use by another run, by another rank of this one, or by a "
                "loader or an iterator that this process still has; going on without one"
            )
            return
        known = hashlib.sha256(fingerprint(dataset, str(path)).encode("utf-8", "surrogatepass")).hexdigest()
        meta = {"version": _VERSION, "fingerprint": known, "dataset": type(dataset).__qualname__}
        is_known = self._found() == meta
        key = self._key()
        if not is_known or key is None:
            if is_known:
                warn_user(
                    f"the samples in the spill folder {str(path)!r} are not used: its file {_KEY!r}, which shows "
                    "that this user wrote them, is missing, damaged, or open to others; they are written anew"
                )
            self.clear()
            key = self._new_key() if key is None else key
            self._write(_META, json.dumps(meta).encode())
        # The dataset is part of the key, so that samples of another one are as foreign as those of another user.
        derived = hashlib.blake2b(known.encode(), key=key, digest_size=_KEY_BYTES).digest()
        self.target = SpillTarget(str(self.path), os.dup(self._folder), derived)

    def __del__(self, close: Callable[[int], None] = os.close, ignore: Any = suppress) -> None:
        """Release the lock, unless a process has inherited it."""
        for name in ("_lock", "_folder"):
            with ignore(AttributeError, OSError):
                close(getattr(self, name))

    def _open(self, name: str, flags: int) -> int:
        try:
            return os.open(name, flags | _OWN_FILE, 0o600, dir_fd=self._folder)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path / name)) from None

    def _found(self) -> Any:
        try:
            return json.loads(self._read(_META, _MAX_META_BYTES))
        except (OSError, ValueError, RecursionError):
            return None

    def _key(self) -> bytes | None:
        """Return the key in the folder; None if there is none, or others may know it."""
        try:
            key = self._read(_KEY, _KEY_BYTES, private=True)
        except OSError:
            return None
        return key if len(key) == _KEY_BYTES else None

    def _new_key(self) -> bytes:
        """Write a key, unless another process has just written one, and return the one that is in the folder."""
        import fcntl  # which not all systems have

        fcntl.flock(self._folder, fcntl.LOCK_EX)
        try:
            if (key := self._key()) is not None:
                return key
            with suppress(FileNotFoundError):
                os.unlink(_KEY, dir_fd=self._folder)
            self._write(_KEY, secrets.token_bytes(_KEY_BYTES), replace=False)
            key = self._key()
        finally:
            fcntl.flock(self._folder, fcntl.LOCK_UN)
        if key is None:
            raise OSError(f"no key can be kept in the spill folder {str(self.path)!r}; give another folder")
        return key

    def _read(self, name: str, most: int, *, private: bool = False) -> bytes:
        """Return the content of a file of this user; ``private``: which nobody else can read.

        Raises:
            OSError: there is no such file, it is a link, too long, or somebody else's.
        """
        file = self._open(name, os.O_RDONLY)
        try:
            about = os.fstat(file)
            is_own = stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and about.st_size <= most
            if not is_own or (private and about.st_mode & 0o077):
                raise PermissionError(f"{name!r} is not a file of this user alone")
            return os.read(file, most)
        finally:
            os.close(file)

    def _write(self, name: str, content: bytes, *, replace: bool = True) -> None:
        """Write a file, of which others see all or nothing; without ``replace``, one that exists stays."""
        part = f"{name}.{secrets.token_hex(8)}.part"
        file = self._open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with os.fdopen(file, "wb") as opened:
                opened.write(content)
            if replace:
                os.replace(part, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
                return
            with suppress(FileExistsError):
                os.link(part, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(part, dir_fd=self._folder)

    def clear(self) -> None:
        """Delete the samples, but no other files."""
        for name in os.listdir(self._folder):
            number, dot, rest = name.partition(".")
            if dot and rest == "spill" and len(number) == 5 and number.isascii() and number.isdigit():
                os.unlink(name, dir_fd=self._folder)


def _opened(path: Path) -> int:
    """Return a descriptor of the folder, which is created if need be, and belongs to this user alone.

    Raises:
        OSError: as for :class:`SpillFolder`.
    """
    with suppress(FileExistsError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700)
    if path.is_symlink():
        raise OSError(
            f"the spill folder {str(path)!r} is a link, which may come to lead elsewhere; give the folder that it "
            f"leads to: {os.path.realpath(path)!r}"
        )
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        about = os.fstat(folder)
        if about.st_uid != os.geteuid():
            raise PermissionError(
                f"the spill folder {str(path)!r} belongs to user {about.st_uid}, not to this process's user "
                f"{os.geteuid()}: samples in it may be pickles of theirs; give a folder of your own"
            )
        if about.st_mode & 0o022:
            raise PermissionError(
                f"others can write to the spill folder {str(path)!r} (mode {stat.S_IMODE(about.st_mode):04o}): "
                f"samples in it may be pickles of theirs; chmod 700 {str(path)!r}, or give another folder"
            )
    except BaseException:
        os.close(folder)
        raise
    return folder


def _locked(file: int) -> bool:
    try:
        import fcntl
    except ImportError:  # a system without such locks
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
