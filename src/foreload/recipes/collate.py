"""Collate functions for images, tokens and sequences of different lengths.

In foreload's DataLoader they write batches to reused memory; in torch's, to new memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from foreload.batch.collate import stack
from foreload.batch.unlike import note_unlike
from foreload.checks import check_int, fits_int64
from foreload.nested.tensors import is_masked_array
from foreload.recipes.padding import (
    as_numbers,
    is_row,
    is_sequence,
    of_one_type,
    pad,
    read_labels,
    read_tokens,
)
from foreload.transforms import rgb_array

__all__ = ["CustomCollateFn"]

# The label that torch's losses ignore.
_IGNORED_LABEL = -100


class CustomCollateFn:
    """Collate functions, for ``collate_fn=`` of foreload's DataLoader and of torch's.

    Raises:
        ValueError, TypeError: a batch is empty, or not of samples that the function collates; each one says which.

    >>> images, labels = CustomCollateFn.image_collate([(np.zeros((4, 6, 3), np.uint8), 7)] * 2)
    >>> images.shape, labels
    (torch.Size([2, 3, 4, 6]), tensor([7, 7]))
    >>> texts, targets = CustomCollateFn.text_collate([("a cat", 1), ("purrs", 0)])
    >>> texts, targets
    (['a cat', 'purrs'], tensor([1, 0]))
    >>> tensors, targets = CustomCollateFn.variable_length_collate([(torch.ones(2), 1), (torch.ones(1), 0)])
    >>> tensors, targets
    ([tensor([1., 1.]), tensor([1.])], tensor([1, 0]))
    >>> batch = CustomCollateFn.padded_text_collate([([5, 6, 7], 1), ([8], 0)])
    >>> batch["input_ids"], batch["labels"]
    (tensor([[5, 6, 7],
            [8, 0, 0]]), tensor([1, 0]))
    >>> padded, lengths = CustomCollateFn.padded_sequence_collate([torch.ones(2), torch.ones(1)])
    >>> padded, lengths
    (tensor([[1., 1.],
            [1., 0.]]), tensor([2, 1]))
    """

    @staticmethod
    def image_collate(batch: Sequence[Any]) -> Any:
        """Stack images, and collate what accompanies them.

        Args:
            batch: images; or tuples ``(image, label, ...)``; or dicts of the same keys, whose Pillow images and
                arrays of three dimensions are images. An image is a tensor (taken as it is), an array or a Pillow
                image. Arrays of height x width, or height x width x 1, 3 or 4 become channels x height x width, of
                the same dtype; other arrays stay as they are. Pillow images become uint8, RGB (16 bits scaled to
                8), or one channel if all of the batch are grey of 8 bits.

        Returns:
            images (batch x channels x height x width, dtype unchanged, so uint8 is not scaled); or a tuple of them
            and the rest, collated as torch does (ints become int64), or a list of tensors if they differ in shape,
            or None if there are none; or a dict.

        Raises:
            ValueError: the batch is empty, the images have different sizes or dtypes, or a dict lacks a key that
                another has.
            TypeError: a sample is not an image.
        """
        first = _not_empty("image_collate", batch)[0]
        if any(isinstance(sample, Mapping) for sample in batch):
            return {name: _field(values) for name, values in _fields_of_dicts(batch).items()}
        if isinstance(first, (tuple, list)):
            images, *others = _columns(batch, lambda sample: isinstance(sample, (tuple, list)))
            return (_stack_images(images), *map(_targets, others))
        return _stack_images(batch)

    @staticmethod
    def text_collate(batch: Sequence[Any]) -> tuple[Any, ...]:
        """Separate texts from their targets. (:meth:`padded_text_collate` pads tokens.)

        Args:
            batch: tuples ``(text, target)`` or ``(text, target, ...)``, or texts alone. A text is a str, a list of
                words, or tokens: a list of ints, a tensor or an array.

        Returns:
            ``(texts, targets)``, and a value for each further field. The texts are a list, as they were in the
            samples, but tokens are tensors (those of lists int64). Targets are what torch collates (ints become
            int64); a list of tensors if they differ in shape; None if there are none.

        Raises:
            TypeError: a sample is none of these.
            ValueError: some samples have a target, others have none.
        """
        texts, *targets = _columns(batch, _is_labelled_text)
        return [_text(text, position) for position, text in enumerate(texts)], *map(_targets, targets)

    @staticmethod
    def variable_length_collate(batch: Sequence[Any]) -> tuple[Any, ...]:
        """Separate tensors of any lengths from their targets. (:meth:`padded_sequence_collate` pads them.)

        Args:
            batch: tuples ``(tensor, target)`` or ``(tensor, target, ...)``, or tensors alone; arrays and lists of
                numbers are tensors too.

        Returns:
            ``(list of tensors, targets)``, and a value for each further field. The tensors are copies of the
            samples', of the same shapes and dtypes. Targets are as those of :meth:`text_collate`.

        Raises:
            TypeError: a sample is none of these.
            ValueError: some samples have a target, others have none.
        """
        values, *targets = _columns(batch, lambda sample: isinstance(sample, tuple))
        tensors = [_copy(as_numbers(value, position)) for position, value in enumerate(values)]
        return tensors, *map(_targets, targets or [None])

    @staticmethod
    def padded_text_collate(batch: Sequence[Any], pad_id: int = 0) -> dict[str, Any]:
        """Pad token sequences, on the right, to the longest of the batch.

        Args:
            batch: sequences of tokens (lists of ints, 1-D tensors or arrays); or tuples ``(tokens, label)``; or
                dicts with ``input_ids``, and perhaps ``attention_mask``, ``labels`` (or ``label``) and more.
            pad_id: the token that pads ``input_ids``, set by ``functools.partial(padded_text_collate, pad_id=1)``.

        Returns:
            ``input_ids`` and ``attention_mask`` (1: a token, 0: padding), int64, batch x longest; ``labels``, if
            there are any: one each (ints become int64), or one per token, int64 (floats stay floats), padded with
            -100. Other numbers per token are padded with 0, in their common dtype; the rest is collated as torch
            does.

        Raises:
            TypeError: a sample is none of these.
            ValueError: the batch is empty, a mask is not as long as its tokens or not of ints, a sample lacks what
                another has (but a mask, which is then all 1), or the common dtype does not hold a number.
        """
        if not fits_int64(pad_id := check_int("pad_id", pad_id)):
            raise ValueError(f"pad_id must fit into int64, got {pad_id}")
        whole = _not_empty("padded_text_collate", batch)
        samples = [read_tokens(sample, position) for position, sample in enumerate(whole)]
        lengths = [len(sample["input_ids"]) for sample in samples]
        result: dict[str, Any] = {}
        for name, values in _fields_of_dicts(samples).items():
            if not all(map(is_row, values)) or (name != "labels" and list(map(len, values)) != lengths):
                result[name] = _collated(values)
                continue
            read = read_labels if name == "labels" else functools.partial(as_numbers, what=repr(name))
            rows = of_one_type([read(value, position) for position, value in enumerate(values)], repr(name))
            result[name] = pad(rows, {"input_ids": pad_id, "labels": _IGNORED_LABEL}.get(name, 0))
        return result

    @staticmethod
    def padded_sequence_collate(batch: Sequence[Any]) -> tuple[Any, ...]:
        """Pad tensors whose first dimension differs, with zeros, to the longest of the batch.

        Args:
            batch: tensors, arrays or lists of numbers, of length x ...; or tuples ``(tensor, label)``.

        Returns:
            ``(padded, lengths)`` or ``(padded, lengths, labels)``: batch x longest x ..., of their common dtype;
            int64; and labels as torch collates them, or a list of tensors if they differ in shape.

        Raises:
            ValueError: the batch is empty, or the tensors differ in more than their first dimension.
            TypeError: a sample is something else.
        """
        _not_empty("padded_sequence_collate", batch)
        if all(isinstance(sample, tuple) and len(sample) == 2 for sample in batch):
            sequences, labels = zip(*batch, strict=True)
            return *CustomCollateFn.padded_sequence_collate(sequences), _targets(labels)
        tensors = [as_numbers(sample, position) for position, sample in enumerate(batch)]
        shapes = {(tensor.ndim, tensor.shape[1:]) for tensor in tensors}
        if len(shapes) > 1 or tensors[0].ndim == 0:
            raise ValueError(
                "padded_sequence_collate pads the first dimension only; the others must agree, but the shapes are "
                f"{', '.join(str(tuple(tensor.shape)) for tensor in tensors[:8])}"
            )
        return pad(of_one_type(tensors), 0), torch.tensor([len(tensor) for tensor in tensors])


def _not_empty(name: str, batch: Sequence[Any]) -> Sequence[Any]:
    if len(batch):
        return batch
    raise ValueError(f"{name}: the batch is empty; let the batch sampler leave out batches of no samples")


def _fields_of_dicts(batch: Sequence[Any]) -> dict[Any, list[Any]]:
    """Return the values of all samples by their key."""
    for position, sample in enumerate(batch):
        if not isinstance(sample, Mapping):
            raise TypeError(
                f"sample {position} of the batch is a {type(sample).__name__}, where others are dicts; make all "
                "of them dicts in the dataset"
            )
    fields: dict[Any, list[Any]] = {}
    for name in dict.fromkeys(name for sample in batch for name in sample):
        if not all(has := [name in sample for sample in batch]):
            without, one = has.index(False), has.index(True)
            raise ValueError(
                f"sample {without} of the batch has no {name!r}, which sample {one} has; give all of them the "
                "same keys in the dataset"
            )
        fields[name] = [sample[name] for sample in batch]
    return fields


def _collated(values: Sequence[Any]) -> Any:
    """Collate values as torch does; an error names the sample that is unlike the others."""
    try:
        return default_collate(list(values))
    except Exception as error:
        note_unlike(error, values)
        raise


def _columns(batch: Sequence[Any], is_labelled: Callable[[Any], bool]) -> Sequence[Any]:
    """Return the first fields of all samples, the second ones, and so on; None for targets if there are none."""
    batch = list(batch)  # or a generator would be read twice, and have no samples left
    labelled = [is_labelled(sample) for sample in batch]
    if not any(labelled):
        return batch, None
    counts = [len(sample) if is_one else 1 for sample, is_one in zip(batch, labelled, strict=True)]
    if len(set(counts)) > 1 or not all(labelled):
        odd = next(
            position
            for position, count in enumerate(counts)
            if (count, labelled[position]) != (counts[0], labelled[0])
        )
        raise ValueError(
            f"the samples of a batch must all be (data, target), or all data alone, but sample {odd} has "
            f"{counts[odd]} fields and sample 0 has {counts[0]}"
            f"{'' if counts[odd] != counts[0] else ', and only one of them is a tuple'}"
        )
    return list(zip(*batch, strict=True))


def _is_labelled_text(sample: Any) -> bool:
    if isinstance(sample, tuple):
        return len(sample) > 1 and not isinstance(sample[0], (int, np.integer))
    # A list of words or of ints is a text.
    if not isinstance(sample, list) or len(sample) != 2:
        return False
    text, target = sample
    return is_sequence(text) or _is_words(text) or (isinstance(text, str) and not isinstance(target, str))


def _text(text: Any, position: int) -> Any:
    if isinstance(text, str):
        return text
    if _is_words(text):
        return list(text)
    if is_sequence(text):
        is_bare = isinstance(text, (list, tuple)) and not text
        return _copy(as_numbers(np.zeros(0, np.int64) if is_bare else text, position, "a text of tokens"))
    raise TypeError(
        f"sample {position} of the batch: a text must be a str, a list of words or tokens, got "
        f"{type(text).__name__}; of dicts with input_ids, padded_text_collate makes a batch"
    )


def _is_words(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(word, str) for word in value)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor into the loader's memory, since a loop may change its batches, but not the dataset."""
    is_plain = tensor.layout is torch.strided and not tensor.is_nested
    return stack([tensor])[0] if is_plain else tensor


def _field(values: list[Any]) -> Any:
    is_image = _is_pillow(values[0]) or (isinstance(values[0], np.ndarray) and values[0].ndim == 3)
    return _stack_images(values) if is_image else _collated(values)


def _is_pillow(value: Any) -> bool:
    return type(value).__module__.startswith("PIL.") and hasattr(value, "convert")


def _scale_of(kind: torch.dtype) -> Any:
    if kind.is_floating_point or kind.is_complex:
        return "float"
    return "int" if kind.is_signed else kind


def _stack_images(images: Sequence[Any]) -> torch.Tensor:
    grey = all(_is_pillow(image) and image.mode == "L" for image in images)
    tensors = [_image(image, position, grey) for position, image in enumerate(images)]
    if len({tensor.shape for tensor in tensors}) > 1:
        raise ValueError(
            "the images of a batch must have one size, but are "
            f"{', '.join(str(tuple(tensor.shape)) for tensor in tensors[:8])}; resize them in the transform"
        )
    # (Float types have one scale, and signed ints have none; the numbers of others have the scale of their type.)
    kinds = [_scale_of(tensor.dtype) for tensor in tensors]
    odd = next((position for position, kind in enumerate(kinds) if kind != kinds[0]), None)
    if odd is not None:
        raise ValueError(
            f"the images of a batch must have one dtype, but sample {odd} is {tensors[odd].dtype} and sample 0 is "
            f"{tensors[0].dtype}, perhaps of another scale; convert them in the transform"
        )
    return stack(tensors)


def _image(image: Any, position: int, grey: bool) -> torch.Tensor:
    if isinstance(image, torch.Tensor):
        return image
    if _is_pillow(image):
        image = np.array(image) if grey else rgb_array(image)
    if not isinstance(image, np.ndarray):
        raise TypeError(
            f"sample {position} of the batch: an image must be a tensor, an array or a Pillow image, "
            f"got {type(image).__name__}"
        )
    if image.ndim == 2:
        image = image[None]
    elif image.ndim == 3 and image.shape[2] in (1, 3, 4):
        image = image.transpose(2, 0, 1)
    is_masked = is_masked_array(image)
    return as_numbers(image if is_masked else np.ascontiguousarray(image), position, "an image")


def _targets(targets: Sequence[Any] | None) -> Any:
    """Collate targets as torch does; those of different shapes are a list of tensors, and None stays None."""
    if targets is None or all(target is None for target in targets):
        return None
    if len({_shape(target) for target in targets if not isinstance(target, (str, Mapping))}) <= 1:
        return _collated(targets)
    return [as_numbers(target, position, "a target") for position, target in enumerate(targets)]


def _shape(target: Any) -> Any:
    try:
        return np.shape(target)
    except ValueError:  # a list of lists of different lengths
        return None
