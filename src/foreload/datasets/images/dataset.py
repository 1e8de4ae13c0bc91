"""Images in files."""

from __future__ import annotations

import hashlib
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from torch.utils.data import Dataset

from foreload import _native, transforms
from foreload._torch import draw_seed
from foreload.batch.buffers import Buffers
from foreload.batch.collate import Collated
from foreload.cache.fingerprint import stamp
from foreload.checks import Array, check_int
from foreload.datasets.base import EAGER_SHARE
from foreload.datasets.direct import DirectReads
from foreload.datasets.folders import IMAGES, Labels, list_files
from foreload.datasets.images.batches import ImageAssembly, Images
from foreload.datasets.images.decode import decode_image
from foreload.datasets.stream import Stream, runs_of
from foreload.datasets.tar import Shards
from foreload.datasets.tar.remote import RemoteSamples
from foreload.datasets.tar.shards import are_shards
from foreload.machine import granted_memory
from foreload.options import Keep, LoadingMode
from foreload.protocol import (
    BatchMemory,
    BatchOptions,
    BlockStorage,
    ImageForms,
    NativeBatches,
    SampleSource,
    UserCode,
)
from foreload.record.progress import track, track_threads
from foreload.remote.url import local_path
from foreload.transforms import ImageTransform, transform_array

__all__ = ["ImageDataset"]

Transform = Callable[[Any], Any]

# Images that are requested from a server at a time.
_TOGETHER = 256


class ImageDataset(
    DirectReads, Dataset[tuple[Any, int]], BlockStorage, ImageForms, NativeBatches, SampleSource, UserCode
):
    """Images in files, with labels: ``(image, target)``.

    With a transform of :mod:`foreload.transforms` (or none), a whole batch is read, decoded, cropped, resized
    and stored in one native call, for JPEG. PNG, WebP, BMP, GIF, TIFF and unusual JPEGs are decoded by Pillow
    in between. Images come upright (Exif), as RGB, whatever they were (grey, alpha, CMYK, 16 bits).

    Args:
        data_path: a folder of class folders, a flat folder, or a list of files; or tar shards, such as
            ``foreload pack`` makes: their folder, ``"train-{000..099}.tar"``, or a list of them.
        image_size: (height, width) or one number for both; what the default transform resizes to.
        transform: one of :mod:`foreload.transforms`; an Albumentations transform (called with ``image=`` an
            array of height x width x 3); or any callable that takes a Pillow image, such as torchvision's.
            By default the image is resized and normalised as for ImageNet.
        loading_mode: when files are read, and whether their bytes are kept in memory.
        cache_size: how many files ``LoadingMode.CACHED`` keeps.
        labels: an int or str per file, for a list or a flat folder (in the order of the file names).
        direct_io: as for :class:`~foreload.FileDataset`.
        storage: for shards that are named by URLs (``s3://``, ``gs://``, ``http://`` ...): options of their
            storage, as :class:`foreload.remote.fetch.Fetch` takes them.
        index_folder: as for :class:`~foreload.TarDataset`.

    Attributes:
        classes: the names of the classes, sorted.
        class_to_idx: from name to target.
        targets: the target of every image; -1 if none was given.

    Raises:
        FileNotFoundError, NotADirectoryError: ``data_path`` does not exist.
        ValueError, TypeError: an argument is invalid; the message names it.
        MemoryError: ``EAGER`` needs more than the memory that this process may use.

    Loading a sample raises OSError where its file cannot be read (a FIFO or device is never waited for) and
    :class:`foreload.errors.DecodeError` (an OSError too) where Pillow could not load it: cut short, or damaged
    beyond reading; damage that Pillow passes over gives Pillow's pixels. The message names sample and file.

    >>> import tempfile; from PIL import Image
    >>> folder = Path(tempfile.mkdtemp()); (folder / "cat").mkdir()
    >>> Image.new("RGB", (60, 40)).save(folder / "cat" / "tom.jpg")
    >>> images = ImageDataset(folder, image_size=32)
    >>> image, target = images[0]
    >>> image.shape, images.classes[target]
    (torch.Size([3, 32, 32]), 'cat')
    """

    def __init__(
        self,
        data_path: str | Path | Sequence[str | Path],
        image_size: int | tuple[int, int] = (224, 224),
        transform: Transform | None = None,
        loading_mode: LoadingMode = LoadingMode.LAZY,
        cache_size: int = 1000,
        *,
        labels: Labels | None = None,
        direct_io: bool = False,
        storage: dict[str, Any] | None = None,
        index_folder: str | Path | None = None,
    ) -> None:
        if transform is not None and not callable(transform):
            raise TypeError(f"transform must be callable, got {type(transform).__name__}")
        cache_size = check_int("cache_size", cache_size, 0)
        data_path = local_path(data_path)
        self.shards = Shards(data_path, storage, index_folder, direct=direct_io) if are_shards(data_path) else None
        self._paths: list[bytes] = []
        if self.shards is not None:
            if labels is not None:
                raise ValueError("labels: shards have their own, in their cls members")
            self._targets, self.classes = self.shards.labels, self.shards.classes
        else:
            paths, self._targets, self.classes = list_files(data_path, labels, IMAGES)
            self._paths = [os.fsencode(path) for path in paths]
        self.class_to_idx = {name: index for index, name in enumerate(self.classes)}
        self.transform = transforms.resize(image_size) if transform is None else transform
        self.loading_mode = LoadingMode(loading_mode)
        self.cache_size = cache_size
        self._direct_io = direct_io
        self._files: _native.ImageFiles = self._open()
        self.direct_io = direct_io  # which warns if that is not possible

    def _open(self) -> _native.ImageFiles:
        count = len(self._targets)
        kept = {LoadingMode.EAGER: count, LoadingMode.CACHED: self.cache_size}
        keep = min(count, kept.get(self.loading_mode, 0))
        files: _native.ImageFiles
        self._remote: RemoteSamples | None = None
        eager = self.loading_mode is LoadingMode.EAGER
        if self.shards is not None:
            extents = self.shards.members([extension[1:] for extension in IMAGES])
            if eager:
                _check_room(int(extents[:, 2].sum()))
            self._remote = self.shards.remote(extents, keep)
            files = self.shards.files(extents, direct=self.direct_io, kind=_native.ImageFiles, keep=keep)
        else:
            if eager:
                _check_room(sum(map(os.path.getsize, self._paths)))
            files = _native.ImageFiles(self._paths, keep, direct=self.direct_io)
        self._paths = []
        if eager:
            self._load_all(files, count)
        return files

    def _load_all(self, files: _native.ImageFiles, count: int) -> None:
        if self._remote is not None:
            runs = range(0, count, _TOGETHER)
            for begin in track(runs, "reading images", total=len(runs), after=1):
                _, failures = self._remote.read(range(begin, min(begin + _TOGETHER, count)))
                for failure in failures.values():
                    raise failure
            return
        for _ in track_threads(files.keep, range(count), "reading images", after=1):
            pass

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the list of files; kept bytes are read again."""
        paths = [] if self.shards is not None else [self._files.path(i) for i in range(len(self))]
        return {**self.__dict__, "_files": None, "_remote": None, "_paths": paths}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the files again."""
        self.__dict__.update(state)
        self._files = self._open()

    @property
    def targets(self) -> list[int]:
        """The target of every image."""
        targets: list[int] = self._targets.tolist()
        return targets

    @property
    def samples(self) -> list[tuple[str, int]]:
        """The file and the target of every image."""
        return [(self.path(i), target) for i, target in enumerate(self.targets)]

    def __len__(self) -> int:
        """Count the images."""
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Load one image; random numbers come from torch's global generator."""
        position = operator.index(index)
        if not -len(self) <= position < len(self):
            raise IndexError(f"index {position} is out of range for {len(self)} images")
        position %= len(self)
        if isinstance(self.transform, ImageTransform):
            return self._load_batch([position])[0]
        return self.load_transformed(position), int(self._targets[position])

    @property
    def __getitems__(self) -> Callable[[Sequence[int]], Sequence[tuple[Any, int]]] | None:
        """Load the images of a batch; a stock DataLoader calls this and has nothing left to collate.

        None if the transform is Python, or a subclass loads samples itself: they are then loaded one by one.
        """
        own = type(self).__getitem__ is ImageDataset.__getitem__
        return self._load_batch if own and isinstance(self.transform, ImageTransform) else None

    def _load_batch(self, indices: Sequence[int]) -> Sequence[tuple[Any, int]]:
        assert isinstance(self.transform, ImageTransform)
        seed = draw_seed() if self.transform.random else 0
        batch = self.image_assembly(self.transform, (seed, 0), Buffers()).start(indices)
        batch.job.run_here()
        return Collated(batch.take(), len(indices))

    def load_transformed(self, index: int) -> Any:
        """Load one image for a transform in Python."""
        return self.apply_transform(decode_image(self.read_encoded(index), self.path(index)))

    def read_encoded(self, index: int) -> bytes:
        """Read the bytes of an image's file."""
        if self._remote is None:
            return self._files.read(index)
        (piece,), failures = self._remote.read([index])
        if failures:
            raise failures[0]
        return bytes(piece)

    def apply_transform(self, array: Array) -> Any:
        """Transform a decoded image (uint8, height x width x 3)."""
        from PIL import Image

        transform: Any = self.transform
        if isinstance(transform, ImageTransform):
            return transform_array(transform, array)
        if type(transform).__module__.partition(".")[0] == "albumentations":
            return transform(image=array)["image"]
        return transform(Image.fromarray(array))

    def read_many(self, indices: Sequence[int]) -> Sequence[Any]:
        """Load several images' bytes, with their targets; in place of one that fails, its exception."""
        found: list[Any] = []
        pieces, failures = ([], {}) if self._remote is None else self._remote.read(indices)
        for position, index in enumerate(map(int, indices)):
            try:
                if position in failures:
                    raise failures[position]
                data = self._files.read(index) if self._remote is None else bytes(pieces[position])
                found.append((data, int(self._targets[index])))
            except Exception as error:
                found.append(error)
        return found

    def storage_blocks(self, size: int) -> Array:
        """Return the first of each run of images that lie side by side."""
        return runs_of(0, len(self), size) if self.shards is None else self.shards.blocks(size)

    def stream(
        self,
        *,
        buffer: SupportsIndex = 1000,
        seed: SupportsIndex | None = None,
        shuffle: bool = True,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> Stream:
        """Return a :class:`foreload.Stream`: an iterable dataset that reads in the order of storage.

        Its buffer holds encoded files; they are decoded when they leave it.
        """
        return Stream(self, buffer=buffer, seed=seed, shuffle=shuffle, num_replicas=num_replicas, rank=rank)

    def batch_assembly(
        self, spec: BatchOptions, key: tuple[int, int], buffers: BatchMemory
    ) -> ImageAssembly | None:
        """Make whole batches natively for foreload's DataLoader, unless a subclass loads samples itself."""
        own = type(self).__getitems__ is ImageDataset.__getitems__ and self.__getitems__ is not None
        if not own or not isinstance(self.transform, ImageTransform):
            return None
        return self.image_assembly(self.transform, key, buffers, spec)

    def image_assembly(
        self,
        transform: ImageTransform,
        key: tuple[int, int],
        buffers: BatchMemory,
        spec: BatchOptions | None = None,
    ) -> ImageAssembly:
        """Return what makes the batches of one epoch; a subclass may add a cache to it."""
        return ImageAssembly(
            Images(self._files, self._targets, self._remote, self.path), transform, key, buffers, spec
        )

    @property
    def is_remote(self) -> bool:
        """Whether images come from a server."""
        return self._remote is not None

    def fingerprint(self) -> str:
        """Return a name of the present content of all files, for a spill folder."""
        known = hashlib.sha256()
        for part in self.shards.stamps() if self.shards is not None else map(stamp, self._all_paths()):
            known.update(part.encode())
        return known.hexdigest()

    def form_costs(self) -> Array:
        """Return what loading each image has cost; see :class:`foreload.protocol.ImageForms`."""
        costs = np.zeros((5, len(self)))
        self._files.costs(costs)
        return costs

    def prepare_sample(self, index: int, keep: Keep = "auto") -> tuple[Any, int]:
        """Load the file's bytes, or pixels, for the cache."""
        data = self.read_encoded(index)
        target = int(self._targets[index])
        return (data, target) if keep == "encoded" else (decode_image(data, self.path(index)), target)

    def finish_sample(self, index: int, prepared: tuple[Any, int]) -> tuple[Any, int]:
        """Decode and transform an image from the cache."""
        image, target = prepared
        array = decode_image(image, self.path(index)) if isinstance(image, bytes) else image
        return self.apply_transform(array), target

    def user_code(self) -> Iterable[Any]:
        """Return the transform; see :class:`foreload.protocol.UserCode`."""
        return (self.transform,)

    def _all_paths(self) -> list[str]:
        return [self.path(index) for index in range(len(self))]

    def path(self, index: int) -> str:
        """Return the file of an image; in shards ``shard:key``."""
        if self.shards is not None:
            return self.shards.name(index)
        return os.fsdecode(self._files.path(index))


def _check_room(needed: int) -> None:
    room = int(EAGER_SHARE * granted_memory())
    if needed > room:
        raise MemoryError(
            f"the images take {needed:,} bytes, which do not fit into {room:,}; use LoadingMode.CACHED, which "
            "keeps cache_size of them"
        )
