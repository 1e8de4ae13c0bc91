"""The decoded images that a dataset keeps, in memory that its workers share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from foreload import _native
from foreload.cache.budget import Pressure, make_largest_store
from foreload.cache.forms import ENCODED, VIEW
from foreload.checks import Array
from foreload.datasets.base import EAGER_SHARE
from foreload.datasets.images.decode import decode_with_pillow
from foreload.datasets.images.stamps import FileStamps
from foreload.errors import warn_user
from foreload.machine import granted_memory
from foreload.options import LoadingMode
from foreload.record.progress import track_threads

__all__ = ["ImageCache", "check_room", "warn_of_nothing_kept"]

# The share of the memory granted to this process that images may take if not all of them have to be kept.
_SHARE = 0.5


class ImageCache:
    """Images that a dataset keeps, decoded, in one place for all threads and processes that load them.

    What a transform without random parts makes of an image is kept before it is normalised: ``3 * height * width``
    bytes. For any other transform the whole image is: 1.5 bytes per pixel as 4:2:0 planes, or 3 as RGB.

    Args:
        images: the number of images in the dataset.
        mode: ``EAGER`` keeps all images, ``CACHED`` those that come first, ``LAZY`` the most recently used ones.
        cache_size: the most images that ``CACHED`` and ``LAZY`` keep.
        in_files: whether each image is a local file of its own. ``CACHED`` and ``LAZY`` then notice that it has
            changed.

    Attributes:
        store: of the images.
        forms: the form in which each is kept (uint8); see :mod:`foreload.cache.forms`.
        decode_late: whether images are kept as the bytes of their files until they are requested again, unless
            the view of them is kept: a random crop decodes a part of an image, and most are evicted before that.
        decisions: what was done because memory was short, in words.
    """

    def __init__(self, images: int, mode: LoadingMode, cache_size: int, *, in_files: bool = True) -> None:
        self._mode = mode
        most = 0 if mode is LoadingMode.EAGER else min(cache_size, images)
        self.room = int((EAGER_SHARE if mode is LoadingMode.EAGER else _SHARE) * granted_memory())
        self.store = make_largest_store(images, 0, most, self.room)
        self.forms: Array = np.full(images, VIEW, np.uint8)
        self.decode_late = mode is LoadingMode.LAZY and most < images
        self.decisions: list[str] = []
        # Methods: whether loading changes a dataset is seen by its attributes, and neither the time of a check nor
        # what is known of files is one.
        self._check_memory = Pressure(self.decisions.append).check
        watches = in_files and mode is not LoadingMode.EAGER
        self._changed = FileStamps(images).changed if watches else None
        self._follow_rule()

    @classmethod
    def of(cls, images: int, mode: LoadingMode, cache_size: int, *, in_files: bool = True) -> ImageCache | None:
        """Return the cache of a dataset; None if its mode and ``cache_size`` keep nothing."""
        keeps = mode is LoadingMode.EAGER or (mode is not LoadingMode.STREAMING and cache_size > 0)
        return cls(images, mode, cache_size, in_files=in_files) if keeps and images else None

    def _follow_rule(self) -> None:
        self.store.native.follow_rule("recent" if self._mode is LoadingMode.LAZY else "all")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the cache: that of the process that spawns this one, otherwise an empty one of the same size."""
        self.__dict__.update(state)
        self._follow_rule()

    def __len__(self) -> int:
        """Count the images that are kept now."""
        return int(self.store.residents().sum())

    def counts(self) -> dict[str, int]:
        """Return hits, misses and bytes in use, of all workers together."""
        return self.store.native.counts()

    def check(self, files: _native.ImageFiles, indices: Any) -> None:
        """Evict images whose files have changed, and others if memory is short; none if all were to be kept.

        Args:
            files: where images lie.
            indices: of those that are about to be loaded (int64).
        """
        if self._mode is not LoadingMode.EAGER:
            self._check_memory(self.store)
        if self._changed is not None:
            for index in self._changed(files, indices):
                self.store.native.drop(index)

    def decode(
        self, files: _native.ImageFiles, index: int, path: str, read: Callable[[int], bytes] | None = None
    ) -> Array:
        """Return a whole image, decoded unless it is kept (uint8, height x width x 3).

        Args:
            files: where images lie.
            index: of the image.
            path: its name in an error.
            read: reads the bytes of an image from a server; None: they are in a file.
        """
        self.check(files, np.array([index]))
        is_near = read is None or self.store.native.contains(index)
        arguments = files, index, path, decode_with_pillow, self.store.native, self.forms
        try:
            return _native.decode_cached(*arguments, None if read is None or is_near else read(index))
        except FileNotFoundError:
            if read is None or not is_near:
                raise
            return _native.decode_cached(*arguments, read(index))  # it was evicted since

    def fill(self, load: Callable[[Array], None], together: int) -> None:
        """Load all images that are not there; as the bytes of their files if they do not fit decoded.

        Args:
            load: loads these images through the cache; called by several threads.
            together: how many images it is given at a time.

        Raises:
            MemoryError: they do not fit as files either.
        """
        for form in (VIEW, ENCODED):
            self.forms.fill(form)
            if self._fits(load, together):
                return
            self.store.native.clear()
        raise MemoryError(
            f"the {len(self.forms)} images do not fit into {self.room:,} bytes; use LoadingMode.CACHED, which "
            "keeps cache_size of them"
        )

    def _fits(self, load: Callable[[Array], None], together: int) -> bool:
        missing = np.flatnonzero(~self.store.residents())
        runs = [missing[begin : begin + together] for begin in range(0, len(missing), together)]
        refused = self.store.native.counts()["refused"]
        return all(
            self.store.native.counts()["refused"] == refused
            for _ in track_threads(load, runs, "reading images", after=1)
        )


def check_room(mode: LoadingMode, sizes: Iterable[int]) -> None:
    """Raise MemoryError if ``mode`` is to keep all files, and this process may not keep as many bytes."""
    if mode is not LoadingMode.EAGER:
        return
    needed, room = sum(sizes), int(EAGER_SHARE * granted_memory())
    if needed > room:
        raise MemoryError(
            f"the images take {needed:,} bytes, which do not fit into {room:,}; use LoadingMode.CACHED, which "
            "keeps cache_size of them"
        )


def warn_of_nothing_kept(dataset: Any, mode: LoadingMode) -> None:
    """Warn if ``mode`` asks for images to be kept, but a subclass loads samples itself."""
    if mode in (LoadingMode.EAGER, LoadingMode.CACHED):
        warn_user(
            f"loading_mode={mode} keeps no images: {type(dataset).__name__} loads its samples by its own "
            "read_encoded, prepare_sample or finish_sample; use DataLoader(cache=...) instead"
        )
