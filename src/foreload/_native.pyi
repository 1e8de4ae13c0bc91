"""The native core of foreload; ``native/bindings`` has a file per group below."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

def simd() -> str: ...
def jpeg_library() -> str: ...

# order
def permute(n: int, seed: int, epoch: int, start: int, out: Array) -> None: ...

# pool
class Job:
    def run_here(self) -> None: ...

class PythonJob(Job):
    def __init__(
        self, count: int, grain: int, run: Callable[[int, int], object], finish: Callable[[], object]
    ) -> None: ...

class Completions:
    def wait(self, seconds: float) -> Job | None: ...
    def push(self, job: Job) -> None: ...

class Pool:
    def submit(self, job: Job, completions: Completions) -> None: ...
    def cancel(self, completions: Completions) -> None: ...
    def work(self, worker: int) -> None: ...
    def close(self) -> None: ...

# gather
def gather(source: Array, indices: Array, out: Array) -> None: ...

class GatherJob(Job):
    def __init__(self, sources: Sequence[Array], indices: Array, outs: Sequence[Array], grain: int) -> None: ...

# plan
def compile_plan(
    accesses: Array,
    samples: int,
    sizes: Array | None,
    costs: Array | None,
    resident: Array | None,
    policy: str,
    budget: int,
    tail: bool,
    seed: int,
    hits: Array,
    keep: Array,
    retained: Array,
) -> None: ...

# image
Fallback = Callable[[str, bytes], Array]

class ImageFiles:
    def __init__(self, paths: Sequence[bytes], keep: int) -> None: ...
    def __len__(self) -> int: ...
    def path(self, index: int) -> bytes: ...
    def keep(self, index: int) -> int: ...
    def read(self, index: int) -> bytes: ...

class Transform:
    def __init__(
        self,
        *,
        crop: str,
        size: tuple[int, int],
        shorter: int,
        scale: tuple[float, float],
        ratio: tuple[float, float],
        flip: float,
        jitter: tuple[float, float, float, float],
        mean: tuple[float, float, float],
        std: tuple[float, float, float],
        normalize: bool,
        channels_last: bool,
        fast: bool,
    ) -> None: ...

class ImageJob(Job):
    def __init__(
        self,
        files: ImageFiles,
        transform: Transform,
        indices: Array,
        seed: int,
        epoch: int,
        out: Array,
        fallback: Fallback,
        grain: int,
    ) -> None: ...
    def failures(self) -> list[tuple[int, BaseException]]: ...

def decode_rgb(path: str, bytes: bytes, fallback: Fallback) -> Array: ...
def transform_rgb(transform: Transform, image: Array, seed: int, out: Array) -> None: ...
def view(
    transform: Transform, width: int, height: int, seed: int, epoch: int, index: int
) -> tuple[tuple[int, int, int, int], tuple[int, int], tuple[int, int], bool]: ...
