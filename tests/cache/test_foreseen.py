"""Caches for code of one's own: other indices, other instances, other orders of things."""

from __future__ import annotations

import copy
import dataclasses
import gc
import multiprocessing
import pickle
import random
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import cachetools
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler, Subset

import foreload as fl

N, EPOCHS = 120, 3


class Base(Dataset[Any]):
    """Counts its calls, over all processes."""

    def __init__(self, size: int = N, shift: int = 0) -> None:
        self.size = size
        self.shift = shift
        self.calls = torch.zeros(size, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return self.size

    def make(self, index: Any) -> tuple[torch.Tensor, int]:
        self.calls[int(index)] += 1
        return torch.full((10,), float(index + self.shift)), int(index)


class Third(Base):
    @fl.OPTCache(maxsize=N // 3)
    def __getitem__(self, index: Any) -> tuple[torch.Tensor, int]:
        return self.make(index)


class Everything(Base):
    @fl.OPTCache()
    def __getitem__(self, index: Any) -> tuple[torch.Tensor, int]:
        return self.make(index)


class Rows(Dataset[torch.Tensor]):
    """Takes any index that its array takes."""

    def __init__(self) -> None:
        self.rows = torch.arange(2 * N).view(N, 2)

    def __len__(self) -> int:
        return N

    @fl.OPTCache()
    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.rows[index].clone()


def belady(accesses: list[int], capacity: int) -> int:
    """The loads of Belady's MIN with bypass, by looking ahead each time."""
    cached: set[int] = set()
    loads = 0
    for now, sample in enumerate(accesses):
        loads += sample not in cached
        cached.add(sample)
        ahead = {
            key: next((t for t in range(now + 1, len(accesses)) if accesses[t] == key), 1 << 60) for key in cached
        }
        cached = {key for key in cached if ahead[key] < 1 << 60}
        if len(cached) > capacity:
            cached.discard(max(cached, key=ahead.__getitem__))
    return loads


def lru(accesses: list[int], capacity: int) -> int:
    cached: OrderedDict[int, None] = OrderedDict()
    loads = 0
    for sample in accesses:
        loads += sample not in cached
        cached.pop(sample, None)
        cached[sample] = None
        if len(cached) > capacity:
            cached.popitem(last=False)
    return loads


def foretell(seed: int = 0, epochs: int = EPOCHS) -> tuple[torch.Generator, list[int]]:
    """A generator, told of, and the sequence that torch makes of it."""
    generator = torch.Generator().manual_seed(seed)
    fl.OPTInit(RandomSampler, generator, N, epochs=epochs)
    other = RandomSampler(range(N), replacement=True, generator=torch.Generator().manual_seed(seed))
    return generator, [index for _ in range(epochs) for index in other]


def run(make: Any, dataset: Any, drawn: torch.Generator, epochs: int = EPOCHS, **arguments: Any) -> list[int]:
    sampler = RandomSampler(dataset, replacement=True, generator=drawn)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        loader = make(dataset, sampler=sampler, **arguments)
        accesses = []
        for _ in range(epochs):
            for x, y in loader:
                assert (x == (y + dataset.shift)[:, None]).all()
                accesses += y.tolist()
    return accesses


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
@pytest.mark.parametrize("batch_size", [1, 10, 37])
@pytest.mark.parametrize("workers", [0, 3])
def test_any_sequence_is_loaded_as_rarely_as_can_be(seed: int, batch_size: int, workers: int) -> None:
    generator, expected = foretell(seed)
    dataset = Third()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        accesses = run(DataLoader, dataset, generator, batch_size=batch_size, num_workers=workers)
    assert accesses == expected
    assert dataset.calls.sum() == belady(expected, N // 3)
    assert torch.equal(generator.get_state(), after(seed))


def after(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    sampler = RandomSampler(range(N), replacement=True, generator=generator)
    for _ in range(EPOCHS):
        list(sampler)
    return generator.get_state()


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("persistent", [False, True])
def test_processes_that_begin_empty_share_it(method: str, persistent: bool) -> None:
    generator, expected = foretell(5, 2)
    dataset = Third()
    arguments = {"multiprocessing_context": method, "persistent_workers": persistent, "num_workers": 2}
    assert run(DataLoader, dataset, generator, 2, batch_size=10, **arguments) == expected
    assert dataset.calls.sum() == belady(expected, N // 3)


class Waiting(Base):
    """Reads from something slow, as datasets that are worth a cache do; so threads take turns."""

    @fl.OPTCache(maxsize=N // 3)
    def __getitem__(self, index: Any) -> tuple[torch.Tensor, int]:
        time.sleep(random.random() * 0.002)
        return self.make(index)


@pytest.mark.parametrize(
    ("workers", "batch_size"),
    [
        (0, 8),
        (4, 64),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 8), (8, 32))),
    ],
)
def test_our_threads_load_as_rarely(workers: int, batch_size: int) -> None:
    generator, expected = foretell(6, 6)
    dataset = Waiting()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        accesses = run(fl.DataLoader, dataset, generator, 6, batch_size=batch_size, num_workers=workers)
    assert accesses == expected
    assert dataset.calls.sum() == belady(expected, N // 3)


class Weighted(Sampler[int]):
    """A sampler of somebody's, with the signature that OPTInit asks for."""

    def __init__(self, source: Any, generator: torch.Generator) -> None:
        self.source, self.generator = source, generator

    def __iter__(self) -> Iterator[int]:
        weights = torch.arange(1, len(self.source) + 1.0)
        yield from torch.multinomial(weights, 2 * len(self.source), True, generator=self.generator).tolist()

    def __len__(self) -> int:
        return 2 * len(self.source)


def test_samplers_of_ones_own_are_foreseen() -> None:
    generator = torch.Generator().manual_seed(0)
    fl.OPTInit(Weighted, generator, N, epochs=2)
    dataset = Third()
    sampler = Weighted(dataset, generator)
    accesses = [index for _ in range(2) for _, y in DataLoader(dataset, sampler=sampler) for index in y.tolist()]
    assert len(accesses) == 4 * N
    assert dataset.calls.sum() == belady(accesses, N // 3)


def test_fewer_or_more_samples_than_there_are() -> None:
    for number in (7, 3 * N):
        generator = torch.Generator().manual_seed(0)
        fl.OPTInit(RandomSampler, generator, N, num_samples=number, epochs=2)
        dataset = Third()
        sampler = RandomSampler(dataset, True, number, generator)
        accesses = [i for _ in range(2) for _, y in DataLoader(dataset, 8, sampler=sampler) for i in y.tolist()]
        assert dataset.calls.sum() == belady(accesses, N // 3)


def test_the_warning_says_what_is_wrong_what_happens_now_and_what_to_do() -> None:
    foretell(3)
    with pytest.warns(UserWarning, match="OPT") as warned:
        run(DataLoader, Third(), torch.Generator().manual_seed(99), batch_size=8)
    (text,) = {str(w.message) for w in warned if "OPT" in str(w.message)}
    for words in ("has not drawn", "LRU", "class of the loader's sampler", "before the first epoch"):
        assert words in text


@pytest.mark.parametrize("workers", [0, 2])
def test_an_order_that_is_not_observed_is_served_as_lru(workers: int) -> None:
    foretell(3)
    dataset = Third()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = torch.Generator().manual_seed(99)
        accesses = run(DataLoader, dataset, other, batch_size=8, num_workers=workers)
    assert dataset.calls.sum() <= 1.1 * lru(accesses, N // 3)


# Which instance it serves.


def test_a_dataset_that_comes_after_another_never_gets_its_samples() -> None:
    foretell()
    first = Everything()
    for index in range(N):
        first[index]
    place = id(first)
    del first
    for _ in range(10_000):
        second = Everything(shift=1000)
        if id(second) == place:
            break
    else:
        pytest.skip("nothing came to lie where the first dataset was")
    assert [int(second[index][0][0]) for index in range(3)] == [1000, 1001, 1002]


def changed_copy(dataset: Everything, out: Any) -> None:
    dataset[3]
    other = copy.copy(dataset)
    other.shift = 1000
    out.put((float(dataset[3][0][0]), float(other[3][0][0])))


@pytest.mark.parametrize(
    "method",
    ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)],
)
def test_a_changed_copy_never_gets_the_originals_samples(method: str) -> None:
    foretell()
    dataset = Everything()
    context: Any = multiprocessing.get_context(method)
    out = context.Queue()
    process = context.Process(target=changed_copy, args=(dataset, out))
    process.start()
    assert out.get(timeout=60) == (3.0, 1003.0)
    process.join(60)


def test_copies_in_the_same_process_are_datasets_of_their_own() -> None:
    foretell()
    dataset = Everything()
    dataset[3]
    for other in (copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        other.shift = 1000
        for _ in range(2):
            assert other[3][0][0] == 1003
    assert dataset[3][0][0] == 3
    assert dataset.calls[3] <= 1 + 2 * 3


def test_both_of_two_instances_may_be_used_in_turns() -> None:
    generator, expected = foretell(1)
    train, valid = Third(), Third(shift=500)
    for epoch in range(EPOCHS):
        run(DataLoader, train, generator, 1, batch_size=8, num_workers=2 * (epoch % 2))
        for x, y in DataLoader(valid, batch_size=8, num_workers=2 * (epoch % 2)):
            assert (x == (y + 500)[:, None]).all()
    assert train.calls.sum() == belady(expected, N // 3)
    assert (valid.calls == EPOCHS).all()


class Child(Third):
    def __getitem__(self, index: Any) -> tuple[torch.Tensor, int]:
        x, y = super().__getitem__(index)
        return x + torch.rand(()), y


@pytest.mark.parametrize("method", [None, "fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_class_may_be_derived_from(method: str | None) -> None:
    generator, expected = foretell(1, 2)
    dataset = Child()
    loader: Any = DataLoader(
        dataset,
        batch_size=8,
        sampler=RandomSampler(dataset, replacement=True, generator=generator),
        num_workers=0 if method is None else 2,
        multiprocessing_context=method,
        persistent_workers=method == "spawn",  # each epoch's own would import everything anew
    )
    fractions = set()
    for _ in range(2):
        for x, y in loader:
            assert (x[:, 0].long() == y).all()
            fractions |= {float(value) % 1 for value in x[:, 0]}
    assert len(fractions) > N  # what the child adds is not cached
    assert dataset.calls.sum() == belady(expected, N // 3)


class Closed(Third):
    """Says itself how it is pickled."""

    def __reduce__(self) -> Any:
        return Closed._again, (self.shift, self.calls)

    @staticmethod
    def _again(shift: int, calls: torch.Tensor) -> Closed:
        made = Closed(N, shift)
        made.calls = calls
        return made


@pytest.mark.slow
def test_datasets_that_pickle_themselves_share_when_spawned() -> None:
    generator, expected = foretell(1, 2)
    dataset = Closed(shift=4)
    own: Any = {"multiprocessing_context": "spawn", "persistent_workers": True}
    run(DataLoader, dataset, generator, 2, batch_size=8, num_workers=2, **own)
    assert dataset.calls.sum() == belady(expected, N // 3)


def test_the_decorator_may_come_before_or_after_the_future() -> None:
    def make() -> Base:
        class Fresh(Base):
            @fl.OPTCache(maxsize=N // 3)
            def __getitem__(self, index: int) -> Any:
                return self.make(index)

        return Fresh()

    before = make()
    generator, expected = foretell(8)
    after_it = make()
    run(DataLoader, after_it, generator, batch_size=8)
    assert after_it.calls.sum() == belady(expected, N // 3)
    generator, expected = foretell(9)
    run(DataLoader, before, generator, batch_size=8)
    assert before.calls.sum() == belady(expected, N // 3)


def test_without_a_future_nothing_is_cached_and_nothing_is_wrong() -> None:
    latest, fl.OPTInit._latest = fl.OPTInit._latest, None
    try:

        class Alone(Base):
            @fl.OPTCache(maxsize=5)
            def __getitem__(self, index: int) -> Any:
                return self.make(index)

        dataset = Alone()
        for _ in range(2):
            list(DataLoader(dataset, batch_size=8))
        assert (dataset.calls == 2).all()
    finally:
        fl.OPTInit._latest = latest


def test_a_part_of_a_dataset_gets_its_own_samples() -> None:
    generator = torch.Generator().manual_seed(0)
    fl.OPTInit(RandomSampler, generator, 30, epochs=2)
    dataset = Third()
    part = Subset(dataset, list(range(N - 1, N - 31, -1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler = RandomSampler(part, replacement=True, generator=generator)
        for _ in range(2):
            for x, y in DataLoader(part, batch_size=8, sampler=sampler):
                assert (x == y[:, None]).all()


def test_a_sample_that_fails_fails_each_time_and_the_rest_goes_on() -> None:
    generator, expected = foretell(4)

    class Broken(Base):
        @fl.OPTCache(maxsize=N // 3)
        def __getitem__(self, index: int) -> Any:
            if index % 10 == 0:
                raise LookupError(index)
            return self.make(index)

    dataset = Broken()
    failures = 0
    for index in RandomSampler(dataset, True, EPOCHS * N, generator):
        try:
            x, y = dataset[index]
        except LookupError as error:
            failures += error.args == (index,)
        else:
            assert (x == index).all()
            assert y == index
    assert failures == sum(index % 10 == 0 for index in expected)
    assert dataset.calls.sum() <= belady(expected, N // 3)


# Indices of other kinds.


def test_indices_of_other_kinds_give_what_the_dataset_gives() -> None:
    foretell()
    dataset, plain = Rows(), torch.arange(2 * N).view(N, 2)
    for index in (3, -1, -N, slice(2, 4), True, None, ..., np.int32(7), np.uint8(7), torch.tensor(7), [1, 2]):
        for _ in range(2):
            assert torch.equal(dataset[index], plain[index])
    for wrong in (N, -N - 1, "a", 1.5):
        for _ in range(2):
            with pytest.raises((IndexError, TypeError)):
                dataset[wrong]


@pytest.mark.parametrize(
    "index", [np.array([1, 2]), torch.tensor([1, 2]), torch.zeros(N, dtype=torch.bool), np.arange(0)], ids=str
)
def test_several_indices_give_what_the_dataset_gives(index: Any) -> None:
    foretell()
    assert torch.equal(Rows()[index], torch.arange(2 * N).view(N, 2)[index])


@pytest.mark.parametrize("kind", [fl.OPTCache, fl.cached])
def test_a_list_of_one_index_is_not_that_index(kind: Any) -> None:
    foretell()

    class Others(Dataset[Any]):
        @kind(maxsize=None)
        def __getitem__(self, index: Any) -> torch.Tensor:
            return torch.arange(2 * N).view(N, 2)[index]

    others = Others()
    assert [others[index].shape for index in (3, torch.tensor([3]), 3)] == [(2,), (1, 2), (2,)]


# The classic ones.


class Model:
    """An LRU cache as a list, the one used last at the end."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.entries: list[tuple[int, Any]] = []
        self.hits = self.misses = self.evictions = 0

    def get(self, key: int) -> Any:
        for entry in self.entries:
            if entry[0] == key:
                self.entries.remove(entry)
                self.entries.append(entry)
                self.hits += 1
                return entry[1]
        self.misses += 1
        return "none"

    def put(self, key: int, value: Any) -> None:
        kept = [entry for entry in self.entries if entry[0] != key]
        kept.append((key, value))
        if self.capacity and len(kept) > self.capacity:
            self.evictions += 1
        self.entries = kept[-self.capacity :] if self.capacity else []


actions = st.tuples(st.sampled_from(["get", "put", "in", "copy"]), st.integers(0, 5)) | st.just(("clear", 0))


@given(st.integers(0, 4), st.lists(actions, max_size=40))
def test_an_lru_cache_is_the_model_after_any_actions(capacity: int, steps: list[tuple[str, int]]) -> None:
    cache: fl.LRUCache[int, Any] = fl.LRUCache(capacity)
    model = Model(capacity)
    for value, (action, key) in enumerate(steps):
        if action == "get":
            assert cache.get(key, "none") == model.get(key)
        elif action == "put":
            cache.put(key, None if value % 3 == 0 else value)
            model.put(key, None if value % 3 == 0 else value)
        elif action == "copy":
            cache = [copy.deepcopy, copy.copy, lambda c: pickle.loads(pickle.dumps(c))][key % 3](cache)
        elif action == "clear":
            cache.clear()
            model.entries = []
        else:
            assert (key in cache) == any(entry[0] == key for entry in model.entries)
        stats = cache.stats()
        assert (stats["hits"], stats["misses"], stats["evictions"]) == (model.hits, model.misses, model.evictions)
        assert len(cache) == stats["size"] == len(model.entries)


@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        lambda cache: pickle.loads(pickle.dumps(cache)),
    ],
    ids=["copy", "deepcopy", "pickle"],
)
def test_copies_of_an_lru_cache_go_their_own_ways(copied: Any) -> None:
    one: fl.LRUCache[str, int] = fl.LRUCache(3)
    one.put("a", 1)
    other = copied(one)
    assert other.get("a") == 1
    other.put("b", 2)
    assert "b" not in one


def test_keys_without_a_hash_harm_nobody() -> None:
    cache: fl.LRUCache[Any, int] = fl.LRUCache(2)
    cache.put("a", 1)
    with pytest.raises(TypeError, match="unhashable"):
        cache.get([1])
    with pytest.raises(TypeError, match="unhashable"):
        cache.put([1], 2)
    assert cache.get("a") == 1


BY_HAND: dict[str, Callable[[int], Any]] = {
    "lru": cachetools.LRUCache,
    "lfu": cachetools.LFUCache,
    "fifo": cachetools.FIFOCache,
    "random": cachetools.RRCache,
}


@pytest.mark.parametrize("policy", BY_HAND)
@given(st.lists(st.integers(0, 9), max_size=60), st.integers(0, 6), st.integers(0, 9))
def test_methods_are_called_as_rarely_as_cachetools_calls_them(
    policy: Any, keys: list[int], maxsize: int, seed: int
) -> None:
    class Squares:
        def __init__(self) -> None:
            self.calls: list[int] = []

        @fl.cached(maxsize, policy)
        def __getitem__(self, key: int) -> int:
            self.calls.append(key)
            return key * key

    squares = Squares()
    random.seed(seed)
    assert [squares[key] for key in keys] == [key * key for key in keys]
    random.seed(seed)
    cache = BY_HAND[policy](maxsize)
    loads = []
    for key in keys:
        if key in cache:
            cache[key]
        else:
            loads.append(key)
            if maxsize:
                cache[key] = True
    assert squares.calls == loads


def test_arguments_of_all_kinds() -> None:
    calls = []

    @fl.cached(maxsize=None)
    def add(a: Any, b: Any = 0, *, c: int = 0) -> Any:
        calls.append((a, b, c))
        return a

    for _ in range(2):
        for arguments, named in (
            ((1,), {}),
            ((1, 2), {}),
            ((1,), {"b": 2}),
            ((1,), {"c": 2}),
            (("1",), {}),
            ((None,), {}),
        ):
            assert add(*arguments, **named) == arguments[0]
    assert len(calls) == 6
    assert add([1]) == add([1]) == [1]
    assert len(calls) == 8
    with pytest.raises(TypeError):
        add()


def test_what_raises_is_not_kept() -> None:
    calls = []

    @fl.cached(maxsize=4)
    def half(x: int) -> int:
        calls.append(x)
        if len(calls) < 3:
            raise ZeroDivisionError
        return x // 2

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            half(4)
    assert half(4) == half(4) == 2
    assert len(calls) == 3


@pytest.mark.parametrize("policy", BY_HAND)
def test_cached_functions_serve_threads(policy: Any) -> None:
    square = fl.cached(maxsize=20, policy=policy)(lambda x: x * x)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for key in np.random.default_rng(seed).integers(0, 60, 4000).tolist():
                assert square(key) == key * key
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_cache_goes_with_its_instance() -> None:
    class Big:
        @fl.cached(maxsize=None)
        def load(self, index: int) -> Any:
            return results.setdefault(index, Result())

    class Result:
        pass

    import weakref

    results: dict[int, Any] = {}
    big = Big()
    alive = weakref.ref(big.load(1))
    assert big.load(1) is alive()
    results.clear()
    gc.collect()
    assert alive() is not None
    del big
    gc.collect()
    assert alive() is None


@dataclasses.dataclass(frozen=True)
class Named:
    """Two of one name are equal, whatever else is in them."""

    name: str
    shift: int = dataclasses.field(default=0, compare=False)

    @fl.cached(maxsize=8)
    def load(self, index: int) -> int:
        return index + self.shift


def test_instances_that_are_equal_are_two_all_the_same() -> None:
    one, other = Named("train"), Named("train", 1000)
    assert (one.load(1), other.load(1)) == (1, 1001)


@dataclasses.dataclass
class Record:
    """A dataclass has no hash unless it is asked for one."""

    calls: list[int]

    @fl.cached(maxsize=8)
    def load(self, index: int) -> int:
        self.calls.append(index)
        return index


def test_instances_without_a_hash_have_a_cache_too() -> None:
    record = Record([])
    assert record.load(1) == record.load(1) == 1
    assert record.calls == [1]


@fl.cached(maxsize=4)
def tripled(x: int) -> int:
    """Three times as much."""
    return 3 * x


def test_a_cached_function_can_be_pickled_as_others_can() -> None:
    assert pickle.loads(pickle.dumps(tripled))(2) == 6


def test_a_cached_function_looks_like_the_function() -> None:
    assert (tripled.__name__, tripled.__doc__) == ("tripled", "Three times as much.")
    assert (tripled.__qualname__, tripled.__module__) == ("tripled", __name__)


class Counted(Base):
    @fl.cached(maxsize=None, policy="lfu")
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.make(index)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_decorated_datasets_go_to_workers_of_all_kinds(method: str) -> None:
    dataset = Counted(40)
    dataset[3]
    loader: Any = DataLoader(
        dataset, batch_size=8, num_workers=2, multiprocessing_context=method, persistent_workers=True
    )
    for _ in range(3):
        assert [i for _, y in loader for i in y.tolist()] == list(range(40))
    # Batches go to the same worker in each epoch, and each worker has a cache of its own.
    assert dataset.calls.sum() <= 40 + 1 + 40


@pytest.mark.parametrize(
    ("maxsize", "error"),
    [
        (-1, ValueError),
        ("1GiB", TypeError),
        (1.5, TypeError),
        (True, TypeError),
    ],
)
def test_wrong_sizes_are_named(maxsize: Any, error: Any) -> None:
    with pytest.raises(error, match="maxsize must be"):
        fl.cached(maxsize)


def test_forgotten_brackets_are_named() -> None:
    with pytest.raises(TypeError, match="with brackets"):
        fl.cached(lambda x: x)  # type: ignore[arg-type, misc]


def test_epochs_begun_side_by_side_keep_their_orders_without_batches() -> None:
    orders = []
    for cache in (None, fl.Cache("1MiB", policy="lru")):
        loader = fl.DataLoader(range(8), None, shuffle=True, seed=3, num_workers=0, cache=cache)  # type: ignore[arg-type]
        first, second = iter(loader), iter(loader)
        orders.append([list(first), list(second)])
    assert orders[0] == orders[1]


class Looked(list[int]):
    """Indices of a subset, which count how often they were looked through."""

    times = 0

    def __array__(self, *_: Any, **__: Any) -> Any:
        self.times += 1
        return np.array(list(self))


def test_a_subset_is_looked_through_once_per_epoch() -> None:
    indices = Looked(range(8))
    loader = fl.DataLoader(Subset(list(range(10)), indices), num_workers=0, cache="1MiB")  # type: ignore[arg-type]
    list(loader)
    before = indices.times
    list(loader)
    assert indices.times - before == 1
