"""The form in which a cache keeps each image: the file's bytes, RGB pixels, or 4:2:0 planes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from foreload.checks import Array
from foreload.options import Keep

__all__ = ["ENCODED", "PLANES", "RGB", "VIEW", "FormChoice", "choose_forms", "fitted", "forms_of"]

# The numbers of the forms in the native core.
ENCODED, RGB, PLANES, VIEW = 1, 2, 3, 4

_OVERHEAD = 128  # bytes of an entry, and of the description of its image

# The time to convert a pixel from planes to RGB, of which a crop needs about half.
_CONVERT_SECONDS = 0.4e-9

# Fewer measured images do not determine a line.
_MIN_IMAGES_FOR_FIT = 16

# After the first step that does not fit, a few smaller ones may.
_MAX_STEPS_AFTER_FULL = 1000


class FormChoice(NamedTuple):
    """The choice for every image.

    Attributes:
        members: whether it is kept (bool).
        forms: the form in which it is kept (uint8).
        saved: the seconds per epoch that this saves.
    """

    members: Array
    forms: Array
    saved: float


def forms_of(keep: Keep) -> tuple[int, ...]:
    """Return the forms that ``keep`` allows."""
    return {"encoded": (ENCODED,), "decoded": (RGB, PLANES), "auto": (ENCODED, RGB, PLANES)}[keep]


def option(form: int, costs: Array) -> tuple[Array, Array]:
    """Return the bytes taken and the seconds saved by keeping each image in a form.

    Args:
        form: the form.
        costs: 5 x images: seconds to read, seconds to decode, bytes of the file, pixels, whether there are planes.
    """
    read, decode, encoded, pixels, has_planes = costs
    if form == ENCODED:
        return encoded + _OVERHEAD, read
    if form == PLANES:
        # An image without planes saves nothing, so that this is never chosen.
        saved = np.where(has_planes > 0, read + decode - _CONVERT_SECONDS * pixels, 0.0)
        return 1.5 * pixels + _OVERHEAD, saved
    return 3 * pixels + _OVERHEAD, read + decode


def fitted(costs: Array) -> Array:
    """Return costs with times fitted to the sizes of images, in place of single measurements.

    A single measurement depends on what else ran and on which part of the image was needed. Time is taken to be
    linear in the bytes of the file and in the pixels, for images with and without planes.
    """
    result = costs.copy()
    for planes in (0, 1):
        known = (costs[2] > 0) & (costs[4] == planes)
        if known.sum() < _MIN_IMAGES_FOR_FIT:
            continue
        sizes = np.stack([costs[2, known], costs[3, known], np.ones(known.sum())])
        for row in (0, 1):
            times = costs[row, known]
            # Pauses of the thread do not count as a cost of the image.
            times = np.minimum(times, 4 * np.median(times / sizes[1]) * sizes[1])
            result[row, known] = _line(sizes, times) @ sizes
    return result


def _line(sizes: Array, times: Array) -> Array:
    """Return the seconds per byte, per pixel and per image that fit best, none of them negative.

    With three unknowns, trying each set of nonzero ones is as good as an algorithm (Lawson and Hanson, Solving
    Least Squares Problems, chapter 23). Without that limit, nearly proportional sizes would get two large values
    that cancel.
    """
    rows, goal = (sizes / sizes[1]).T, times / sizes[1]
    best, least = np.zeros(len(sizes)), np.inf
    for used in ((0, 1, 2), (0, 1), (0, 2), (1, 2), (0,), (1,), (2,)):
        line = np.zeros(len(sizes))
        line[list(used)] = np.linalg.lstsq(rows[:, used], goal, rcond=None)[0]
        far = float(((rows @ line - goal) ** 2).sum())
        if (line >= 0).all() and far < least:
            best, least = line, far
    return best


def choose_forms(costs: Array, forms: Sequence[int], budget: int) -> FormChoice:
    """Choose the images and forms that save most time within ``budget`` bytes.

    The greedy algorithm for the multiple-choice knapsack (Sinha and Zoltners, Operations Research 27(3), 1979):
    steps from nothing to a small form to a larger one, in the order of the time that each saves per byte, as long
    as they fit. It lies within one image of the best possible.

    >>> costs = np.array([[0.001, 0.001], [0.01, 0.0], [100, 100], [1000, 1000], [0, 0]])
    >>> choose_forms(costs, (ENCODED, RGB), 4000).forms.tolist()
    [2, 1]
    """
    sizes, saves = (np.stack(rows) for rows in zip(*(option(form, costs) for form in forms), strict=True))
    image, choice, ratio, more = _steps(sizes, saves, costs[2] > 0)
    order = np.argsort(-ratio, kind="stable")
    image, choice, more = image[order], choice[order], more[order]
    taken = np.full(costs.shape[1], -1)
    fitting = int(np.searchsorted(np.cumsum(more), budget, side="right"))
    # An image's steps are in order, so the last one counts.
    taken[image[:fitting]] = choice[:fitting]
    left = budget - more[:fitting].sum()
    skipped: set[int] = set()
    for position in range(fitting, min(len(order), fitting + _MAX_STEPS_AFTER_FULL)):
        i = int(image[position])
        if i not in skipped and more[position] <= left:
            taken[i] = choice[position]
            left -= more[position]
        else:
            skipped.add(i)
    members = taken >= 0
    rows = np.maximum(taken, 0)
    saved = float(saves[rows, np.arange(len(rows))][members].sum())
    return FormChoice(members, np.asarray(forms, np.uint8)[rows], saved)


def _steps(sizes: Array, saves: Array, known: Array) -> tuple[Array, Array, Array, Array]:
    """Return each image's steps to larger forms by time saved per byte: images, forms, ratios, bytes."""
    images = np.flatnonzero(known)
    size, saved = np.zeros(sizes.shape[1]), np.zeros(sizes.shape[1])
    steps = []
    while len(images):
        more = sizes[:, images] - size[images]
        gain = saves[:, images] - saved[images]
        ratios = np.where((more > 0) & (gain > 0), gain / np.maximum(more, 1), 0.0)
        choice = ratios.argmax(axis=0)
        column = np.arange(len(images))
        better = ratios[choice, column] > 0
        images, choice, column = images[better], choice[better], column[better]
        steps.append((images, choice, ratios[choice, column], more[choice, column]))
        size[images], saved[images] = sizes[choice, images], saves[choice, images]
    image, choice, ratio, more = (np.concatenate(values) for values in zip(*steps, strict=True))
    return image, choice, ratio, more
