"""NVIDIA DALI on the CPU: fn.readers.file, fn.decoders.image_random_crop, fn.resize with antialiasing.

https://docs.nvidia.com/deeplearning/dali: device_id=None, num_threads as many as cores, last batch partial.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.peers.adapters import Epochs, loads
from benchmarks.peers.work import CORES, Work
from benchmarks.peers.workloads.images import MEAN, STD
from nvidia.dali import fn, pipeline_def, types


def _epochs(pipeline: Any, work: Work) -> Epochs:
    """Epochs of a built pipeline; the last batch without what pads it."""

    def epoch(number: int) -> Iterator[Any]:
        left = work.count
        while left > 0:
            parts = [part.as_array()[:left] for part in pipeline.run()]
            left -= len(parts[0])
            yield (parts[0], parts[1].reshape(-1)) if len(parts) > 1 else parts[0]

    return Epochs(epoch)


@pipeline_def  # type: ignore[untyped-decorator]
def _images(work: Work) -> Any:
    train = work.family == "train"
    size, normalize = work.options["size"], work.options["normalize"]
    jpegs, numbers = fn.readers.file(
        files=work.files,
        labels=list(range(work.count)),
        random_shuffle=train,
        initial_fill=1024,
        pad_last_batch=True,
        name="reader",
    )
    if train:
        images = fn.decoders.image_random_crop(jpegs, device="cpu", random_area=[0.08, 1.0])
        images = fn.resize(images, size=[size, size], interp_type=types.INTERP_LINEAR, antialias=True)
        mirror = fn.random.coin_flip()
    else:
        images = fn.decoders.image(jpegs, device="cpu")
        images = fn.resize(images, resize_shorter=size * 8 // 7, interp_type=types.INTERP_LINEAR, antialias=True)
        mirror = 0
    scale = {"mean": (255 * MEAN).tolist(), "std": (255 * STD).tolist()} if normalize else {}
    images = fn.crop_mirror_normalize(
        images,
        crop=[size, size],
        mirror=mirror,
        dtype=types.FLOAT if normalize else types.UINT8,
        output_layout="CHW" if normalize else "HWC",
        **scale,
    )
    return images, numbers


@loads("train", "CPU, antialiased")
def train(work: Work) -> Any:
    pipeline = _images(work, batch_size=work.batch_size, num_threads=CORES, device_id=None, seed=1)
    pipeline.build()
    return _epochs(pipeline, work)


loads("validation", "CPU, antialiased")(train)


@pipeline_def  # type: ignore[untyped-decorator]
def _files(work: Work) -> Any:
    content, _ = fn.readers.file(files=work.files, random_shuffle=True, initial_fill=1024, pad_last_batch=True)
    return content


@loads("files", "CPU, a buffer of 1,024")
def files(work: Work) -> Any:
    pipeline = _files(work, batch_size=work.batch_size, num_threads=CORES, device_id=None, seed=1)
    pipeline.build()
    return _epochs(pipeline, work)
