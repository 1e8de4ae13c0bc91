"""Several datasets as one, in exact proportions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch.utils.data import Dataset

from foreload.batch.assembly import note_sample
from foreload.batch.collated import Collated, own_getitems
from foreload.checks import check_int, inherits
from foreload.errors import warn_user
from foreload.order.index import position_of
from foreload.order.mixture import MixtureSampler
from foreload.protocol import LoaderDefaults, UserCode

__all__ = ["Mixture"]

Weights = Mapping[Any, float] | Sequence[float]

# The largest sum of the whole numbers that the order computes with.
_MOST = 1 << 48


class Mixture(Dataset[Any], LoaderDefaults, UserCode):
    """Several map-style datasets, mixed by weight.

    The proportions are in the order: ``foreload.DataLoader(mixture, shuffle=True, seed=0)`` takes a
    ``foreload.order.MixtureSampler``, after any number of whose samples each dataset's share is right to within
    one. (Without ``shuffle=True`` or ``seed`` the order is torch's, which knows no weights; the loader warns
    then, but a stock one cannot.) By itself, a mixture is its datasets one
    after the other: ``mixture[0]`` is the first sample of the first, ``len(mixture)`` counts all. Samples are
    given as they are, so where they are to be collated they must be alike.

    Args:
        datasets: a list of map-style datasets, or a dict of them by name (the names of a list are 0, 1, ...).
        weights: positive numbers, one per dataset, in the same form (a dict may also be given in another order);
            only their proportions count. By default the sizes of the datasets.
        num_samples: how many samples an epoch has, over all ranks; by default as many as there are. Of a dataset
            with a larger share than it has samples, they come again; of one with a smaller share, each epoch
            draws some at random, independently of other epochs.

    Raises:
        ValueError, TypeError: a dataset is empty or has no length, or an argument is invalid.

    Attributes:
        datasets: the datasets, as a list.
        names: their names.
        sizes: their lengths.
        num_samples: how many samples an epoch has.

    >>> mixture = Mixture({"web": ["w0", "w1", "w2"], "books": ["b0"]}, weights={"web": 0.5, "books": 0.5})
    >>> mixture[3], mixture.where(3)
    ('b0', ('books', 0))
    """

    def __init__(
        self,
        datasets: Mapping[Any, Any] | Sequence[Any],
        weights: Weights | None = None,
        *,
        num_samples: int | None = None,
    ) -> None:
        if not isinstance(datasets, (Mapping, list, tuple)):
            raise TypeError(f"datasets must be a list or a dict of datasets, got {type(datasets).__name__}")
        named = dict(datasets) if isinstance(datasets, Mapping) else dict(enumerate(datasets))
        if not named:
            raise ValueError("datasets is empty; give at least one")
        self.names = list(named)
        self.datasets = list(named.values())
        self.sizes = [_size(name, dataset) for name, dataset in named.items()]
        self._ends = np.cumsum(self.sizes)
        self.num_samples = len(self)
        if num_samples is not None:
            self.num_samples = check_int("num_samples", num_samples, 1)
        self.set_weights(self.sizes if weights is None else weights)

    def set_weights(self, weights: Weights) -> None:
        """Change the weights from the next epoch on, also for a loader that is running.

        Raises:
            ValueError, TypeError: there is not one positive number for each dataset.
        """
        if isinstance(weights, Mapping):
            if set(weights) != set(self.names):
                raise ValueError(
                    f"weights are for {sorted(map(str, weights))}, but the datasets are {self.names}; "
                    "give one for each"
                )
            weights = [weights[name] for name in self.names]
        elif isinstance(weights, str) or not hasattr(weights, "__len__"):
            raise TypeError(f"weights must be a list or a dict of numbers, got {weights!r}")
        if len(weights) != len(self.names):
            raise ValueError(
                f"weights has {len(weights)} entries for {len(self.names)} datasets; give one for each"
            )
        pairs = zip(self.names, weights, strict=True)
        self._shares = _whole([_fraction(f"weights[{name!r}]", weight) for name, weight in pairs])

    @property
    def shares(self) -> tuple[int, ...]:
        """The weights, as the smallest whole numbers in the same proportions."""
        return self._shares

    @property
    def weights(self) -> dict[Any, float]:
        """The weight of each dataset; their sum is 1."""
        total = sum(self._shares)
        return {name: share / total for name, share in zip(self.names, self._shares, strict=True)}

    def where(self, index: SupportsIndex) -> tuple[Any, int]:
        """Return the name of the dataset that a sample is from, and its index there.

        Raises:
            IndexError: ``index`` is out of range.
        """
        dataset, inner = self._where(index)
        return self.names[dataset], inner

    def _where(self, index: Any) -> tuple[int, int]:
        position = self._position(index)
        dataset = int(np.searchsorted(self._ends, position, side="right"))
        return dataset, position - int(self._ends[dataset]) + self.sizes[dataset]

    def _position(self, index: Any) -> int:
        position, size = position_of(index), int(self._ends[-1])  # a subclass may have another length
        if position is None:
            raise TypeError(f"the index of a mixture must be an int, got {index!r}")
        if not -size <= position < size:
            raise IndexError(f"index {position} is out of range for a mixture of {size} samples")
        return position % size

    def user_code(self) -> Iterable[Any]:
        """Return the datasets; see :class:`foreload.protocol.UserCode`."""
        return self.datasets

    def __len__(self) -> int:
        """Count the samples of all datasets."""
        return int(self._ends[-1])

    def __getitem__(self, index: SupportsIndex) -> Any:
        """Return a sample as its dataset gives it."""
        dataset, inner = self._where(index)
        return self.datasets[dataset][inner]

    @own_getitems
    def __getitems__(self) -> Any:
        """Load several samples at once, each dataset's together.

        None if no dataset can do that, or a subclass loads samples itself.
        """
        many = any(callable(getattr(dataset, "__getitems__", None)) for dataset in self.datasets)
        return self._load if many and inherits(self, Mixture, "__getitem__") else None

    def _load(self, indices: Sequence[Any]) -> Sequence[Any]:
        positions = np.array([self._position(index) for index in indices], np.int64)
        datasets = np.searchsorted(self._ends, positions, side="right")
        order = np.argsort(datasets, kind="stable")  # the samples of each dataset together
        present, counts = np.unique(datasets, return_counts=True)
        loaded = [
            self._load_of(dataset, indices, positions, wanted.tolist())
            for dataset, wanted in zip(present.tolist(), np.split(order, np.cumsum(counts)[:-1]), strict=True)
        ]
        if len(loaded) == 1:
            return loaded[0]  # as the dataset has assembled it
        back = np.argsort(order)
        if (batch := _joined(loaded, back)) is not None:
            return batch
        samples = [sample for part in loaded for sample in part]
        return [samples[place] for place in back.tolist()]

    def _load_of(
        self, dataset: int, indices: Sequence[Any], positions: np.ndarray[Any, Any], wanted: list[int]
    ) -> Sequence[Any]:
        """Load the samples of one dataset, at the positions ``wanted`` of the batch."""
        part = self.datasets[dataset]
        inner = (positions[wanted] - self._ends[dataset] + self.sizes[dataset]).tolist()
        many = getattr(part, "__getitems__", None)
        if callable(many):
            try:
                together: Sequence[Any] = many(inner)
            except Exception as error:  # it may name a sample by its index there
                error.add_note(f"foreload: in dataset {self.names[dataset]!r} of the mixture")
                raise
            return together
        samples = []
        for place, own in zip(wanted, inner, strict=True):
            try:
                samples.append(part[own])
            except Exception as error:
                note_sample(error, indices[place], place)
                raise
        return samples

    def seeded_sampler(self, seed: int) -> MixtureSampler:
        """Return the sampler of a foreload DataLoader with ``shuffle=True, seed=...``."""
        return MixtureSampler(self, seed)

    def check_order(self) -> None:
        """Warn that an order of torch's follows neither the weights nor the number of samples."""
        ignored = ["weights"] * (self._shares != _whole(list(map(Fraction, self.sizes))))
        ignored += ["num_samples"] * (self.num_samples != len(self))
        if ignored:
            warn_user(
                f"this loader does not follow the mixture's {' and '.join(ignored)}, since torch's order takes "
                "each sample once: give the loader shuffle=True and seed=, or sampler=foreload.order."
                "MixtureSampler(mixture, seed)"
            )


def _joined(loaded: Sequence[Any], back: np.ndarray[Any, Any]) -> Collated | None:
    """Join the batches of several datasets, in another order; None if they are not alike."""
    if not all(isinstance(part, Collated) and part.is_plain for part in loaded):
        return None
    batches = [part.batch for part in loaded]
    tables = [_fields(batch) for batch in batches]
    first = tables[0]
    numbers = loaded[0].numbers
    if any(type(part.batch) is not type(batches[0]) or part.numbers != numbers for part in loaded) or any(
        [(name, rows.dtype, rows.shape[1:]) for name, rows in table.items()]
        != [(name, rows.dtype, rows.shape[1:]) for name, rows in first.items()]
        for table in tables
    ):
        return None
    order = torch.from_numpy(back)
    fields = {name: torch.cat([table[name] for table in tables])[order] for name in first}
    if isinstance(batches[0], dict):
        return Collated(fields, len(back))
    joined = fields[0] if isinstance(batches[0], torch.Tensor) else list(fields.values())
    return Collated(joined, len(back), numbers)


def _fields(batch: Any) -> dict[Any, torch.Tensor]:
    if isinstance(batch, dict):
        return batch
    return {0: batch} if isinstance(batch, torch.Tensor) else dict(enumerate(batch))


def _size(name: Any, dataset: Any) -> int:
    try:
        size = len(dataset)
    except TypeError:
        raise TypeError(
            f"datasets[{name!r}] must be a map-style dataset with a length, got {type(dataset).__name__}"
        ) from None
    if not hasattr(dataset, "__getitem__") or size == 0:
        raise ValueError(f"datasets[{name!r}] has no samples; leave it out of the mixture")
    return size


def _fraction(name: str, weight: Any) -> Fraction:
    if isinstance(weight, np.generic) or (hasattr(weight, "item") and getattr(weight, "ndim", 1) == 0):
        weight = weight.item()
    if isinstance(weight, bool) or not isinstance(weight, (int, float, Fraction)):
        raise TypeError(f"{name} must be a number, got {weight!r}")
    if not math.isfinite(weight) or weight <= 0:
        raise ValueError(f"{name} must be positive, got {weight!r}; leave out a dataset that is not wanted")
    exact = Fraction(weight)
    simple = exact.limit_denominator(1_000_000)
    # 0.1 is meant as a tenth.
    return simple if isinstance(weight, float) and float(simple) == weight else exact


def _whole(weights: list[Fraction]) -> tuple[int, ...]:
    """Return whole numbers in the same proportions: exactly, or to within 2**-48 if they would be too large."""
    scale = math.lcm(*(weight.denominator for weight in weights))
    numbers = [int(weight * scale) for weight in weights]
    divisor = math.gcd(*numbers)
    numbers = [number // divisor for number in numbers]
    if sum(numbers) <= _MOST:
        return tuple(numbers)
    total = sum(weights)
    return tuple(max(1, round(weight * _MOST / total)) for weight in weights)
