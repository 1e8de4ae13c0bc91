"""Samples come back from the store as they went in, whichever process is killed meanwhile."""

from __future__ import annotations

import collections
import dataclasses
import gc
import multiprocessing
import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from foreload.cache.serialize import deserialize, serialize
from foreload.cache.store import SampleStore

Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass
class Record:
    x: torch.Tensor
    name: str


def there_and_back(sample: Any) -> Any:
    return deserialize(np.concatenate(serialize(sample)))


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return (
            type(a) is type(b)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and a.layout == b.layout
            and bool(torch.equal(a.to_dense().nan_to_num(), b.to_dense().nan_to_num()))
        )
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b or a != a)


# (NumPy's own pickling gives dates and differences of times this machine's byte order.)
dtypes = hnp.scalar_dtypes().filter(lambda dtype: dtype.kind not in "mM" or dtype.isnative)
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
leaves = st.none() | st.integers() | st.floats() | st.text() | st.binary() | arrays
samples = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3) | st.tuples(inner),
)


@given(samples)
def test_any_nest_of_values_comes_back(sample: Any) -> None:
    assert same(there_and_back(sample), sample)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).view(2, 3).t(),
        torch.zeros(0, 3),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(2, dtype=torch.bool),
        torch.tensor(3.5),
        torch.arange(20.0).view(4, 5)[::2, 1:4],
        torch.arange(3).expand(4, 3),
        torch.tensor([1 + 2j]).conj(),
        torch.eye(3).to_sparse(),
        torch.nn.Parameter(torch.ones(2)),
    ],
    ids=[
        "transposed",
        "empty",
        "bfloat16",
        "bool",
        "scalar",
        "strided",
        "expanded",
        "conj",
        "sparse",
        "parameter",
    ],
)
def test_any_tensor_comes_back(tensor: torch.Tensor) -> None:
    back = there_and_back((tensor, {"again": [tensor]}))
    assert same(back[0], tensor)
    assert same(back[1]["again"][0], tensor)
    assert back[0].requires_grad == tensor.requires_grad


def test_other_objects_come_back() -> None:
    image = Image.new("RGB", (5, 4), (1, 2, 3))
    pair, record, picture = there_and_back((Pair(1, np.arange(3)), Record(torch.ones(2), "x"), image))
    assert isinstance(pair, Pair)
    assert record.name == "x"
    assert torch.equal(record.x, torch.ones(2))
    assert picture.tobytes() == image.tobytes()


def test_a_hit_may_be_changed() -> None:
    store = SampleStore(2, 1 << 16)
    for _ in range(3):
        x, y = store.load(1, lambda index: (torch.zeros(3), np.zeros(2)))
        assert x.sum() == y.sum() == 0
        x += 1
        y += 1


def test_what_cannot_be_pickled_is_loaded_each_time() -> None:
    store = SampleStore(3, 1 << 16)
    with pytest.warns(UserWarning, match="sample 1 cannot be cached") as warned:
        for _ in range(3):
            assert store.load(1, lambda index: lambda: index)() == 1
    assert len(warned) == 1
    assert store.native.counts()["hits"] == 0


@pytest.mark.parametrize("room", [0, 100, 5000])
def test_too_little_room_is_no_harm(room: int) -> None:
    store = SampleStore(4, room)
    with pytest.warns(UserWarning, match="more than the cache's whole budget") as warned:
        for index in [0, 1, 2, 3] * 2:
            assert store.load(index, lambda index: torch.full((2000,), index)).tolist() == [index] * 2000
    assert len(warned) == 1


def test_sizes_may_change() -> None:
    store = SampleStore(5, 40_000)
    store.native.follow_rule("recent")
    random = np.random.default_rng(0)
    for _ in range(2000):
        index, size = int(random.integers(5)), int(random.integers(1, 3000))
        found = store.load(index, lambda index, size=size: np.full(size, index))
        assert (found == index).all()
    counts = store.native.counts()
    assert counts["peak"] <= counts["room"] <= 40_000


def read(index: int) -> torch.Tensor:
    return torch.full((50 + 13 * index,), index)


def use(store: SampleStore, seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(count):
        index = int(random.integers(len(store)))
        assert torch.equal(store.load(index, read), read(index))


@pytest.mark.parametrize("method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_processes_share_one_store(method: str) -> None:
    store = SampleStore(30, 1 << 20)
    store.load(3, read)
    context: Any = multiprocessing.get_context(method)
    workers = [context.Process(target=use, args=(store, seed, 200)) for seed in range(2)]
    for worker in workers:
        worker.start()
    use(store, 9, 200)
    for worker in workers:
        worker.join(300)
        assert worker.exitcode == 0
    counts = store.native.counts()
    assert counts["hits"] + counts["misses"] == 601
    assert counts["misses"] == counts["kept"] == 30


def test_a_copy_begins_empty() -> None:
    import copy

    store = SampleStore(3, 1 << 16)
    store.load(0, read)
    other = copy.deepcopy(store)
    assert not other.residents().any()
    assert store.residents().tolist() == [True, False, False]


def stall(index: int) -> torch.Tensor:
    os.write(stall.told, b"x")  # type: ignore[attr-defined]
    time.sleep(60)
    return read(index)


def test_a_process_killed_while_it_loads_leaves_a_miss() -> None:
    store = SampleStore(5, 1 << 16)
    heard, stall.told = os.pipe()  # type: ignore[attr-defined]
    worker: Any = multiprocessing.get_context("fork").Process(target=store.load, args=(2, stall))
    worker.start()
    assert os.read(heard, 1) == b"x"
    results: list[torch.Tensor] = []
    waiting = threading.Thread(target=lambda: results.append(store.load(2, read)))
    waiting.start()
    waiting.join(0.2)
    assert not results  # somebody is loading it
    os.kill(worker.pid, signal.SIGKILL)
    waiting.join(300)
    worker.join(300)
    assert torch.equal(results[0], read(2))
    assert torch.equal(store.load(2, lambda index: pytest.fail("it is cached")), read(2))
    os.close(heard)
    os.close(stall.told)  # type: ignore[attr-defined]


def test_a_read_that_fails_is_tried_again() -> None:
    store = SampleStore(2, 1 << 16)
    with pytest.raises(ZeroDivisionError):
        store.load(0, lambda index: 1 // index)
    assert store.load(0, read).tolist() == [0] * 50


def test_many_at_once_are_read_by_one_call() -> None:
    store = SampleStore(10, 1 << 16)
    calls: list[list[int]] = []

    def many(indices: list[int]) -> list[torch.Tensor]:
        calls.append(indices)
        return [read(index) for index in indices]

    assert [len(x) for x in store.load_many([1, 2, 1], many)] == [63, 76, 63]
    store.load_many([2, 3], many)
    assert calls == [[1, 2], [3]]


def test_many_at_once_from_several_threads_do_not_wait_for_each_other_for_ever() -> None:
    store = SampleStore(12, 1 << 20)

    def many(indices: list[int]) -> list[torch.Tensor]:
        time.sleep(0.0005)
        return [read(index) for index in indices]

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(60):
            wanted = random.permutation(12)[:6].tolist()
            for index, sample in zip(wanted, store.load_many(wanted, many), strict=True):
                assert torch.equal(sample, read(index))
            store.native.clear()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()


def test_nothing_is_left_behind() -> None:
    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    def shared() -> set[str]:
        return {name for name in os.listdir("/dev/shm") if str(os.getpid()) in name}  # others come and go

    gc.collect()  # what tests before this one left holds descriptors too
    before, memory = files(), shared()
    stores = [SampleStore(10, 1 << 20) for _ in range(5)]
    for store in stores:
        store.load(1, read)
    assert files() == before + 5
    del stores, store
    gc.collect()
    assert files() == before
    assert shared() == memory
