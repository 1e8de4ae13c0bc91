"""Samples and workers that fail on a Ray cluster: errors in their place, and epochs that go on."""

from __future__ import annotations

import gc
import importlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.ray.parts import Drawn, Lethal, here, on_ray, plain, running_cluster

pytest.importorskip("ray")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Any]:
    with running_cluster() as cluster:
        yield cluster


def test_an_exception_comes_in_its_place_and_the_epoch_goes_on() -> None:
    epoch = iter(on_ray(Drawn(12, fails=frozenset({5})), batch_size=4))
    assert next(epoch)["index"].tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="no such picture: 5") as caught:
        next(epoch)
    notes = "\n".join(caught.value.__notes__)
    assert "sample 5 (position 1 of its batch)" in notes
    assert "in __getitem__" in notes  # the worker's traceback
    assert next(epoch)["index"].tolist() == [8, 9, 10, 11]


def test_samples_that_fail_are_replaced() -> None:
    options: Any = {"batch_size": 4, "on_error": "replace", "seed": 0}
    loaders = [make(Drawn(12, fails=frozenset({5, 8})), **options) for make in (on_ray, here)]
    got, expected = map(plain, loaders)
    assert got == expected
    assert [(e.index, e.error, e.action) for e in loaders[0].errors] == [
        (e.index, e.error, e.action) for e in loaders[1].errors
    ]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sample_that_kills_its_workers_is_named(workers: int) -> None:
    loader = on_ray(Lethal(12, fails=frozenset({5})), workers, batch_size=4, max_restarts=1)
    with pytest.raises(RuntimeError, match=r"2 workers ended while .* samples \[4, 5, 6, 7\] \(max_restarts=1\)"):
        list(loader)
    # The answer with the batch before it is lost sometimes, if one worker had both; then each is made alone.
    restart = loader.stats()["restarts"][-1]
    assert restart["indices"][0] == [4, 5, 6, 7]
    assert restart["node"]


class Interrupted(Drawn):
    def __getitem__(self, index: int) -> Any:
        if index in self.fails:
            raise KeyboardInterrupt  # by which Ray tells a task that it is cancelled
        return super().__getitem__(index)


def test_a_sample_that_interrupts_its_worker_ends_it() -> None:
    with on_ray(Interrupted(8, frozenset({5})), 1, batch_size=4, prefetch_factor=1, max_restarts=0) as loader:
        batches = iter(loader)
        assert next(batches)["index"].tolist() == [0, 1, 2, 3]
        with pytest.raises(RuntimeError, match=r"has ended.*\[4, 5, 6, 7\] \(max_restarts=0\)"):
            next(batches)


def test_a_dataset_that_nodes_cannot_unpickle() -> None:
    class Missing:
        def __reduce__(self) -> Any:
            return importlib.import_module, ("no_such_module_anywhere",)

        def __len__(self) -> int:
            return 4

    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere") as caught:
        next(iter(on_ray(Missing())))
    assert "runtime_env" in "".join(caught.value.__notes__)


def test_a_late_batch_is_an_error() -> None:
    class Late(Drawn):
        def __getitem__(self, index: int) -> Any:
            if index == 3:
                importlib.import_module("time").sleep(100)
            return index

    order = [0, 1]
    with on_ray(Late(), batch_size=2, sampler=order, persistent_workers=True) as loader:
        assert plain(loader) == [[0, 1]]
        order += [2, 3]
        loader.timeout = 3
        with pytest.raises(RuntimeError, match=r"timed out after 3 seconds; Ray worker \d .* samples \[2, 3\]"):
            list(loader)


def test_an_epoch_may_become_garbage_in_one_of_rays_threads() -> None:
    import ray

    epochs = [iter(on_ray(Drawn(), batch_size=2))]
    next(epochs[0])
    is_gone = threading.Event()

    def forget(_: Any) -> None:
        epochs.clear()
        gc.collect()
        is_gone.set()

    ray.remote(num_cpus=0)(lambda: 0).remote().future().add_done_callback(forget)
    assert is_gone.wait(60)
    assert len(plain(on_ray(Drawn(), batch_size=2))) == len(Drawn()) // 2


def test_another_thread_may_close_an_epoch() -> None:
    class Stuck(Drawn):
        def __getitem__(self, index: int) -> Any:
            threading.Event().wait(60)

    epoch = iter(on_ray(Stuck(), batch_size=2))
    timer = threading.Timer(1.0, epoch.close)
    timer.start()
    with pytest.raises(RuntimeError, match="another thread closed this epoch"):
        next(epoch)
    timer.join()
