"""The loop's context, and generators apart from the loop's, in every kind of worker and of thread."""

from __future__ import annotations

import contextvars
import decimal
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import foreload as fl

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nothing")

KINDS = [{"num_workers": 0}, {"num_workers": 2, "workers": "threads"}, {"num_workers": 2, "workers": "processes"}]


class Context(Dataset[Any]):
    """Samples that say in what context they are loaded."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        weight = torch.ones(2, requires_grad=True)
        return (
            (weight * 2).requires_grad,
            torch.is_inference_mode_enabled(),
            variable.get(),
            decimal.getcontext().prec,
            torch.get_default_dtype(),
        )


class Product(Dataset[Any]):
    """Samples whose dtype depends on torch's autocast."""

    thread_safe = True

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


class ContextStream(IterableDataset[Any]):
    """The same as a stream."""

    def __iter__(self) -> Any:
        return (Context()[index] for index in range(4))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS, ids=["none", "threads", "processes"])
@pytest.mark.parametrize("dataset", [Context(), ContextStream()], ids=["map", "stream"])
def test_the_loops_context_holds_in_worker_threads(kind: dict[str, Any], dataset: Any) -> None:
    """Autograd modes, the default dtype, context variables and the decimal context are those of the loop."""

    def seen() -> set[Any]:
        return {sample for batch in fl.DataLoader(dataset, 4, collate_fn=list, **kind) for sample in batch}

    assert seen() == {(True, False, "nothing", 28, torch.float32)}
    token = variable.set("something")
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad(), decimal.localcontext() as context:
            context.prec = 5
            assert seen() == {(False, False, "something", 5, torch.float64)}
        with torch.inference_mode():
            assert seen() == {(False, True, "something", 28, torch.float64)}
        with torch.no_grad(), torch.enable_grad():
            assert seen() == {(True, False, "something", 28, torch.float64)}
    finally:
        variable.reset(token)
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("kind", [*KINDS, {}], ids=["none", "threads", "processes", "auto"])
def test_autocast_of_the_loop_holds_for_samples_that_are_loaded_for_it(kind: dict[str, Any]) -> None:
    def seen() -> set[Any]:
        return {sample for batch in fl.DataLoader(Product(), 4, collate_fn=list, **kind) for sample in batch}

    assert seen() == {torch.float32}
    with torch.autocast("cpu", torch.float16):
        assert seen() == {torch.float16}
    assert seen() == {torch.float32}


def test_autocast_of_the_loop_keeps_its_casts_and_not_those_of_its_threads() -> None:
    class Casts(Product):
        def __getitem__(self, index: int) -> Any:
            return torch.is_autocast_enabled("cpu") and torch.is_autocast_cache_enabled()

    def seen() -> set[Any]:
        loader = fl.DataLoader(Casts(), 4, collate_fn=list, num_workers=2, workers="threads")
        return {sample for batch in loader for sample in batch}

    assert seen() == {False}
    weight = torch.ones(2, 2, requires_grad=True)
    with torch.autocast("cpu"):
        before = weight @ weight
        assert seen() == {False}
        assert torch.is_autocast_cache_enabled()
        # What was cast before is a part of both graphs: nobody has cleared it meanwhile.
        casts = [{name for name, _ in result.grad_fn.next_functions} for result in (before, weight @ weight)]
        assert casts[0] == casts[1]


@pytest.mark.parametrize("kind", KINDS[:2], ids=["none", "threads"])
def test_a_samples_own_autocast_keeps_its_casts_whatever_mode_the_loop_is_in(kind: dict[str, Any]) -> None:
    class Casts(Product):
        def __getitem__(self, index: int) -> Any:
            with torch.autocast("cpu"):
                return torch.is_autocast_cache_enabled()

    with torch.no_grad():
        loader = fl.DataLoader(Casts(), 4, collate_fn=list, **kind)
        assert {sample for batch in loader for sample in batch} == {True}


def test_weights_that_a_thread_casts_late_are_cast_anew_by_the_loops_next_autocast() -> None:
    weight, has_ended = torch.nn.Parameter(torch.ones(2, 2)), threading.Event()

    class Weighted(Product):
        thread_safe = True

        def __getitem__(self, index: int) -> Any:
            assert has_ended.wait(60)
            return (torch.ones(2, 2) @ weight).sum().item()

    with torch.autocast("cpu"):
        batches = iter(fl.DataLoader(Weighted(), 4, collate_fn=list, num_workers=1, workers="threads"))
    has_ended.set()
    assert {sample for batch in batches for sample in batch} == {8.0}
    with torch.no_grad():
        weight.fill_(3.0)
    with torch.autocast("cpu"):
        assert (torch.ones(2, 2) @ weight).sum() == 24


@pytest.mark.parametrize("kind", KINDS[:2], ids=["none", "threads"])
@pytest.mark.parametrize("seed", [None, 0])
def test_the_default_device_of_the_loop_holds_for_samples_that_are_loaded_for_it(
    kind: dict[str, Any], seed: int | None
) -> None:
    class Drawn(Product):
        def __getitem__(self, index: int) -> Any:
            return (torch.zeros(2) + torch.rand(2)).device.type

    batches = iter(fl.DataLoader(Drawn(), 1, collate_fn=list, seed=seed, **kind))
    with torch.device("meta"):
        devices = [device for batch in batches for device in batch]
    # (The first batches of threads were requested before.)
    assert devices[5:] == ["meta", "meta", "meta"]


def test_the_context_of_each_batch_is_that_of_its_request() -> None:
    """Threads load a batch in the context of the loop at the time that it was requested ahead."""
    loader = fl.DataLoader(Context(), 4, collate_fn=list, num_workers=1, workers="threads", prefetch_factor=1)
    with torch.no_grad():
        batches = iter(loader)
    with torch.no_grad():
        first = next(batches)
    assert not first[0][0]


@pytest.fixture
def hostile_switching() -> Iterator[None]:
    """Let threads take turns a hundred times as often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


class Draws(Dataset[Any]):
    """Samples of random numbers."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([random.random(), np.random.rand(), torch.rand(()).item(), random.gauss(0, 1)])


class DrawsOn(IterableDataset[Any]):
    """The same as a stream."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Any:
        return (Draws(self.size)[index] for index in range(self.size))


@pytest.mark.parametrize("kind", [Draws, DrawsOn])
@pytest.mark.parametrize("options", [{"num_workers": 0}, {"workers": "threads", "num_workers": 2}], ids=str)
def test_loops_of_several_threads_neither_share_generators_nor_touch_the_main_threads(
    kind: Any, options: Any, hostile_switching: None
) -> None:
    """As in a program that trains in the main thread, and loads in threads of its own."""

    def load() -> torch.Tensor:
        own = torch.Generator().manual_seed(0)  # torch draws the seed of an epoch's workers from it
        return torch.cat(list(fl.DataLoader(kind(100), batch_size=5, seed=3, generator=own, **options)))

    expected = load()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    alone = [(torch.rand(()).item(), random.random(), random.gauss(0, 1), np.random.rand()) for _ in range(3000)]
    found: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: found.append(load())) for _ in range(3)]
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    for thread in threads:
        thread.start()
    beside = [(torch.rand(()).item(), random.random(), random.gauss(0, 1), np.random.rand()) for _ in range(3000)]
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert all(torch.equal(one, expected) for one in found)
    assert beside == alone


def test_what_a_thread_draws_itself_comes_from_the_global_generators() -> None:
    """A thread that loops over a loader is the user's: only its samples draw from generators lent to it."""

    def loop() -> None:
        loader = fl.DataLoader(Draws(8), batch_size=2, seed=3, num_workers=0)
        drawn.extend((random.random(), np.random.rand(), torch.rand(()).item()) for _ in loader)

    drawn: list[Any] = []
    for turn in range(2):
        torch.manual_seed(1), random.seed(1), np.random.seed(1)
        thread = threading.Thread(target=loop)
        thread.start() if turn else loop()
        if turn:
            thread.join()
    assert drawn[:4] == drawn[4:]


def test_a_stream_goes_on_in_another_thread() -> None:
    loader = fl.DataLoader(DrawsOn(12), batch_size=2, seed=3, num_workers=0)
    expected = list(loader)
    batches = iter(fl.DataLoader(DrawsOn(12), batch_size=2, seed=3, num_workers=0))
    found: list[torch.Tensor] = []
    for turn in range(6):
        if turn % 2:
            found.append(next(batches))
        else:
            thread = threading.Thread(target=lambda: found.append(next(batches)))
            thread.start()
            thread.join()
    assert torch.equal(torch.cat(found), torch.cat(expected))


@pytest.mark.parametrize("kind", KINDS, ids=["none", "threads", "processes"])
def test_a_dataset_that_loads_ahead_is_keyed_behind_a_cache_too(kind: dict[str, Any]) -> None:
    def load() -> torch.Tensor:
        dataset = fl.AsyncPrefetchDataset(Draws(16), num_workers=2)
        loader = fl.DataLoader(dataset, batch_size=2, seed=3, cache="1MiB", **kind)
        first, second = torch.cat(list(loader)), torch.cat(list(loader))
        dataset.close()
        return torch.cat([first, second])

    assert torch.equal(load(), load())
