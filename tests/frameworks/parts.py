"""Helpers of the tests of frameworks: data, a model, and copies of how frameworks build loaders."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.utils.data import Dataset

import foreload as fl
from foreload.epochs.base import Epoch


class Regression(Dataset[Any]):
    """Points of a line; ``bad`` ones cannot be loaded."""

    def __init__(self, size: int = 64, bad: frozenset[int] = frozenset()) -> None:
        self.x = torch.linspace(-1, 1, size)[:, None]
        self.bad = bad

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in self.bad:
            raise ValueError(f"sample {index} is bad")
        return {"x": self.x[index], "labels": 2 * self.x[index] + 1, "index": index}


class Model(torch.nn.Module):
    """A line; it remembers the samples that it was trained with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[int] = []

    def forward(self, x: Any, labels: Any, index: Any = None) -> Any:
        if self.training:
            self.seen += index.tolist()
        loss = torch.nn.functional.mse_loss(self.layer(x), labels)
        return {"loss": loss}


class Counting(fl.DataLoader[Any]):
    """A loader of a user's own class, which counts the epochs of ours that it began."""

    def __init__(self, *arguments: Any, name: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.name = name
        self.begun: list[str] = []

    def __iter__(self) -> Any:
        epoch = super().__iter__()
        assert isinstance(epoch, Epoch)
        self.begun.append(type(epoch).__name__)
        return epoch


def as_lightning(loader: Any, sampler: Any) -> Any:
    """Build a loader with another sampler as Lightning does: of the same class, from its attributes."""
    attributes = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
    attributes["multiprocessing_context"] = loader.multiprocessing_context
    parameters = inspect.signature(type(loader)).parameters
    others = {n for n, p in parameters.items() if n in attributes and p.default is not attributes[n]}
    arguments = {name: value for name, value in attributes.items() if name in others | {"dataset"}}
    return type(loader)(**{**arguments, "sampler": sampler, "shuffle": False, "batch_sampler": None})


# How Accelerate and Ray Train build a loader: of torch's class, which they have imported by name.
BUILDER = """
from torch.utils.data import DataLoader

def accelerate(loader, batch_sampler):
    names = ("num_workers collate_fn pin_memory timeout worker_init_fn multiprocessing_context generator "
             "prefetch_factor persistent_workers pin_memory_device in_order").split()
    arguments = {name: getattr(loader, name) for name in names}
    return DataLoader(loader.dataset, batch_sampler=batch_sampler, **arguments)

def prepare_data_loader(loader, sampler):
    names = ("dataset batch_size num_workers collate_fn pin_memory drop_last timeout worker_init_fn "
             "generator").split()
    arguments = {name: getattr(loader, name) for name in names}
    return DataLoader(**arguments, shuffle=False, sampler=sampler)
"""
