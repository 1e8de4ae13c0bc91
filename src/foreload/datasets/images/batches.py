"""Batches of images, made by native code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from foreload import _native
from foreload.batch.collate import is_default_collate, pinned
from foreload.batch.collated import Collated
from foreload.batch.failure import remaining_positions
from foreload.checks import Array
from foreload.datasets.images.cache import ImageCache
from foreload.datasets.images.decode import decode_with_pillow
from foreload.datasets.tar.remote import RemoteSamples
from foreload.options import OnError
from foreload.order.index import positions_of, require_nonempty
from foreload.protocol import Batch, BatchMemory, BatchOptions
from foreload.transforms import ImageTransform, shaped

__all__ = ["IMAGE_NUMBERS", "ImageAssembly", "Images"]

# The columns of a batch that are numbers in a sample: the target, and whether the image is still to be mirrored.
IMAGE_NUMBERS = (1, 2)

# An image's position in the batch, and why it cannot be loaded.
Failure = tuple[int, BaseException]


@dataclass(frozen=True)
class Images:
    """Encoded images, which batches are made of.

    Attributes:
        files: where they lie, and those that are kept in memory.
        targets: the target of each (int64).
        remote: reads them from a server; None if they are local.
        path: names the file of an image.
    """

    files: _native.ImageFiles
    targets: Array
    remote: RemoteSamples | None
    path: Callable[[int], str]


class ImageAssembly:
    """Batches of images, made by native code.

    An :class:`~foreload.protocol.Assembly`.

    Args:
        images: what the batches are made of.
        transform: applied to each image.
        key: (seed, epoch) of the transform.
        buffers: memory for the batches.
        spec: of the loader; None: torch's collation, errors are raised.
        kept: the images that the dataset keeps. If the loader has a cache, that is used instead.
    """

    # Workers share a batch image by image, so one is enough to keep them busy, and a second one hides the gap.
    depth: int | None = 2

    def __init__(
        self,
        images: Images,
        transform: ImageTransform,
        key: tuple[int, int],
        buffers: BatchMemory,
        spec: BatchOptions | None = None,
        kept: ImageCache | None = None,
    ) -> None:
        self._images = images
        self._transform = transform
        self._values = 3 * transform.size[0] * transform.size[1]
        if images.remote is not None:
            self.depth = None  # each worker waits for a batch of its own
        self._key = key
        self._buffers = buffers
        own = spec is None or is_default_collate(spec.collate_fn)
        self._collate = None if spec is None or own else spec.collate_fn
        self._pin_device = None if spec is None else spec.pin_device
        self._on_error: OnError = "raise" if spec is None else spec.on_error
        self._errors = [] if spec is None else spec.errors
        self._cache = None if spec is None else spec.cache
        self._store = None if self._cache is None else self._cache.store.native
        self._forms: Array | None = None
        self._kept = kept if self._cache is None else None
        if self._kept is not None:
            self._store, self._forms = self._kept.store.native, self._kept.forms

    def start(self, indices: Any) -> Batch:
        """See :class:`~foreload.protocol.Assembly`."""
        images, transform = self._images, self._transform
        if self._forms is None and self._cache is not None:
            self._forms = self._cache.forms  # which are chosen right before the first indices are drawn
        where = require_nonempty(positions_of(indices, len(images.targets)))
        if self._kept is not None:
            self._kept.check(images.files, where)
        job, list_failures, memory, flips = self._work_on(where)
        targets = torch.from_numpy(images.targets[where])

        def take() -> Any:
            failures = list_failures()
            batch: Any = [shaped(transform, memory, len(where)), targets, *([] if flips is None else [flips])]
            if failures:
                chosen = remaining_positions(failures, where, self._on_error, self._errors, images.path)
                batch = [rows[chosen] for rows in batch]
            if self._collate is not None:
                batch = self._collate(Collated(batch, len(batch[1]), IMAGE_NUMBERS).listed())
            return pinned(batch, self._pin_device)

        return Batch(job, take)

    def _work_on(
        self, where: Array
    ) -> tuple[_native.Job, Callable[[], list[Failure]], torch.Tensor, torch.Tensor | None]:
        """Return the job that makes these images, what lists its failures, and the memory that it writes to.

        The last of it is for the flips that are left to the device, if they are.
        """
        flips = torch.zeros(len(where), dtype=torch.bool, device="cpu") if self._transform.flip_on_device else None
        memory = self._buffers.take((len(where) * self._values,), self._transform.dtype)
        if self._images.remote is None:
            local = self.make(where, memory, flips)
            return local, local.failures, memory, flips
        # The job must not be reachable from what it calls: the garbage collector cannot see such a cycle.
        work = _Fetched(self, where, memory, flips)
        return _native.PythonJob(1, 1, work.run, lambda: None), work.failures, memory, flips

    def load(self, indices: Array) -> list[Failure]:
        """Load images for what the dataset keeps of them, and return those that failed."""
        job, list_failures, *_ = self._work_on(indices)
        job.run_here()
        return list_failures()

    def make(
        self, indices: Any, memory: torch.Tensor, flips: torch.Tensor | None, given: list[Any] | None = None
    ) -> _native.ImageJob:
        """Prepare the job that makes these images in ``memory``, of files or of the bytes ``given``.

        ``flips`` is written to if the transform leaves them to the device, otherwise None.
        """
        return _native.ImageJob(
            self._images.files,
            self._transform.native,
            indices,
            *self._key,
            memory.view(torch.uint8).numpy(),
            decode_with_pillow,
            self._store,
            self._forms,
            given,
            self._kept is not None and self._kept.decode_late,
            None if flips is None else flips.view(torch.uint8).numpy(),
        )

    def rows(self, memory: torch.Tensor, position: int) -> torch.Tensor:
        """Return the part of a batch's memory that is for one image."""
        return memory[position * self._values : (position + 1) * self._values]

    def fetch(self, indices: Any, positions: list[int]) -> tuple[list[Any], dict[int, Exception]]:
        """Fetch some images of a batch; the pieces of the others, and of those that fail, are empty."""
        remote = self._images.remote
        assert remote is not None
        pieces = [np.empty(0, np.uint8)] * len(indices)
        if not positions:
            return pieces, {}
        found, failed = remote.read([int(indices[position]) for position in positions])
        for position, piece in zip(positions, found, strict=True):
            pieces[position] = piece
        return pieces, {positions[number]: error for number, error in failed.items()}

    def missing(self, indices: Any) -> list[int]:
        """List the positions of images that are neither cached nor spilled."""
        store = self._store
        if store is None:
            return list(range(len(indices)))
        numbers = [int(index) for index in indices]
        return [i for i, index in enumerate(numbers) if not store.contains(index) and not store.is_spilled(index)]


class _Fetched:
    """The work on a batch from a server: one worker fetches it, then makes it."""

    def __init__(
        self, assembly: ImageAssembly, indices: Any, memory: torch.Tensor, flips: torch.Tensor | None
    ) -> None:
        self._assembly = assembly
        self._indices = indices
        self._memory = memory
        self._flips = flips
        self._failures: dict[int, BaseException] = {}

    def failures(self) -> list[Failure]:
        return sorted(self._failures.items(), key=lambda failure: failure[0])

    def run(self, begin: int, end: int) -> None:
        try:
            self._make()
        except Exception as error:  # no image of the batch can be fetched
            self._failures = dict.fromkeys(range(len(self._indices)), error)

    def _make(self) -> None:
        assembly, indices = self._assembly, self._indices
        missing = assembly.missing(indices)
        pieces, failed = assembly.fetch(indices, missing)
        job = assembly.make(indices, self._memory, self._flips, pieces)
        job.run_here()
        failures: dict[int, BaseException] = dict(job.failures())
        # These were evicted since a moment ago, or were spilled in another form.
        others = sorted(set(failures) - set(missing))
        again, lost = assembly.fetch(indices, others)
        for position in others:
            row = slice(position, position + 1)
            flips = None if self._flips is None else self._flips[row]
            one = assembly.make(indices[row], assembly.rows(self._memory, position), flips, [again[position]])
            one.run_here()
            del failures[position]
            failures |= {position: error for _, error in one.failures()}  # noqa: B035
        self._failures = failures | lost | failed
