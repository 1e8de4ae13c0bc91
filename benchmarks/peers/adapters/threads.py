"""Threads by hand, a batch per task, simplejpeg and OpenCV: the fastest loop that one writes in an hour."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
import torch
from benchmarks.peers import decode
from benchmarks.peers.adapters import Epochs, loads
from benchmarks.peers.work import CORES, Work

cv2.setNumThreads(1)


def ahead(work: Work, make: Callable[[list[int]], Any], *, shuffle: bool = True) -> Epochs:
    """Epochs of batches, each made by one of as many threads as there are cores."""

    def epoch(number: int) -> Iterator[Any]:
        order = list(range(work.count))
        if shuffle:
            random.Random(number).shuffle(order)
        with ThreadPoolExecutor(CORES) as pool:
            waiting: deque[Future[Any]] = deque()
            for start in range(0, len(order), work.batch_size):
                waiting.append(pool.submit(make, order[start : start + work.batch_size]))
                if len(waiting) > CORES:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    return Epochs(epoch)


def _images(work: Work, fast: bool) -> Epochs:
    files, size = work.files, work.options["size"]

    def make(numbers: list[int]) -> Any:
        batch = np.empty((len(numbers), size, size, 3), np.uint8)
        for place, number in enumerate(numbers):
            data = Path(files[number]).read_bytes()
            if work.family == "validation":
                batch[place] = decode.middle_opencv(data, work)
                continue
            image = simplejpeg.decode_jpeg(data, fastdct=fast, fastupsample=fast)
            left, top, width, height = decode.box(image.shape[1], image.shape[0])
            part = image[top : top + height, left : left + width]
            cv2.resize(part, (size, size), dst=batch[place], interpolation=cv2.INTER_AREA)
            if random.random() < 0.5:
                cv2.flip(batch[place], 1, dst=batch[place])
        return decode.finish(batch, work), torch.tensor(numbers)

    return ahead(work, make, shuffle=work.family == "train")


@loads("train", "simplejpeg and OpenCV")
def train(work: Work) -> Any:
    return _images(work, fast=False)


@loads("train", "simplejpeg with fast DCT and OpenCV")
def fast_train(work: Work) -> Any:
    return _images(work, fast=True)


@loads("validation", "simplejpeg and OpenCV")
def validation(work: Work) -> Any:
    return _images(work, fast=False)


@loads("files", "readinto one array per batch")
def files(work: Work) -> Any:
    paths = work.files
    size = Path(paths[0]).stat().st_size

    def make(numbers: list[int]) -> Any:
        batch = np.empty((len(numbers), size), np.uint8)
        for row, number in zip(batch, numbers, strict=True):
            with open(paths[number], "rb", buffering=0) as file:
                file.readinto(row)  # type: ignore[attr-defined]
        return torch.from_numpy(batch)

    return ahead(work, make)


@loads("rows", "index_select by a permutation, one thread")
def rows(work: Work) -> Any:
    values = torch.from_numpy(np.load(work.folder / "rows.npy"))

    def epoch(number: int) -> Iterator[Any]:
        order = torch.randperm(len(values))
        out = torch.empty(work.batch_size, values.shape[1])
        for start in range(0, len(values), work.batch_size):
            part = order[start : start + work.batch_size]
            yield torch.index_select(values, 0, part, out=out[: len(part)])

    return Epochs(epoch)
