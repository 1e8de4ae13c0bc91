"""A state that was changed on its way is refused with one ValueError, or goes on somewhere; it never does harm."""

from __future__ import annotations

import base64
import copy
import io
import json
import random
import tarfile
import tracemalloc
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler, IterableDataset, Sampler, WeightedRandomSampler

import foreload as fl
from foreload.order.generator_states import check_sampler_states, check_text, generator_text, sampler_states

DATA = list(range(40))

KINDS: list[Any] = [
    None, True, False, -1, 0, 1, 2, 10**6, 10**30, -(10**30), 1e300, float("nan"), float("inf"), "", "x",
    "x" * 3000,
    [], [[]], [None] * 3, {}, {"a": {}}, (1, 2), [0, 5], [[0, 4]], [[4, 0]], [[0, 10**20]], [["a", 1]], b"x",
    object(),
    {1: 2}, torch.zeros(2), [[[[[]]]]],
]  # fmt: skip


def change(value: Any, rng: random.Random) -> Any:
    """Return a value with a part of it exchanged, left out or repeated."""
    if rng.random() < 0.2 or not isinstance(value, (dict, list, tuple)) or not value:
        if isinstance(value, str) and value and rng.random() < 0.5:
            at = rng.randrange(len(value))
            return rng.choice((value[:at], value[:at] + rng.choice("aB+/=\u00e9") + value[at + 1 :], value[::-1]))
        if isinstance(value, int) and rng.random() < 0.5:
            return rng.choice(
                (value + 1, value - 1, -value, value * 2, float(value), str(value), int(value) << 64)
            )
        return rng.choice(KINDS)
    if isinstance(value, dict):
        name = rng.choice(list(value))
        if rng.random() < 0.08:
            return {key: part for key, part in value.items() if key != name}
        return {**value, name: change(value[name], rng)}
    at = rng.randrange(len(value))
    parts = list(value)
    kind = rng.random()
    parts[at : at + 1] = [] if kind < 0.1 else [value[at]] * 2 if kind < 0.2 else [change(value[at], rng)]
    return type(value)(parts)


class Counting(IterableDataset[int]):
    """Forty numbers."""

    def __iter__(self) -> Iterator[int]:
        return iter(DATA)


class Own(Sampler[int]):
    """A sampler without a state."""

    def __init__(self) -> None: ...

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(40).tolist())

    def __len__(self) -> int:
        return 40


class Numbers:
    """Forty numbers, in blocks."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        assert 0 <= index < 40
        return index


def shards(folder: Path) -> list[str]:
    paths = []
    for number in range(4):
        path = folder / f"{number}.tar"
        if not path.exists():
            with tarfile.open(path, "w") as tar:
                for sample in range(10):
                    member = tarfile.TarInfo(f"{number}{sample}.txt")
                    member.size = 2
                    tar.addfile(member, io.BytesIO(b"%d%d" % (number, sample)))
        paths.append(str(path))
    return paths


LOADERS: dict[str, Callable[[Path], Any]] = {
    "in order": lambda _: fl.DataLoader(DATA, batch_size=4),
    "shuffled": lambda _: fl.DataLoader(DATA, batch_size=4, shuffle=True),
    "by a seed": lambda _: fl.DataLoader(DATA, batch_size=4, shuffle=True, seed=1),
    "by a generator": lambda _: fl.DataLoader(DATA, batch_size=4, shuffle=True, generator=torch.Generator()),
    "by weights": lambda _: fl.DataLoader(DATA, batch_size=4, sampler=WeightedRandomSampler([1.0] * 40, 40)),
    "by an own sampler": lambda _: fl.DataLoader(DATA, batch_size=4, sampler=Own()),
    "of a rank": lambda _: fl.DataLoader(DATA, batch_size=4, sampler=DistributedSampler(DATA, 2, 0)),  # type: ignore[arg-type]
    "of a stream": lambda _: fl.DataLoader(Counting(), batch_size=4),
    "of blocks": lambda _: fl.DataLoader(fl.Stream(Numbers(), buffer=10, seed=1), batch_size=4),
    "of shards": lambda folder: fl.DataLoader(
        fl.TarStream(shards(folder), buffer=10, seed=1), batch_size=4, collate_fn=list
    ),
    "of a mixture": lambda _: fl.DataLoader(
        fl.Mixture([Numbers(), Numbers()], weights=[1, 2]), batch_size=4, shuffle=True, seed=1
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOADERS)
def test_changed_states_are_refused_or_go_on(kind: str, tmp_path: Path) -> None:
    make, rng = LOADERS[kind], random.Random(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = make(tmp_path)
        states = [loader.state_dict()]
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        states.append(loader.state_dict())
        states += [states[-1]] * 3
        list(iterator)
        states.append(loader.state_dict())
        refused = 0
        for _ in range(250):
            state = copy.deepcopy(rng.choice(states))
            for _ in range(rng.choice((1, 1, 2, 3))):
                state = change(state, rng)
            loader = make(tmp_path)
            try:
                loader.load_state_dict(state)
                given = sum(len(batch) for batch, _ in zip(loader, range(40), strict=False))
                assert given <= 160
            except ValueError:  # anything else fails this test
                refused += 1
        assert refused > 100


def repacked(text: str, change: Callable[[Any], Any]) -> str:
    states = change(json.loads(zlib.decompress(base64.b64decode(text))))
    return base64.b64encode(zlib.compress(json.dumps(states).encode())).decode()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(4))
def test_changed_states_of_generators_are_refused(seed: int) -> None:
    rng, good = random.Random(seed), sampler_states(Own())
    check_sampler_states(good)
    kinds = [kind for kind in KINDS if isinstance(kind, (int, float, str, list, dict, type(None)))]
    for _ in range(150):

        def changed(states: Any) -> Any:
            name = rng.choice(["torch", "python", "numpy", "own"])
            if rng.random() < 0.4 or not isinstance(states[name], list):
                return {**states, name: rng.choice(kinds)}
            at = rng.randrange(len(states[name]))
            part = states[name][at]
            if isinstance(part, list) and rng.random() < 0.7:
                part[rng.randrange(len(part))] = rng.choice(kinds)
            else:
                states[name][at] = rng.choice(kinds)
            return states

        with suppress(ValueError):
            check_sampler_states(repacked(good, changed))


@pytest.mark.parametrize("check", [check_text, check_sampler_states])
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[" * 100_000, b"5", b"null", b"\xff", b'{"torch": 1e999}', b"9" * 5000],
    ids=["empty", "half", "deep", "number", "null", "no utf-8", "infinite", "digits"],
)
def test_no_states_of_generators_are_refused(check: Callable[[Any], None], content: bytes) -> None:
    with pytest.raises(ValueError, match="not the state"):
        check(base64.b64encode(zlib.compress(content)).decode())


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("check", [check_text, check_sampler_states])
def test_a_state_that_unpacks_to_gigabytes_is_not_unpacked(check: Callable[[Any], None]) -> None:
    packer = zlib.compressobj()
    packed = b"".join([packer.compress(bytes(1 << 20)) for _ in range(300)] + [packer.flush()])
    text = base64.b64encode(packed).decode()
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="not the state"):
            check(text)
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


def test_what_follows_a_state_or_is_missing_from_it_is_noticed() -> None:
    text = generator_text(torch.Generator())
    packed = base64.b64decode(text)
    for wrong in (packed + b"more", packed[:-3], packed[:100], b""):
        with pytest.raises(ValueError, match="not the state"):
            check_text(base64.b64encode(wrong).decode())


def test_a_state_that_is_nested_too_deeply_is_refused() -> None:
    loader = fl.DataLoader(Counting(), batch_size=4)
    next(iter(loader))
    state = loader.state_dict()
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    state["streams"] = [[0, 0, {"samples": deep}, []]]
    with pytest.raises(ValueError, match="nested too deeply"):
        loader.load_state_dict(state)


@pytest.mark.parametrize("kind", ["of blocks", "of shards"])
@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("held", 5, "'held' must be a list"),
        ("held", [10**6], "'held'"),
        ("held", ["a"], "'held'"),
        ("held", [[0]], "'held'"),
        ("held", [[0, -1]], "'held'"),
        ("held", [0] * 100, "'held' must be a list of up to 10"),
        ("at", None, "'at' must be"),
        ("at", [], "'at' must be"),
        ("at", [10**9, 40, 4], "'at'"),
        ("at", [-5, 40], "'at'"),
        ("given", -1, "'given' must be an int from 0"),
        ("seed", 1 << 64, "'seed' must be an int"),
        ("seed", None, "'seed' must be an int"),
        ("epoch", "0", "'epoch' must be an int"),
        ("over", 1, "'over' must be True or False"),
        ("rank", 1, "with rank = 1, but this one has 0"),
        ("buffer", torch.zeros(2), "with buffer ="),
    ],
)
def test_the_field_of_a_stream_that_is_wrong_is_named(
    kind: str, field: str, value: Any, words: str, tmp_path: Path
) -> None:
    loader = LOADERS[kind](tmp_path)
    next(iter(loader))
    state = loader.state_dict()
    reader = state["streams"][0][2]["iterator"]
    assert field in reader
    reader[field] = value
    loader = LOADERS[kind](tmp_path)
    with pytest.raises(ValueError, match=words):
        loader.load_state_dict(state)
        list(loader)
