"""Decoders of JPEG files on a GPU: those of torchvision, nvImageCodec and DALI, behind one protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from foreload.forks.per_process import PerProcess

__all__ = ["DALI", "Decoder", "NvImageCodec", "TorchVision", "decoder_named"]


@runtime_checkable
class Decoder(Protocol):
    """Decodes JPEG files on a device. It is pickled with its dataset, without what is open."""

    def decode(self, files: Sequence[torch.Tensor], device: torch.device) -> Sequence[torch.Tensor | None]:
        """Return the pixels of each file; None for one that it cannot decode.

        It is called in the thread of the loop. What it returns must be complete for work that is queued afterwards
        on the stream that is current, and that stream's work with it may be under way when it is freed.

        Args:
            files: uint8, on the CPU: whole JPEGs of the usual kind (YCbCr, 8 bits, baseline or progressive).
            device: where the pixels are to be.

        Returns:
            uint8 of 3 x height x width (RGB), with any strides, as stored: not turned by Exif.

        Raises:
            RuntimeError: some file cannot be decoded; each is then tried by itself.
        """
        ...


def _check_cuda(device: torch.device, name: str) -> torch.device:
    if device.type != "cuda":
        raise ValueError(
            f"{name} decodes on CUDA devices, not on {str(device)!r}: pass device='cuda', or decode='cpu'"
        )
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)


class TorchVision:
    """The decoder of ``torchvision.io.decode_jpeg(device="cuda")``, which is nvJPEG.

    It repeats chroma samples where the CPU path interpolates between them.
    """

    def decode(self, files: Sequence[torch.Tensor], device: torch.device) -> Sequence[torch.Tensor | None]:
        """See :class:`Decoder`."""
        device = _check_cuda(device, "torchvision")
        io = import_module("torchvision.io")
        # It allocates its results for the current stream, but writes them on a stream of its own, which does not
        # wait for that: memory that was freed while the current stream still works with it would be overwritten.
        torch.cuda.current_stream(device).synchronize()
        found: Sequence[torch.Tensor] = io.decode_jpeg(list(files), mode=io.ImageReadMode.RGB, device=device)
        return found


class NvImageCodec:
    """The decoder of nvImageCodec, with interpolated chroma as on the CPU."""

    def __init__(self) -> None:
        self._opened = PerProcess[Any]()

    def decode(self, files: Sequence[torch.Tensor], device: torch.device) -> Sequence[torch.Tensor | None]:
        """See :class:`Decoder`. On the CPU too, by its decoders for that."""
        codec = import_module("nvidia.nvimgcodec")
        on_gpu = device.type != "cpu"
        device = _check_cuda(device, "nvImageCodec") if on_gpu else device
        decoder, held = self._opened.get(lambda: (_open_codec(codec, device), []), device)
        parameters = codec.DecodeParams(apply_exif_orientation=False)
        sources = [codec.CodeStream(file.numpy()) for file in files]
        if not on_gpu:
            return [
                None if image is None else _from_host(image)
                for image in decoder.decode(sources, params=parameters)
            ]
        stream = torch.cuda.current_stream(device)
        # Its memory is not torch's: the results before these are freed only now, when the work with them is over.
        stream.synchronize()
        held.clear()
        images = decoder.decode(sources, params=parameters, cuda_stream=stream.cuda_stream)
        held.extend(images)
        is_host = [
            image is not None and image.buffer_kind == codec.ImageBufferKind.STRIDED_HOST for image in images
        ]
        return [
            None
            if image is None
            else (_from_host(image).to(device) if here else _planes(torch.as_tensor(image, device=device)))
            for image, here in zip(images, is_host, strict=True)
        ]


def _open_codec(codec: Any, device: torch.device) -> Any:
    options = ":fancy_upsampling=1"
    if device.type == "cpu":
        return codec.Decoder(
            device_id=codec.NVIMGCODEC_DEVICE_CPU_ONLY, backends=[codec.Backend(codec.CPU_ONLY)], options=options
        )
    return codec.Decoder(device_id=device.index, options=options)


def _from_host(image: Any) -> torch.Tensor:
    return _planes(torch.from_numpy(np.array(image)))


class DALI:
    """The decoder of DALI (``fn.decoders.image``), with interpolated chroma as on the CPU.

    Args:
        num_threads: of the CPU, for the parts of the work that it does.
    """

    def __init__(self, num_threads: int = 4) -> None:
        self.num_threads = num_threads
        self._opened = PerProcess[Any]()

    def decode(self, files: Sequence[torch.Tensor], device: torch.device) -> Sequence[torch.Tensor | None]:
        """See :class:`Decoder`. On the CPU too, where it is DALI's CPU decoder."""
        if device.type != "cpu":
            device = _check_cuda(device, "DALI")
        pipeline = self._opened.get(lambda: _open_pipeline(self.num_threads, len(files), device), device)
        if pipeline.max_batch_size < len(files):
            self._opened.pop(device)
            pipeline = self._opened.get(lambda: _open_pipeline(self.num_threads, len(files), device), device)
        # Bound to the current stream: complete for what is queued there, and freed in its order.
        stream = () if device.type == "cpu" else (torch.cuda.current_stream(device),)
        try:
            (images,) = pipeline.run(*stream, files=[file.numpy() for file in files])
        except RuntimeError:
            self._opened.pop(device)  # a pipeline does not go on after an error
            raise
        return [_planes(from_dlpack(image)) for image in images]


def _open_pipeline(num_threads: int, batch_size: int, device: torch.device) -> Any:
    dali, fn = import_module("nvidia.dali"), import_module("nvidia.dali.fn")
    on_gpu = device.type == "cuda"
    pipeline = dali.Pipeline(
        batch_size, num_threads, device.index if on_gpu else None, prefetch_queue_depth=1, exec_dynamic=True
    )
    with pipeline:
        files = fn.external_source(name="files", ndim=1, dtype=import_module("nvidia.dali.types").UINT8)
        pipeline.set_outputs(
            fn.decoders.image(
                files,
                device="mixed" if on_gpu else "cpu",
                adjust_orientation=False,
                jpeg_fancy_upsampling=True,
            )
        )
    pipeline.build()
    return pipeline


def _planes(image: torch.Tensor) -> torch.Tensor:
    return image.permute(2, 0, 1)


def _has_torchvision() -> bool:
    try:
        # Its CPU builds have no such attribute.
        return _has_module("torchvision") and hasattr(import_module("torchvision").version, "cuda")
    except (ImportError, RuntimeError):  # of another version of torch
        return False


def _has_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # not even its parent
        return False


# The packages have the release of CUDA in their names, which must be torch's.
_CUDA = "13" if (torch.version.cuda or "").startswith("13.") else "12"

_DECODERS: dict[str, tuple[type[Any], Callable[[], bool], str]] = {
    "nvimagecodec": (NvImageCodec, lambda: _has_module("nvidia.nvimgcodec"), f"nvidia-nvimgcodec-cu{_CUDA}[all]"),
    "torchvision": (TorchVision, _has_torchvision, "torchvision (its CUDA build)"),
    "dali": (DALI, lambda: _has_module("nvidia.dali"), f"nvidia-dali-cuda{_CUDA}0"),
}


def decoder_named(decode: Any) -> Decoder | None:
    """Return the decoder of ``ImageDataset(decode=...)``; None for ``"cpu"``.

    >>> decoder_named("cpu"), decoder_named(DALI(2)).num_threads
    (None, 2)

    Raises:
        ValueError, TypeError: it is neither a name of one nor a decoder.
        RuntimeError: it is not installed.
    """
    if not isinstance(decode, str):
        if isinstance(decode, type) or not isinstance(decode, Decoder):
            raise TypeError(f"decode must be a name or have a method decode(files, device), got {decode!r}")
        return decode
    if decode == "cpu":
        return None
    if decode not in ("cuda", *_DECODERS):
        raise ValueError(f"decode must be one of cpu, cuda, {', '.join(_DECODERS)}, or a decoder, got {decode!r}")
    wanted = list(_DECODERS) if decode == "cuda" else [decode]
    for make, is_there, _ in map(_DECODERS.__getitem__, wanted):
        if is_there():
            decoder: Decoder = make()
            return decoder
    packages = " or ".join(_DECODERS[name][2] for name in wanted)
    raise RuntimeError(f"decode={decode!r} needs {packages}: install it, or pass decode='cpu'")
