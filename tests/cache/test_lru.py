"""LRUCache against a model of it, in threads and in copies."""

from __future__ import annotations

import copy
import pickle
import threading
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import foreload as fl


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


@given(st.integers(0, 4), st.lists(st.tuples(st.booleans(), st.integers(0, 6))))
def test_an_lru_cache_does_what_it_says(capacity: int, actions: list[tuple[bool, int]]) -> None:
    cache: fl.LRUCache[int, int] = fl.LRUCache(capacity)
    model: OrderedDict[int, int] = OrderedDict()
    for step, (put, key) in enumerate(actions):
        if put:
            cache.put(key, step)
            model.pop(key, None)
            model[key] = step
            if len(model) > capacity:
                model.popitem(last=False)
        else:
            assert cache.get(key, "none") == model.get(key, "none")
            if key in model:
                model.move_to_end(key)
        assert len(cache) == len(model)
        assert all((key in cache) == (key in model) for key in range(7))
    cache.clear()
    assert len(cache) == 0


def test_an_lru_cache_serves_threads() -> None:
    cache: fl.LRUCache[int, int] = fl.LRUCache(50)

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for key in random.integers(0, 100, 5000).tolist():
            value = cache.get(key)
            assert value in (None, key * key)
            cache.put(key, key * key)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = cache.stats()
    assert len(cache) == stats["size"] == stats["capacity"] == 50
    assert stats["hits"] + stats["misses"] == 20_000


def test_wrong_capacities_are_named() -> None:
    with pytest.raises(ValueError, match="capacity must be 0 or more"):
        fl.LRUCache(-1)
    with pytest.raises(TypeError, match="capacity must be an int"):
        fl.LRUCache("10")  # type: ignore[arg-type]
