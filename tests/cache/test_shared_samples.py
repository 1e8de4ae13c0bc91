"""The store used by many threads and processes at once, some of which are killed."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pathlib
import signal
import subprocess
import textwrap
import threading
import time
from typing import Any

import numpy as np
import pytest

from foreload.cache.store import SampleStore
from tests.cache.test_failing_reads import keep_only, within
from tests.programs import Program


def size_of(index: int, turn: int) -> int:
    return 1 + (index * 7919 + turn * 104_729) % 4000


def varied(index: int) -> np.ndarray[Any, Any]:
    return np.full(size_of(index, int(time.monotonic() * 1000)), index)


def stress(store: SampleStore, seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    for index in random.integers(0, len(store), count).tolist():
        sample = store.load(index, varied)
        assert len(sample)
        assert (sample == index).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rule", ["all", "recent", "members", "accesses"])
@pytest.mark.parametrize("budget", [50_000, 400_000])
def test_threads_and_processes_never_take_more_than_the_budget(rule: str, budget: int) -> None:
    samples = 80
    store = SampleStore(samples, budget, accesses=20_000)
    random = np.random.default_rng(0)
    if rule == "members":
        keep_only(store, *random.permutation(samples)[:40].tolist())
    elif rule == "accesses":
        store.native.follow_accesses(
            random.integers(0, samples, 20_000),
            random.integers(0, 2, 20_000).astype(np.uint8),
            np.ones(samples, np.uint8),
        )
    else:
        store.native.follow_rule(rule)
    context: Any = multiprocessing.get_context("fork")
    workers = [context.Process(target=stress, args=(store, seed, 1500)) for seed in range(3)]
    for worker in workers:
        worker.start()
    errors: list[BaseException] = []

    def thread(seed: int) -> None:
        try:
            stress(store, seed, 1500)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=thread, args=(seed,)) for seed in (10, 11)]
    for each in threads:
        each.start()
    seen = 0
    while any(worker.is_alive() for worker in workers) or any(each.is_alive() for each in threads):
        counts = store.native.counts()
        seen = max(seen, counts["used"])
        assert counts["used"] <= counts["room"]
        time.sleep(0.001)
    for each in [*threads, *workers]:
        each.join(300)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert not errors
    counts = store.native.counts()
    assert seen <= counts["peak"] <= counts["room"] <= budget
    assert counts["hits"] + counts["misses"] == 5 * 1500
    assert counts["hits"] > 0


def stress_for_ever(store: SampleStore, seed: int) -> None:
    while True:
        stress(store, seed, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["all", "recent", "accesses"])
def test_processes_killed_at_any_moment_do_no_harm(rule: str) -> None:
    samples = 50
    store = SampleStore(samples, 300_000, accesses=100_000)
    random = np.random.default_rng(0)
    if rule == "accesses":
        store.native.follow_accesses(
            random.integers(0, samples, 100_000),
            random.integers(0, 2, 100_000).astype(np.uint8),
            np.ones(samples, np.uint8),
        )
    else:
        store.native.follow_rule(rule)
    context: Any = multiprocessing.get_context("fork")
    for seed in range(12):
        workers = [context.Process(target=stress_for_ever, args=(store, 10 * seed + i)) for i in range(3)]
        for worker in workers:
            worker.start()
        time.sleep(0.01 + 0.03 * random.random())
        within(300, lambda seed=seed: stress(store, 1000 + seed, 200) or True)
        for worker in workers:
            assert worker.is_alive(), f"it found a wrong sample, exit code {worker.exitcode}"
            os.kill(worker.pid, signal.SIGKILL)
        # Some are not yet waited for.
        within(300, lambda seed=seed: stress(store, 2000 + seed, 200) or True)
        for worker in workers:
            worker.join(300)
    counts = store.native.counts()
    assert counts["used"] <= counts["peak"] <= counts["room"] <= 300_000
    for index in range(samples):
        assert (within(300, lambda index=index: store.load(index, varied)) == index).all()


def test_a_fork_after_use_shares_and_a_parent_that_ends_first_is_no_harm() -> None:
    program = """
        import os, sys, time
        import numpy as np
        from foreload.cache.store import SampleStore
        store = SampleStore(5, 1 << 16)
        for index in range(3):
            store.load(index, lambda index: np.full(9, index))
        out, into = os.pipe()
        if os.fork() == 0:
            os.close(into)
            os.read(out, 1)  # the parent is gone
            assert store.residents().tolist() == [True, True, True, False, False]
            for index in range(5):
                assert (store.load(index, lambda index: np.full(9, index)) == index).all()
            counts = store.native.counts()
            assert (counts["hits"], counts["misses"]) == (3, 5), counts
            os.write(1, b"fine")
            os._exit(0)
        os.close(out)
        os._exit(0)
    """
    parent = Program("-c", textwrap.dedent(program), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    # Not until the pipes are closed by the last that has them open.
    assert parent.communicate(timeout=300) == ("fine", "")


@pytest.mark.parametrize("method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_whoever_shares_a_store_leaves_nothing_behind(method: str) -> None:
    def left() -> tuple[int, list[str], int]:
        gc.collect()
        maps = pathlib.Path("/proc/self/maps").read_text().count("memfd:foreload")
        return (
            len(os.listdir("/proc/self/fd")),
            sorted(name for name in os.listdir("/dev/shm") if "foreload" in name),
            maps,
        )

    context: Any = multiprocessing.get_context(method)
    warm = context.Process(target=int)  # starts the fork server and the like
    warm.start()
    warm.join(300)
    del warm
    before = left()
    store = SampleStore(80, 1 << 20)
    workers = [context.Process(target=stress, args=(store, seed, 50)) for seed in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(300)
        assert worker.exitcode == 0
    assert store.native.counts()["misses"] < 200
    del store, worker, workers
    assert left() == before


def test_a_reader_killed_in_the_middle_of_a_copy_holds_nothing() -> None:
    # Samples so large that a kill meets a copy nearly every time.
    store = SampleStore(3, 67 << 20)  # for two

    def large(index: int) -> np.ndarray[Any, Any]:
        return np.full(4 << 20, index, np.int64)

    def read_for_ever() -> None:
        while True:
            store.load(0, large)

    store.load(0, large)
    for _ in range(4):
        worker: Any = multiprocessing.get_context("fork").Process(target=read_for_ever)
        worker.start()
        time.sleep(0.05)
        os.kill(worker.pid, signal.SIGKILL)
        # On a busy machine it may go on for a while. When it has ended, it is not yet waited for.
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
        keep_only(store, 1, 2)
        # Not without the memory of sample 0, which the process was reading.
        for index in (1, 2):
            assert within(300, lambda index=index: store.load(index, large))[5] == index
        assert store.residents().tolist() == [False, True, True]
        worker.join(300)
        keep_only(store, 0)
        assert within(300, lambda: store.load(0, large))[5] == 0
        assert store.residents().tolist() == [True, False, False]
