"""Stand-ins for decoders of a GPU."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image


class ByPillow:
    """Whole images as they are stored, decoded by Pillow: the pixels that the CPU path crops from.

    Args:
        fails: what it does about progressive and damaged files: ``"none"`` returns None, ``"raise"`` raises.

    Attributes:
        counts: the number of files in each call.
    """

    def __init__(self, fails: str = "none") -> None:
        self.fails = fails
        self.counts: list[int] = []

    def decode(self, files: Sequence[torch.Tensor], device: torch.device) -> Sequence[torch.Tensor | None]:
        self.counts.append(len(files))
        return [self._decode(file.numpy().tobytes(), device) for file in files]

    def _decode(self, data: bytes, device: torch.device) -> torch.Tensor | None:
        try:
            with Image.open(io.BytesIO(data)) as image:
                if image.info.get("progression"):
                    raise OSError("progressive")
                pixels = np.array(image.convert("RGB"))
        except OSError as error:
            if self.fails == "raise":
                raise RuntimeError(str(error)) from None
            return None
        return torch.from_numpy(pixels).permute(2, 0, 1).to(device)


class Upright(ByPillow):
    """One that turns images, as it must not."""

    def _decode(self, data: bytes, device: torch.device) -> torch.Tensor | None:
        found = super()._decode(data, device)
        return None if found is None else found.transpose(1, 2)
