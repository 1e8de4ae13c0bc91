"""``foreload.check_threads``: which samples it loads, and when two of them are equal."""

from __future__ import annotations

import copy
import ctypes
import faulthandler
import multiprocessing
import os
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset

from foreload.workers.thread_check.fingerprint import sample_fingerprint
from tests.workers.safe_datasets import Record, Unequal
from tests.workers.test_check_threads import check, mentions
from tests.workers.unsafe_datasets import SIZE, Computed, Samples, Scratch, pause


class Augment:
    """A transform with a buffer."""

    def __init__(self) -> None:
        self.buffer = np.zeros(4)

    def __call__(self, value: Any) -> Any:
        self.buffer[:] = value
        pause()
        return self.buffer.copy()


@pytest.mark.slow
def test_the_stack_is_shown_whoever_has_replaced_the_handler_of_fatal_signals() -> None:
    faulthandler.enable()
    before = signal.signal(signal.SIGABRT, signal.SIG_DFL)
    try:
        found = check(Computed(lambda _: time.sleep(600)), seconds=5)
    finally:
        signal.signal(signal.SIGABRT, before or signal.SIG_DFL)
    assert mentions(found.findings, "took longer than seconds=5", "test_checked_samples.py"), found


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("function", "words"), [
    (lambda _: ctypes.string_at(0), ("loading sample 0 alone ended the process", "SIGSEGV")),
    (lambda _: os._exit(3), ("loading sample 0 alone ended the process", "an exit")),
    (lambda _: time.sleep(600), ("loading sample 0 alone took longer than seconds=5", "test_checked_samples.py")),
    (lambda index: [][index], ("no sample can be loaded, alone either", "IndexError")),
    (lambda _: sys.exit("no"), ("no sample can be loaded, alone either", "SystemExit: no")),
])  # fmt: skip
def test_what_goes_wrong_alone_is_said(function: Callable[[int], Any], words: tuple[str, ...]) -> None:
    found = check(Computed(function), seconds=5 if "took longer" in words[0] else 10)
    assert not found.ok
    assert found.samples == 0
    assert mentions(found.findings, "Nothing was tried", *words), found


def test_samples_that_all_fail_are_not_said_to_have_been_tried() -> None:
    found = check(Computed(lambda _: time.sleep(0.1) or [][0]), seconds=2)
    assert mentions(found.findings, "Nothing was tried")
    assert not mentions(found.notes, "samples were tried"), found


def test_a_sample_that_fails_alone_too_is_no_matter_of_threads() -> None:
    found = check(Computed(lambda index: list(range(SIZE - 1))[index]))
    assert found.ok
    assert mentions(found.notes, f"Sample {SIZE - 1} cannot be loaded, alone either: IndexError")


def test_a_dataset_without_samples() -> None:
    found = check([])
    assert not found.ok
    assert found.findings == ["The dataset has no samples, so nothing was tried."]


def test_a_dataset_without_a_length_ends_with_an_index_error() -> None:
    class Endless(Dataset[int]):
        def __getitem__(self, index: int) -> int:
            return list(range(5))[index]

    assert check(Endless(), seconds=600).samples == 5


@pytest.mark.slow
def test_a_dataset_that_is_slow_is_tried_in_part() -> None:
    found = check(Computed(lambda index: time.sleep(0.5) or index), seconds=6)
    assert 0 < found.samples < SIZE
    assert mentions(found.notes, f"of {SIZE} samples were tried")


def test_an_iterable_dataset_is_refused() -> None:
    class Numbers(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    with pytest.raises(TypeError, match="dataset must be map-style, with __getitem__, got Numbers"):
        check(Numbers())
    with pytest.raises(TypeError, match="got int"):
        check(3)


@pytest.mark.parametrize(("options", "error", "message"), [
    ({"samples": 0}, ValueError, "samples must be 1 or more, got 0"),
    ({"samples": 1.5}, TypeError, "samples must be an int, got 1.5"),
    ({"seconds": 0}, ValueError, "seconds must be above 0, got 0"),
    ({"seconds": "long"}, TypeError, "seconds must be a number, got 'long'"),
    ({"transform": 5}, TypeError, "transform must be callable, got int"),
    ({"collate_fn": "pad"}, TypeError, "collate_fn must be callable, got str"),
])  # fmt: skip
def test_arguments_are_checked(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check([1, 2, 3], **options)


def test_samples_are_from_all_over_the_dataset() -> None:
    found = check(Computed(lambda index: [].pop() if index == SIZE - 1 else index), samples=3)
    assert found.samples == 3
    assert mentions(found.notes, f"Sample {SIZE - 1} cannot be loaded")


@pytest.mark.slow
def test_transforms_and_collate_functions_are_tried_too() -> None:
    found = check(list(range(SIZE)), transform=Augment())
    assert mentions(found.findings, "differ")
    assert mentions(found.findings, "'transform.buffer'")
    augment = Augment()
    found = check(list(range(SIZE)), collate_fn=lambda samples: augment(samples[0]))
    assert mentions(found.findings, "differ")
    assert mentions(found.findings, "augment.buffer'")
    assert check(list(range(SIZE)), transform=float, collate_fn=torch.tensor).ok


def test_several_samples_at_once_are_loaded_as_a_loader_loads_them() -> None:
    class Whole(Samples):
        def __getitem__(self, index: int) -> Any:
            raise AssertionError

        def __getitems__(self, indices: list[int]) -> list[int]:
            return [index * index for index in indices]

    assert check(Whole()).ok


def test_without_forks_a_copy_is_tried_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    scratch, interval = Scratch(), sys.getswitchinterval()
    found = check(scratch)
    assert mentions(found.notes, "cannot fork", "pickled copy")
    assert mentions(found.findings, "differ (in values)")
    assert not scratch.buffer.any()
    assert sys.getswitchinterval() == interval
    assert mentions(check(Computed(lambda index: index)).findings, "Nothing was tried", "cannot be copied")


NAN = struct.unpack("d", struct.pack("q", 0x7FF8000000000001))[0]


@pytest.mark.parametrize(("one", "other", "fields"), [
    (1, True, []),
    (1, 1.0, []),
    (0.0, -0.0, []),
    (float("nan"), NAN, []),
    ("a", b"a", []),
    ([1], (1,), []),
    ((1, 2), (1, 3), ["1"]),
    ({"a": 1, "b": 2}, {"a": 1, "b": 3}, ["b"]),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
    (Record("a", None, 1.0, frozenset()), Record("a", None, 1.0, frozenset("a")), ["tags"]),
    (torch.zeros(2), torch.zeros(2, 1), []),
    (torch.zeros(2), torch.zeros(2, dtype=torch.double), []),
    (torch.zeros(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16), []),
    (torch.zeros(2), torch.zeros(2, requires_grad=True), []),
    (torch.eye(2).to_sparse(), torch.eye(2).to_sparse().requires_grad_(), []),
    (torch.eye(2).to_sparse(), (2 * torch.eye(2)).to_sparse(), []),
    (np.zeros(2, "<i4"), np.zeros(2, ">i4"), []),
    (np.array(["a", 1], object), np.array(["a", 2], object), []),
    (np.ma.masked_array([1, 2], [0, 1]), np.ma.masked_array([1, 2], [1, 0]), []),
    (np.float32(1), np.float64(1), []),
    (Image.new("L", (2, 2)), Image.new("L", (2, 2), 1), []),
    (Unequal(1), Unequal(2), []),
    ({"x": [{"y": {1, 2}}]}, {"x": [{"y": {1, 3}}]}, ["x"]),
    (Path("a"), Path("b"), []),
    (torch.float16, torch.float32, []),
])  # fmt: skip
def test_samples_are_equal_if_they_are_bit_for_bit(one: Any, other: Any, fields: list[str]) -> None:
    assert sample_fingerprint(one).different(sample_fingerprint(other)) == fields
    for sample in (one, other):
        same = Unequal(sample.index) if isinstance(sample, Unequal) else copy.deepcopy(sample)
        assert sample_fingerprint(sample).different(sample_fingerprint(same)) is None


def test_a_sample_that_holds_itself_is_compared() -> None:
    samples: list[Any] = []
    for _ in range(2):
        sample: list[Any] = [1]
        sample.append(sample)
        samples.append(sample)
    assert sample_fingerprint(samples[0]) == sample_fingerprint(samples[1])
    assert sample_fingerprint(samples[0]).opaque == frozenset()


def test_what_is_found_is_shown_in_full() -> None:
    found = check(
        Scratch(), seconds=60
    )  # or samples are slow on a busy machine, for which there are fewer threads
    assert repr(found) == str(found)
    assert str(found).startswith(f"Threads should not share this dataset ({SIZE} samples alone and by 8 threads")
    assert f"\n- {found.findings[0]}" in str(found)
