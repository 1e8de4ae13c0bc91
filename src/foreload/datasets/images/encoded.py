"""Batches of images whose files are decoded on a device: read and planned by workers, finished by the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from foreload import _native
from foreload.batch.collate import pinned
from foreload.batch.failure import EmptyBatch, SampleError, remaining_positions, replacement_positions
from foreload.batch.unfinished import UnfinishedBatch
from foreload.checks import Array
from foreload.datasets.images.batches import Failure, ImageAssembly, Images
from foreload.datasets.images.decode import decode_image
from foreload.datasets.images.decoders import Decoder, decoder_named
from foreload.datasets.images.resample import View, ViewPlan, resample
from foreload.datasets.tensor_rows import from_array
from foreload.errors import DecodeError
from foreload.normalize.normalize import Normalize
from foreload.options import LoadingMode, OnError
from foreload.order.index import positions_of, require_nonempty
from foreload.protocol import Batch, BatchMemory, BatchOptions
from foreload.record.spans import Stage
from foreload.transforms import ImageTransform, shaped

__all__ = ["EncodedAssembly", "EncodedBatch", "choose_decoder"]


def choose_decoder(decode: Any, transform: Any, mode: LoadingMode) -> Decoder | None:
    """Return the decoder of ``ImageDataset(decode=...)``; None for ``"cpu"``.

    Raises:
        ValueError, TypeError, RuntimeError: there is no such decoder, or it does not go with the other arguments.
    """
    decoder = decoder_named(decode)
    if decoder is not None:
        _check_transform(transform)
        if mode in (LoadingMode.EAGER, LoadingMode.CACHED):
            raise ValueError(
                f"loading_mode={mode} keeps decoded images in memory, decode={decode!r} decodes them each time: "
                "leave one of them out"
            )
    return decoder


def _check_transform(transform: Any) -> ImageTransform:
    if not isinstance(transform, ImageTransform):
        raise ValueError(
            "decode= on a device needs a transform of foreload.transforms, whose crops are planned before the "
            f"pixels are there, got {type(transform).__name__}: use one, or pass decode='cpu'"
        )
    if transform.color_jitter is not None:
        raise ValueError("color_jitter is done by the CPU only: leave it out, or pass decode='cpu'")
    return transform


class Recipe:
    """The transform and the decoder that all batches of an epoch are finished with.

    Args:
        transform: the transform.
        decoder: decodes on the device.
    """

    def __init__(self, transform: ImageTransform, decoder: Decoder) -> None:
        self.transform = transform
        self.decoder = decoder


class _Fields(NamedTuple):
    # Arrays stay on the CPU, where files are decoded from and plans are read; tensors are moved ahead.
    indices: Array
    targets: torch.Tensor
    flips: torch.Tensor
    lost: Array
    data: Array
    starts: Array
    plans: Array
    places: Array
    paths: list[str]
    others: torch.Tensor
    other_places: torch.Tensor
    recipe: Recipe


class EncodedBatch(_Fields, UnfinishedBatch):
    """A batch of images, most of them as the bytes of their files.

    Attributes:
        indices: of the samples (int64).
        targets: of the samples (int64).
        flips: whether each was drawn mirrored (bool), and is not yet.
        lost: the positions of samples that could not be read (int64), which are recorded already.
        data: the files that are left to the device, one after another (uint8).
        starts: file ``i`` is ``data[starts[i]:starts[i + 1]]``.
        plans: what is taken of each (int32): the fields of :class:`foreload.datasets.images.resample.ViewPlan`.
        places: the position in the batch of each.
        paths: the name of each.
        others: the images that the CPU has made (uint8, batch x values), by the transform without its flips.
        other_places: their positions in the batch (int64).
        recipe: what the batch is finished with.
    """

    __slots__ = ()

    def finish(self, on_error: OnError, errors: list[SampleError]) -> Any:
        """See :class:`foreload.batch.unfinished.UnfinishedBatch`."""
        transform, device = self.recipe.transform, self.targets.device
        layout = torch.channels_last if transform.channels_last else torch.contiguous_format
        shape = transform.shape(len(self.indices))
        images = torch.empty(shape, dtype=torch.uint8, device=device, memory_format=layout)
        if len(self.others):
            rows = shaped(replace(transform, normalize=False), self.others.view(-1), len(self.others))
            images.index_copy_(0, self.other_places, rows)
        failures: list[Failure] = []
        views: list[View] = []
        for number, decoded in enumerate(self._decode(device)):
            plan, place = ViewPlan(*map(int, self.plans[number])), int(self.places[number])
            try:
                image, plan = (decoded, plan) if decoded is not None else self._decode_here(number, plan, device)
            except DecodeError as error:
                failures.append((place, error))
                continue
            mirrored = plan.mirrored if not transform.flip_on_device else 0
            views.append(View(image, plan._replace(mirrored=mirrored), place))
        resample(views, images)
        batch = [images, self.targets, *([self.flips] if transform.flip_on_device else [])]
        if failures or len(self.lost):
            rows = torch.tensor(self._remaining(failures, on_error, errors), device=device)
            batch = [field[rows] for field in batch]
            batch[0] = batch[0].contiguous(memory_format=layout)
        if transform.normalize:
            batch[0] = _normalizer(transform.mean, transform.std, transform.channels_last).apply(batch[0])
        return batch

    def _remaining(self, failures: list[Failure], on_error: OnError, errors: list[SampleError]) -> list[int]:
        """Record the samples that the device failed with, and return the positions that make up the batch."""
        if failures:
            names = dict(zip(self.indices[self.places].tolist(), self.paths, strict=True))
            remaining_positions(failures, self.indices, on_error, errors, names.__getitem__)
        lost = {*self.lost.tolist(), *(position for position, _ in failures)}
        chosen = replacement_positions([position in lost for position in range(len(self.indices))], on_error)
        if not chosen:
            raise EmptyBatch
        return chosen

    def _files(self) -> list[torch.Tensor]:
        data = from_array("data", self.data)
        return [data[begin:end] for begin, end in zip(self.starts, self.starts[1:], strict=False)]

    def _decode(self, device: torch.device) -> Sequence[torch.Tensor | None]:
        """Decode the files on the device; None for those that are to be decoded here."""
        files, decoder = self._files(), self.recipe.decoder
        if not files:
            return []
        try:
            found = list(decoder.decode(files, device))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            found = [_decode_alone(decoder, file, device) for file in files]
        shapes = [ViewPlan(*map(int, plan)).stored_shape for plan in self.plans]
        # A decoder that turns images upright, or shrinks them, would get the wrong crop.
        return [
            image if image is not None and tuple(image.shape) == shape and image.dtype is torch.uint8 else None
            for image, shape in zip(found, shapes, strict=True)
        ]

    def _decode_here(self, number: int, plan: ViewPlan, device: torch.device) -> tuple[torch.Tensor, ViewPlan]:
        """Decode a file on the CPU, whose pixels or error are the answer where the device has none."""
        path = self.paths[number]
        pixels = decode_image(self.data[self.starts[number] : self.starts[number + 1]].tobytes(), path)
        if pixels.shape[:2] != (plan.height, plan.width):
            raise DecodeError(
                f"{path}: its header says {plan.width} x {plan.height} pixels, but it has "
                f"{pixels.shape[1]} x {pixels.shape[0]}; encode it again"
            )
        image = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
        return image.to(device), plan._replace(orientation=1)


def _decode_alone(decoder: Decoder, file: torch.Tensor, device: torch.device) -> torch.Tensor | None:
    try:
        return decoder.decode([file], device)[0]
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return None


@cache
def _normalizer(mean: tuple[float, ...], std: tuple[float, ...], channels_last: bool) -> Normalize:
    return Normalize(mean=mean, std=std, channels_last=channels_last)


class EncodedAssembly:
    """Batches of image files and the plans for them; see :class:`foreload.protocol.Assembly`.

    What is no JPEG of the usual kind is decoded here, as :class:`ImageAssembly` does it.

    Args:
        images: what the batches are made of.
        read: reads some images' files: ``(bytes, target)`` of each, or its exception.
        transform: applied to each image.
        decoder: decodes on the device.
        key: (seed, epoch) of the transform.
        buffers: memory for the batches.
        spec: of the loader.
    """

    depth: int | None = None

    def __init__(
        self,
        images: Images,
        read: Callable[[Sequence[int]], Sequence[Any]],
        transform: ImageTransform,
        decoder: Decoder,
        key: tuple[int, int],
        buffers: BatchMemory,
        spec: BatchOptions,
    ) -> None:
        self._images = images
        self._recipe = Recipe(_check_transform(transform), decoder)
        self._buffers = buffers
        self._spec = spec
        plain = replace(transform, normalize=False)
        self._files = _Files(ImageAssembly(images, plain, key, buffers), read, plain, key)

    def start(self, indices: Any) -> Batch:
        """See :class:`~foreload.protocol.Assembly`."""
        where = require_nonempty(positions_of(indices, len(self._images.targets)))
        work = _Work(self._files, where)

        def take() -> Any:
            if work.failures:  # which are recorded here; what takes their places is chosen on the device
                failures, spec = sorted(work.failures.items()), self._spec
                remaining_positions(failures, where, spec.on_error, spec.errors, self._images.path)
            return pinned(self._batch(where, work), self._spec.pin_device)

        return Batch(_native.PythonJob(1, 1, work.run, lambda: None), take)

    def _batch(self, where: Array, work: _Work) -> EncodedBatch:
        places, others = sorted(work.encoded), sorted(work.decoded)
        files = [work.encoded[place] for place in places]
        starts = np.cumsum([0, *(len(data) for data, _ in files)])
        memory = self._buffers.take_bytes(max(1, int(starts[-1])))[: starts[-1]]
        for (data, _), begin, end in zip(files, starts, starts[1:], strict=False):
            memory[begin:end] = np.frombuffer(data, np.uint8)
        memory.flags.writeable = False  # what may be written to is copied when the batch is moved
        rows = [work.decoded[place][0] for place in others]
        flips = torch.zeros(len(where), dtype=torch.bool, device="cpu")
        flips[places] = torch.from_numpy(np.array([plan.mirrored for _, plan in files], np.bool_))
        flips[others] = torch.from_numpy(np.array([work.decoded[place][1] for place in others], np.bool_))
        return EncodedBatch(
            where,
            torch.from_numpy(self._images.targets[where]),
            flips,
            np.array(sorted(work.failures), np.int64),
            memory,
            starts,
            np.array([plan for _, plan in files], np.int32).reshape(-1, len(ViewPlan._fields)),
            np.array(places, np.int64),
            [self._images.path(int(where[place])) for place in places],
            torch.stack(rows) if rows else torch.empty(0, 0, dtype=torch.uint8, device="cpu"),
            torch.from_numpy(np.array(others, np.int64)),
            self._recipe,
        )


class _Files:
    """Reads images, and decodes those that a device cannot."""

    def __init__(
        self,
        assembly: ImageAssembly,
        read: Callable[[Sequence[int]], Sequence[Any]],
        transform: ImageTransform,
        key: tuple[int, int],
    ) -> None:
        self.read = read
        self._assembly = assembly
        self._transform = transform
        self._key = key

    def plan(self, index: int, data: bytes) -> ViewPlan | None:
        """Plan the view of an image by its header; None if it is to be decoded here."""
        plan = _native.plan_view(self._transform.native, data, *self._key, index)
        return None if plan is None else ViewPlan(*plan)

    def decode(self, index: int, data: bytes) -> tuple[torch.Tensor, bool]:
        """Return an image as the CPU makes it, and whether it is still to be mirrored."""
        height, width = self._transform.size
        memory = torch.empty(3 * height * width, dtype=torch.uint8, device="cpu")
        flips = torch.zeros(1, dtype=torch.bool, device="cpu") if self._transform.flip_on_device else None
        given = [np.frombuffer(bytearray(data), np.uint8)]
        job = self._assembly.make(np.array([index]), memory, flips, given)
        job.run_here()
        for _, error in job.failures():
            raise error
        return memory, flips is not None and bool(flips[0])


class _Work:
    """The work on one batch: what was made of each position, or why it could not be."""

    def __init__(self, files: _Files, indices: Array) -> None:
        self._files = files
        self._indices = indices
        self.encoded: dict[int, tuple[bytes, ViewPlan]] = {}
        self.decoded: dict[int, tuple[torch.Tensor, bool]] = {}
        self.failures: dict[int, BaseException] = {}

    def run(self, begin: int, end: int) -> None:
        try:
            with _native.Measure(Stage.read, len(self._indices)) as measure:
                found = self._files.read(self._indices.tolist())
                measure.bytes = sum(len(sample[0]) for sample in found if isinstance(sample, tuple))
        except Exception as error:  # no image of the batch can be read
            found = [error] * len(self._indices)
        for position, (index, sample) in enumerate(zip(self._indices.tolist(), found, strict=True)):
            try:
                if isinstance(sample, Exception):
                    raise sample
                self._make(position, index, sample[0])
            except Exception as error:
                self.failures[position] = error

    def _make(self, position: int, index: int, data: bytes) -> None:
        plan = self._files.plan(index, data)
        if plan is None:
            self.decoded[position] = self._files.decode(index, data)
        else:
            self.encoded[position] = data, plan
