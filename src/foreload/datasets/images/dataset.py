"""Images in files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from foreload import _native, transforms
from foreload.batch.buffers import Buffers, memory_for_a_batch
from foreload.batch.collate import is_default_collate
from foreload.batch.collated import Collated, own_getitems
from foreload.batch.unfinished import UnfinishedBatches
from foreload.cache.fingerprint import fingerprint_with, stamp
from foreload.checks import Array, check_bool, check_callable, check_index, check_int, inherits
from foreload.datasets.direct import DirectReads
from foreload.datasets.folders import IMAGES, Labels, list_files
from foreload.datasets.images.batches import IMAGE_NUMBERS, ImageAssembly, Images
from foreload.datasets.images.cache import ImageCache, check_room, warn_of_nothing_kept
from foreload.datasets.images.decode import decode_image
from foreload.datasets.images.decoders import Decoder
from foreload.datasets.images.encoded import EncodedAssembly, choose_decoder
from foreload.datasets.images.transform import apply_transform, key_of_batch, key_of_loader, makes_samples
from foreload.datasets.stream import Streamable, runs_of
from foreload.datasets.tar import Shards
from foreload.datasets.tar.remote import RemoteSamples
from foreload.datasets.tar.shards import are_shards
from foreload.errors import DecodeError
from foreload.options import Keep, LoadingMode
from foreload.protocol import BatchMemory, BatchOptions, ImageForms, SampleSource, UserCode
from foreload.remote.url import local_path, warn_of_no_urls
from foreload.transforms.arrays import size_pair

__all__ = ["ImageDataset"]

Transform = Callable[[Any], Any]

# Attributes that change no sample.
_NOT_IN_SAMPLES = (
    *("_files", "_paths", "_remote", "shards", "_direct_io"),
    *("_cache", "cache_size", "loading_mode", "_decoder", "finishes_on_device"),
)

# Images that are loaded at a time at the start, from files and from a server.
_TOGETHER, _FETCHED_TOGETHER = 16, 256


class ImageDataset(
    DirectReads, Dataset[tuple[Any, ...]], Streamable, ImageForms, UnfinishedBatches, SampleSource, UserCode
):
    """Images in files, with labels: ``(image, target)``.

    With a transform of :mod:`foreload.transforms` (or none), a whole batch is read, decoded, cropped, resized
    and stored in one native call, for JPEG. PNG, WebP, BMP, GIF, TIFF and unusual JPEGs are decoded by Pillow
    in between. Images come upright (Exif, XMP), as RGB, whatever they were (grey, alpha, CMYK, 16 bits;
    floats and 32-bit integers, whose white is not known, are refused with a DecodeError).

    Images are kept decoded, once for all threads and worker processes, and never change a result. An image takes
    3 x height x width bytes of the transform's result, before it is normalised, if that is the same in each epoch
    (150,528 at 224 x 224); otherwise 1.5 bytes per pixel of the file's image, or 3 if that is no JPEG with colours
    at half the resolution (4:2:0); and up to 192 more. ``LAZY`` and ``CACHED`` take at most half of the memory,
    and read files again that change. Random crops of more images than ``LAZY`` keeps begin as the bytes of their
    files, and are decoded whole when they are used again. A loader's own ``cache`` takes the place of this one.

    Args:
        data_path: a folder of class folders, a flat folder, or a list of files; or tar shards, such as
            ``foreload pack`` makes: their folder, ``"train-{000..099}.tar"``, or a list of them. Class folders are
            listed as torchvision's ImageFolder does (``.gif`` does not count); hidden files and folders never are.
        image_size: (height, width) or one number for both; what the default transform resizes to.
        transform: one of :mod:`foreload.transforms`; an Albumentations transform (called with ``image=`` an
            array of height x width x 3); or any callable that takes a Pillow image, such as torchvision's.
            By default the image is resized and normalised as for ImageNet.
        loading_mode: which images are kept in memory: ``LAZY`` the most recently used ones, ``CACHED`` those that
            are used first, ``EAGER`` all, which are loaded now; ``STREAMING`` none.
        cache_size: how many images ``LAZY`` and ``CACHED`` keep at most; 0 keeps none.
        labels: an int or str per file, for a list or a flat folder (in the order of the file names).
        decode: where JPEGs are decoded: ``"cpu"``; or on the device of a loader with ``device="cuda"``, by
            ``"nvimagecodec"``, ``"torchvision"``, ``"dali"``, the first of them that is installed (``"cuda"``), or
            a :class:`foreload.datasets.images.decoders.Decoder`. Crops and flips are the same, pixels nearly; what
            else is different, and which files and loaders decode on the CPU all the same, is in docs/gpu.md.
        direct_io: as for :class:`~foreload.FileDataset`.
        storage: for shards that are named by URLs (``s3://``, ``gs://``, ``http://`` ...): options of their
            storage, as :class:`foreload.remote.fetch.Fetch` takes them.
        index_folder: as for :class:`~foreload.TarDataset`.

    Attributes:
        classes: the name of each target, sorted; of labels that are ints, the numbers from 0 to the largest as
            text (none if one is above a million). Empty if there are no labels.
        class_to_idx: from name to target: the position in ``classes``.
        targets: the target of every image; -1 if none was given.

    Raises:
        FileNotFoundError, NotADirectoryError: ``data_path`` does not exist.
        ValueError, TypeError: an argument is invalid; the message names it.
        MemoryError: ``EAGER`` needs more memory than this process may use, even for the bytes of the files.

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

    # What messages call the argument with the files.
    _files_argument = "data_path"

    def __init__(
        self,
        data_path: str | Path | Sequence[str | Path],
        image_size: int | tuple[int, int] = (224, 224),
        transform: Transform | None = None,
        loading_mode: LoadingMode = LoadingMode.LAZY,
        cache_size: int = 1000,
        *,
        labels: Labels | None = None,
        decode: str | Decoder = "cpu",
        direct_io: bool = False,
        storage: dict[str, Any] | None = None,
        index_folder: str | Path | None = None,
    ) -> None:
        check_callable("transform", transform)
        cache_size = check_int("cache_size", cache_size, 0)
        check_bool("direct_io", direct_io)
        data_path = local_path(data_path)
        self.shards = Shards(data_path, storage, index_folder, direct=direct_io) if are_shards(data_path) else None
        self._paths: list[bytes] = []
        if self.shards is not None:
            if labels is not None:
                raise ValueError("labels: shards have their own, in their cls members; leave labels= out")
            self._targets, self.classes = self.shards.labels, self.shards.classes
        else:
            paths, self._targets, self.classes = list_files(data_path, labels, IMAGES, self._files_argument)
            self._paths = [os.fsencode(path) for path in paths]
            warn_of_no_urls(storage=storage, index_folder=index_folder)
        self.class_to_idx = {name: index for index, name in enumerate(self.classes)}
        size = size_pair(image_size, "image_size")
        self.transform = transforms.resize(size) if transform is None else transform
        self.loading_mode = LoadingMode(loading_mode)
        self.cache_size = cache_size
        self._decoder = choose_decoder(decode, self.transform, self.loading_mode)
        self.finishes_on_device = self._decoder is not None
        self._direct_io = direct_io
        self._files: _native.ImageFiles = self._open()
        self.direct_io = direct_io  # which warns if that is not possible
        self._cache = None
        if not inherits(self, ImageDataset, "read_encoded", "prepare_sample", "finish_sample"):
            warn_of_nothing_kept(self, self.loading_mode)
        elif self._decoder is None:  # native code reads the images
            self._cache = ImageCache.of(len(self._files), self.loading_mode, cache_size, in_files=not self.shards)
        self._fill()

    def _open(self) -> _native.ImageFiles:
        self._remote: RemoteSamples | None = None
        if self.shards is not None:
            extents = self.shards.members([extension[1:] for extension in IMAGES])
            check_room(self.loading_mode, extents[:, 2])
            self._remote = self.shards.remote(extents, 0)
            files: _native.ImageFiles = self.shards.files(extents, direct=self.direct_io, kind=_native.ImageFiles)
            return files
        check_room(self.loading_mode, map(os.path.getsize, map(os.fsdecode, self._paths)))
        paths, self._paths = self._paths, []
        return _native.ImageFiles(paths, 0, direct=self.direct_io)

    def _fill(self) -> None:
        if self._cache is None or self.loading_mode is not LoadingMode.EAGER:
            return
        buffers = Buffers()

        def load(indices: Array) -> None:
            # A damaged image is an error where it is asked for; a loader may skip it.
            if isinstance(self.transform, transforms.ImageTransform):
                for _, failure in self.image_assembly(self.transform, (0, 0), buffers).load(indices):
                    if not isinstance(failure, DecodeError):
                        raise failure
                return
            for index in map(int, indices):
                with contextlib.suppress(DecodeError):
                    self._decode(index)

        self._cache.fill(load, _TOGETHER if self._remote is None else _FETCHED_TOGETHER)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the list of files; kept images go along to a process that is being spawned, and to no other."""
        paths = [] if self.shards is not None else [self._files.path(i) for i in range(len(self._files))]
        return {**self.__dict__, "_files": None, "_remote": None, "_paths": paths}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the files again, and load what is to be there from the start."""
        self.__dict__.update(state)
        self._files = self._open()
        self._fill()

    @property
    def targets(self) -> list[int]:
        """The target of every image."""
        return list(self._targets.tolist())

    @property
    def samples(self) -> list[tuple[str, int]]:
        """The file and the target of every image."""
        return [(self.path(i), target) for i, target in enumerate(self.targets)]

    def __len__(self) -> int:
        """Count the images."""
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """Load one image; without a loader, random numbers come from torch's global generator."""
        position = check_index(index, len(self._files), "images")  # a subclass may have another length
        if not inherits(self, ImageDataset, "prepare_sample", "finish_sample"):
            return self.finish_sample(position, self.prepare_sample(position))
        if isinstance(self.transform, transforms.ImageTransform) and inherits(self, ImageDataset, "read_encoded"):
            return self._load_batch([position])[0]
        return self._sample(position, self._decode(position), int(self._targets[position]))

    @own_getitems
    def __getitems__(self) -> Callable[[Sequence[int]], Sequence[tuple[Any, ...]]] | None:
        """Load a batch, with nothing left to collate; None if Python transforms samples or a subclass loads."""
        own = inherits(self, ImageDataset, "__getitem__", "read_encoded", "prepare_sample", "finish_sample")
        return self._load_batch if own and isinstance(self.transform, transforms.ImageTransform) else None

    def _load_batch(self, indices: Sequence[int]) -> Sequence[tuple[Any, ...]]:
        assert isinstance(self.transform, transforms.ImageTransform)
        if not len(indices):
            return []
        memory = memory_for_a_batch()
        key = key_of_batch(self, ImageDataset, self.transform)
        batch = self.image_assembly(self.transform, key, memory).start(indices)
        batch.job.run_here()
        images, *others = batch.take()
        return Collated([memory.handed_over(images), *others], len(indices), IMAGE_NUMBERS)

    def _sample(self, index: int, pixels: Array, target: int) -> tuple[Any, ...]:
        image = apply_transform(self.transform, pixels, key_of_loader(self, ImageDataset), index)
        has_flips = isinstance(self.transform, transforms.ImageTransform) and self.transform.flip_on_device
        return (image, target, False) if has_flips else (image, target)  # mirrored already, by itself

    def _decode(self, index: int) -> Array:
        if self._cache is None:
            return decode_image(self.read_encoded(index), self.path(index))
        read = self.read_encoded if self.is_remote else None
        return self._cache.decode(self._files, index, self.path(index), read)

    def read_encoded(self, index: int) -> bytes:
        """Read the bytes of an image's file."""
        if self._remote is None:
            return self._files.read(index)
        (piece,), failures = self._remote.read([index])
        if failures:
            raise failures[0]
        return bytes(piece)

    def read_many(self, indices: Sequence[int]) -> Sequence[Any]:
        """Load several images' bytes, with their targets; in place of one that fails, its exception."""
        found: list[Any] = []
        remote = self._remote if inherits(self, ImageDataset, "read_encoded", "prepare_sample") else None
        pieces, failures = ([], {}) if remote is None else remote.read(indices)
        for position, index in enumerate(map(int, indices)):
            try:
                if position in failures:
                    raise failures[position]
                found.append(
                    self.prepare_sample(index, "encoded")
                    if remote is None
                    else (bytes(pieces[position]), int(self._targets[index]))
                )
            except Exception as error:
                found.append(error)
        return found

    def storage_blocks(self, size: int) -> Array:
        """Return the first of each run of images that lie side by side."""
        return runs_of(0, len(self), size) if self.shards is None else self.shards.blocks(size)

    def batch_assembly(
        self, spec: BatchOptions, key: tuple[int, int], buffers: BatchMemory
    ) -> ImageAssembly | EncodedAssembly | None:
        """Make whole batches natively for foreload's DataLoader, unless a subclass loads samples itself."""
        own = makes_samples(self, ImageDataset)
        own = own and (spec.cache is None or len(self) == len(self._files))  # a cache has a place for each sample
        if not own or not isinstance(self.transform, transforms.ImageTransform):
            return None
        is_plain = spec.cache is None and is_default_collate(spec.collate_fn)
        if self._decoder is None or spec.device is None or not is_plain:
            return self.image_assembly(self.transform, key, buffers, spec)
        return EncodedAssembly(self._images, self.read_many, self.transform, self._decoder, key, buffers, spec)

    def image_assembly(
        self,
        transform: transforms.ImageTransform,
        key: tuple[int, int],
        buffers: BatchMemory,
        spec: BatchOptions | None = None,
    ) -> ImageAssembly:
        """Return what makes the batches of one epoch."""
        return ImageAssembly(self._images, transform, key, buffers, spec, self._cache)

    @property
    def _images(self) -> Images:
        return Images(self._files, self._targets, self._remote, self.path)

    @property
    def is_remote(self) -> bool:
        """Whether images come from a server."""
        return self._remote is not None

    def fingerprint(self) -> str:
        """Return a name of what a loader's cache keeps: of files, targets, and what subclasses add."""
        stamps = (stamp(path) for path, _ in self.samples) if self.shards is None else self.shards.stamps()
        own = inherits(self, ImageDataset, "__getitem__", "prepare_sample", "read_encoded")
        return fingerprint_with(self, stamps, without=[*_NOT_IN_SAMPLES, *(["transform"] if own else [])])

    def form_costs(self) -> Array:
        """Return what loading each image has cost; see :class:`foreload.protocol.ImageForms`."""
        costs = np.zeros((5, max(len(self), len(self._files))))
        self._files.costs(costs[:, : len(self._files)])
        return costs[:, : len(self)]

    def prepare_sample(self, index: int, keep: Keep = "auto") -> tuple[Any, int]:
        """Load the file's bytes, or pixels, for the cache."""
        data = self.read_encoded(index)
        target = int(self._targets[index])
        return (data, target) if keep == "encoded" else (decode_image(data, self.path(index)), target)

    def finish_sample(self, index: int, prepared: tuple[Any, int]) -> tuple[Any, ...]:
        """Decode and transform an image from the cache."""
        image, target = prepared
        pixels = decode_image(image, self.path(index)) if isinstance(image, bytes) else image
        return self._sample(index, pixels, target)

    def user_code(self) -> Iterable[Any]:
        """Return the transform; see :class:`foreload.protocol.UserCode`."""
        return (self.transform,)

    def path(self, index: int) -> str:
        """Return the file of an image; in shards ``shard:key``."""
        return os.fsdecode(self._files.path(index)) if self.shards is None else self.shards.name(index)
