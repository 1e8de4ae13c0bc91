"""Makes torchvision importable beside a torch of another build, for packages that import it but use no operators.

Its Python files register details of operators that its library defines; where that library does not load (a CUDA
build beside a CPU torch), the signatures of these operators are defined here.
"""

from __future__ import annotations

import torch

try:
    import torchvision  # noqa: F401
except (ImportError, RuntimeError):
    OPERATORS = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
