"""Constants: objects that nobody changes, so that a copy would be no other."""

from __future__ import annotations

import enum
from decimal import Decimal
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

__all__ = ["FILE_OF_MAP", "is_constant"]

# The attributes by which an ``np.memmap`` has its file.
FILE_OF_MAP = frozenset({"_mmap", "filename", "offset", "mode"})

_CONSTANTS: Any = (type, str, bytes, int, float, complex, enum.Enum, ModuleType, range, slice)
_CONSTANTS += (
    type(...),
    type(NotImplemented),
    np.dtype,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
_OF_CONSTANTS = {"datetime", "fractions", "ipaddress", "pathlib", "re", "uuid", "zoneinfo"}


def is_constant(value: Any) -> bool:
    """Whether an object is of a type whose objects do not change; a method of a list changes the list.

    >>> is_constant(len), is_constant([].append), is_constant(range(3)), is_constant(np.void(b"a"))
    (True, False, True, False)
    """
    if isinstance(value, BuiltinFunctionType):
        return value.__self__ is None or isinstance(value.__self__, (ModuleType, type))
    if isinstance(value, FunctionType):
        return value.__closure__ is None
    if isinstance(value, (*_CONSTANTS, Decimal)):
        return True
    if isinstance(value, np.generic):
        return not isinstance(value, np.void)
    return str(type(value).__module__).partition(".")[0] in _OF_CONSTANTS
