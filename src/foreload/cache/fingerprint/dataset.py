"""Fingerprints by which a dataset is recognised: in a later run with its files, or in another process."""

from __future__ import annotations

import hashlib
import pickle
import secrets
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import torch

from foreload.cache.fingerprint.content import ContentPickler, FilesPickler, elements_of
from foreload.cache.fingerprint.named_files import NamedFiles, TooManyFiles
from foreload.checks import Array
from foreload.errors import warn_user
from foreload.protocol import SampleSource

__all__ = ["content_hash", "fingerprint", "fingerprint_of", "fingerprint_with"]

# Of larger buffers, so many pieces of so many bytes are hashed; and of all, so many bytes.
_PIECES, _PIECE = 64, 1 << 14
_MAX_HASHED = 64 << 20


def fingerprint(dataset: Any, without: str | None = None) -> str:
    """Return a hash of a dataset's state and code, of all that these refer to, and of the files that they name.

    A :class:`~foreload.protocol.SampleSource` may have a fingerprint of its own. For what cannot be recognised, it
    is another one each time.

    Args:
        dataset: the dataset.
        without: a folder whose content does not count, whatever names it.

    >>> fingerprint([1, 2]) == fingerprint([1, 2]), fingerprint([1, 2]) == fingerprint([1, 3])
    (True, False)
    """
    own = dataset.fingerprint() if isinstance(dataset, SampleSource) else None
    return fingerprint_of(len(dataset), dataset, without=without) if own is None else own


def fingerprint_of(*things: Any, without: str | None = None) -> str:
    """Return a hash of anything, as :func:`fingerprint` does of a dataset."""
    known, files = hashlib.sha256(), NamedFiles(without)
    try:
        FilesPickler(known, files).dump(things)
        for part in files.stamps():
            known.update(part.encode("utf-8", "surrogateescape") + b"\0")
    except TooManyFiles as error:
        why = str(error)
    except (RecursionError, pickle.PicklingError) as error:
        why = repr(error)
    else:
        return known.hexdigest()
    warn_user(
        f"a later run cannot tell whether the dataset is the same: {why}. So it will load all samples again, and "
        "spill them anew; give the dataset a fingerprint of its own (foreload.protocol.SampleSource)"
    )
    return secrets.token_hex()


def fingerprint_with(dataset: Any, stamps: Iterable[str], without: Collection[str]) -> str:
    """Return a hash of a dataset's class, of its attributes but for some, and of stamps of its files."""
    known = hashlib.sha256()
    for part in stamps:
        known.update(part.encode("utf-8", "surrogateescape") + b"\0")
    attributes = {name: value for name, value in vars(dataset).items() if name not in without}
    return fingerprint_of(type(dataset), attributes, known.digest())


def content_hash(dataset: Any) -> str:
    """Return a hash by which processes of one run tell whether they have the same dataset.

    It is of state and code, without files, so it takes little time: of large arrays and tensors, samples count,
    and of more than 64 MiB in all, the beginning. What cannot be pickled counts by its class. For what cannot be
    compared, it is another one each time.

    >>> content_hash(range(3)) == content_hash(range(3)), content_hash(range(3)) == content_hash(range(1, 4))
    (True, False)
    >>> content_hash([lambda: 0, 1]) == content_hash([lambda: 0, 2])
    False
    """
    found = _Hash()
    try:
        _SamplingPickler(found, protocol=5, buffer_callback=found.add_buffer).dump(dataset)
    except _Enough:
        pass
    except Exception as error:  # a user's object may raise anything
        # A hash of what was pickled so far would not do: the rest may differ, and part of it is not written yet.
        warn_user(
            f"ranks cannot tell whether they have the same dataset: {error!r}. So each has a cache of its own, "
            "with its part of the budget; leave what cannot be pickled out of the dataset's state (__getstate__), "
            "and out of the globals that its code names"
        )
        return secrets.token_hex()
    return found.known.hexdigest()


class _Enough(Exception):
    """Enough has been hashed."""


class _Hash:
    """A file that keeps a hash of what is written to it."""

    def __init__(self) -> None:
        self.known = hashlib.sha256()
        self._left = _MAX_HASHED

    def write(self, data: Any) -> int:
        """Add bytes."""
        part = memoryview(data)[: self._left]
        self.known.update(part)
        self._left -= len(part)
        if self._left <= 0:
            raise _Enough
        return len(data)

    def add_buffer(self, buffer: pickle.PickleBuffer) -> None:
        """Add samples of what would be pickled out of band."""
        self.write(_sampled(np.frombuffer(buffer.raw(), np.uint8)))


def _sampled(data: Array | torch.Tensor) -> bytes:
    """Return the length and the bytes of a buffer, or of pieces from its beginning to its end."""
    length = len(data).to_bytes(8, "little")
    if len(data) > _PIECES * _PIECE:
        starts = np.linspace(0, len(data) - _PIECE, _PIECES).astype(np.int64).tolist()
        pieces: list[Any] = [data[start : start + _PIECE] for start in starts]
        # From another device, they are copied at once.
        data = torch.cat(pieces) if isinstance(data, torch.Tensor) else np.concatenate(pieces)
    return length + (data.cpu().numpy() if isinstance(data, torch.Tensor) else data).tobytes()


class _SamplingPickler(ContentPickler):
    """Pickles tensors by samples of them."""

    def of_tensor(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        """Return the layout of a tensor, and samples of its memory."""
        place = tensor.shape, tensor.stride(), tensor.storage_offset()
        memory = b"" if tensor.is_meta else _sampled(_memory_of(tensor))
        return repr((tensor.dtype, *place, tensor.is_conj(), tensor.is_neg())), memory


def _memory_of(tensor: torch.Tensor) -> Array | torch.Tensor:
    """Return the memory that a tensor is in, or a copy of its elements where that cannot be had."""
    if tensor.device.type not in ("cpu", "cuda"):
        return elements_of(tensor)
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
