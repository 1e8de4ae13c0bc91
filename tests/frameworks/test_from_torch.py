"""Loaders of torch's, and of classes derived from it, that are replaced or meet foreload's."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import foreload as fl
from tests.frameworks.test_rebuilt import Wrapper


def test_a_loader_that_was_replaced_before_is_taken_again() -> None:
    """The Trainer keeps its evaluation loader if workers are persistent, and returns it for each evaluation."""
    prepared: Any = Wrapper(DataLoader(TensorDataset(torch.arange(6)), 2))

    def add(number: Any) -> Any:
        return lambda sample: sample[0] + number

    made = fl.from_torch(prepared, cache="1MiB", transform=add(torch.ones(1))).base_dataloader
    again = fl.from_torch(prepared, cache="1MiB", transform=add(torch.ones(1)))
    assert again is prepared
    assert again.base_dataloader is made
    others: list[Any] = [{}, {"on_error": "skip"}, {"cache": "2MiB", "transform": add(torch.ones(1))}]
    others += [
        {"cache": "1MiB", "transform": add(torch.zeros(1))},
        {"cache": "1MiB", "transform": lambda item: item},
    ]
    for options in others:
        with pytest.raises(TypeError, match="not foreload's"):
            fl.from_torch(prepared, **options)


def test_a_timeout_is_taken_over_only_with_workers_that_may_be_late() -> None:
    stock: Any = DataLoader(TensorDataset(torch.arange(6)), 2, num_workers=1, timeout=300)
    assert fl.from_torch(stock).timeout == 300
    assert len(list(fl.from_torch(stock, num_workers=0))) == 3


class Repeat:
    """A batch sampler that never ends, as training loops of detectors have."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


class Infinite(DataLoader[Any]):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        object.__setattr__(self, "batch_sampler", Repeat(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self) -> int:
        return len(self.batch_sampler.sampler)  # type: ignore[union-attr]

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for _ in range(len(self)):
            yield next(self.iterator)


def test_a_batch_sampler_that_a_derived_class_has_put_in_is_kept() -> None:
    theirs = Infinite(range(6), 4)  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="Infinite has an __iter__"):
        ours = iter(fl.from_torch(theirs))
    expected = [batch.tolist() for _ in range(2) for batch in theirs]
    assert [next(ours).tolist() for _ in range(4)] == expected == [[0, 1, 2, 3], [4, 5]] * 2


def test_torchdatas_loader_stays_derived_from_torchs() -> None:
    """It is derived from what ``torch.utils.data.DataLoader`` is, and sets itself up without its constructor."""
    body = {"__module__": "torchdata.stateful_dataloader.stateful_dataloader"}
    stateful: Any = type("StatefulDataLoader", (fl.DataLoader,), body)
    assert stateful.__mro__[1:] == DataLoader.__mro__
    other: Any = type("Own", (fl.DataLoader,), {})
    assert issubclass(other, fl.DataLoader)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [batch.tolist() for batch in stateful(range(3), 2)] == [[0, 1], [2]]


@pytest.mark.slow
def test_torchs_loader_is_still_known_where_ours_has_taken_its_name() -> None:
    program = """
import torch.utils.data
stock = torch.utils.data.DataLoader
import foreload as fl
torch.utils.data.DataLoader = fl.DataLoader
print(type(fl.from_torch(stock(range(3), 2))).__module__, [batch.tolist() for batch in fl.DataLoader(range(3), 2)])
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert ended.stdout == "foreload.loader [[0, 1], [2]]\n", ended.stderr
