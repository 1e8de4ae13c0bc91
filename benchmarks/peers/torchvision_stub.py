"""Lets torchvision be imported beside a torch of another build, for packages that import it without using its operators.

Its Python files register details of operators that its library defines; where that library does not load (a CUDA build
beside a CPU torch), the operator's signature is defined here.
"""

from __future__ import annotations

import torch

try:
    import torchvision  # noqa: F401
except (ImportError, RuntimeError):
    OPERATORS = torch.library.Library("torchvision", "DEF")
    OPERATORS.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
