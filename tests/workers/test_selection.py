"""The choice of workers is remembered by identity, whatever the user's ``==`` and ``hash()`` do."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import foreload as fl
from foreload.tune import choose
from foreload.tune.choice import Choice
from foreload.tune.workload import Workload
from foreload.workers import selection
from tests.tune.fills import fills_of


class Numbers:
    """A dataset of an ordinary class."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        return index

    def collate(self, samples: list[int]) -> torch.Tensor:
        """Collate, as a method of the dataset."""
        return torch.tensor(samples)


class Loading(Numbers):
    """A dataset whose samples say which process and thread loaded them."""

    def __getitem__(self, index: int) -> Any:
        return index, os.getpid(), threading.get_ident()


class EqualByValue(Numbers):
    """A dataset that compares as arrays do."""

    def __eq__(self, other: object) -> Any:
        return np.arange(64) == np.arange(64)

    def __hash__(self) -> int:
        return 1


class Unhashable(Numbers):
    """A dataset that refuses to be hashed."""

    def __hash__(self) -> int:
        raise ValueError("not this one")


@dataclass
class Collator:
    """A dataclass, and so not hashable, as those of Transformers are."""

    added: int = 0

    def __call__(self, samples: list[int]) -> torch.Tensor:
        return torch.tensor(samples) + self.added


@pytest.mark.parametrize("kind", [EqualByValue, Unhashable])
def test_datasets_are_told_apart_by_identity(kind: Any) -> None:
    for _ in range(2):  # a second one, while the first one is there
        dataset = kind()
        for _ in range(2):
            assert torch.cat(list(fl.DataLoader(dataset, batch_size=8))).tolist() == list(range(64))


def test_a_collate_function_need_not_be_hashable() -> None:
    loader = fl.DataLoader(Numbers(), batch_size=8, collate_fn=Collator(1))
    assert torch.cat(list(loader)).tolist() == list(range(1, 65))
    assert next(iter(fl.DataLoader(Numbers(), batch_size=2, transform=Collator(1)))).tolist() == [1, 2]


def test_what_was_chosen_is_known_and_holds_no_dataset() -> None:
    dataset = Numbers()
    loader = fl.DataLoader(dataset, batch_size=8, collate_fn=dataset.collate)
    gc.collect()  # what earlier tests left
    before = len(selection._chosen)
    list(loader)
    list(fl.DataLoader(dataset, batch_size=8, collate_fn=dataset.collate))
    assert len(selection._chosen) == before + 1
    fl.DataLoader(
        dataset, batch_size=8, collate_fn=dataset.collate, multiprocessing_context="spawn"
    ).choose_workers()
    assert len(selection._chosen) == before + 2  # what is fastest depends on how processes start
    gone = weakref.ref(dataset)
    del dataset, loader
    gc.collect()
    assert gone() is None
    assert len(selection._chosen) == before


def test_a_worker_init_fn_that_nobody_calls_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "why_not_started", lambda *_: "this is a daemonic process")
    loader = fl.DataLoader(Numbers(), batch_size=8, worker_init_fn=print)
    with pytest.warns(
        UserWarning, match="without worker_init_fn, because this is a daemonic process; num_workers=0"
    ):
        assert torch.cat(list(loader)).tolist() == list(range(64))
    assert loader.stats()["workers"]["count"] == 0


class Numbered(Dataset[int]):
    """A file of numbers that is opened when it is first needed, samples that wait, and a transform."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: Any = None
        self.transform: Any = None

    def __len__(self) -> int:
        return 600

    def __getitem__(self, index: int) -> int:
        time.sleep(0.003)
        if self.file is None:
            self.file = self.path.open("rb")
        self.file.seek(100 * index)
        number = int(self.file.read(100))
        return number if self.transform is None else int(self.transform(number))


class Count:
    """A transform that counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, sample: int) -> int:
        self.calls += 1
        return self.calls - 1


@pytest.fixture
def numbered(tmp_path: Path) -> Numbered:
    path = tmp_path / "numbers"
    path.write_bytes(b"".join(b"%99d\n" % number for number in range(600)))
    return Numbered(path)


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_new", [False, True], ids=["same loader", "new loader"])
@pytest.mark.parametrize("change", ["looks at a sample", "gives a transform"])
def test_a_choice_ends_with_its_reasons(
    numbered: Numbered, change: str, is_new: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between epochs the program opens the dataset's file, or gives it code that counts: no processes then."""
    # What is measured first may be anything on a busy machine.
    measure, chosen = choose.choose_workers, []

    def choose_workers(work: Workload) -> Choice:
        chosen.append(work)
        if len(chosen) > 1:
            return measure(work)
        return Choice("processes", 2, "tried", is_pure=True, fills=fills_of(work))

    monkeypatch.setattr(choose, "choose_workers", choose_workers)
    loader = fl.DataLoader(numbered, 20)
    assert torch.cat(list(loader)).tolist() == list(range(600))
    assert loader.stats()["workers"]["kind"] == "processes"
    if change == "looks at a sample":
        assert numbered[7] == 7
    else:
        numbered.transform = Count()
    if is_new:
        loader = fl.DataLoader(numbered, 20)
    for epoch in range(2):
        begin = 600 * epoch if numbered.transform else 0
        assert torch.cat(list(loader)).tolist() == list(range(begin, begin + 600))
    assert loader.stats()["workers"]["count"] == 0


def test_a_choice_stays_as_long_as_its_reasons_do(numbered: Numbered, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of the dataset may change, and what the calling thread opens itself."""
    measured = []
    measure = choose.choose_workers
    monkeypatch.setattr(choose, "choose_workers", lambda work: measured.append(work) or measure(work))
    numbers = Numbers()
    for epoch in range(3):
        numbers.epoch = epoch  # type: ignore[attr-defined]
        list(fl.DataLoader(numbers, 8))
        loader = fl.DataLoader(numbered, 20)
        loader.choose_workers()
        numbered.level = epoch  # type: ignore[attr-defined]
        loader.choose_workers()
    assert len(measured) == 2


def test_parts_that_outlive_the_module_end_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", errors.append)
    part = threading.Event()
    parts = selection._Parts.of(part)
    monkeypatch.setattr(selection, "_chosen", None)  # as when the interpreter ends
    del part
    assert parts is not None
    assert not errors


@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize("choice", [Choice("threads", 0, "tried"), Choice("processes", 3, "tried")])
def test_a_number_that_the_user_sets_later_is_the_users(
    choice: Choice, is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "choose_workers", lambda work: choice)
    loader = fl.DataLoader(Loading(), batch_size=4)
    if is_used:
        list(loader)
    loader.num_workers = 2
    loaded = list(loader)
    assert torch.cat([indices for indices, *_ in loaded]).tolist() == list(range(64))
    # Not threads, which the user's code may not allow for: processes, as if the number had been given at once.
    assert len({pid for _, pids, _ in loaded for pid in pids.tolist()} - {os.getpid()}) == 2
    assert loader.num_workers == 2
    assert pickle.loads(pickle.dumps(loader)).num_workers == 2
    loader.num_workers = 0
    threads = {ident for _, pids, idents in loader for ident in idents.tolist()}
    assert threads == {threading.get_ident()}
