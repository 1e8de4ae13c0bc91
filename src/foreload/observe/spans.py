"""STUB, not to be committed."""

from __future__ import annotations
from enum import IntEnum
from typing import NamedTuple


class Stage(IntEnum):
    ORDER = 0
    READ = 1
    DECODE = 2
    CACHE = 3
    SAMPLE = 4
    TRANSFORM = 5
    BATCH = 6
    WAIT = 7
    DEVICE = 8


class Lane(NamedTuple):
    name: str
    kind: str
