"""Many samples taken at once, against the same ones taken one by one: order, errors, states."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import foreload as fl
from foreload import _native
from tests.datasets.stream.numbers import Numbers, Rows, write_tar


@given(
    st.lists(st.integers(), max_size=9),
    st.lists(st.integers(), max_size=9),
    st.integers(0, 1000),
)
def test_an_exchange_is_to_append_swap_and_pop(held: list[int], more: list[int], seed: int) -> None:
    draws = np.random.default_rng(seed).integers(0, 1 << 64, len(more), np.uint64)
    plain, expected = list(held), []
    for one, draw in zip(more, draws.tolist(), strict=True):
        plain.append(one)
        at = draw % len(plain)
        plain[at], plain[-1] = plain[-1], plain[at]
        expected.append(plain.pop())
    assert _native.exchange(held, more, draws) == expected
    assert held == plain
    with pytest.raises(ValueError, match="as many entries"):
        _native.exchange(held, [1], np.zeros(2, np.uint64))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards with members that only tarfile parses among the others; the second one is cut short."""
    folder = tmp_path_factory.mktemp("shards")
    for number, size in enumerate((7, 12, 0, 1, 30)):
        path = write_tar(folder / f"{number}.tar", range(number * 100, number * 100 + max(1, size)), size=2000)
        if size == 12:
            path.write_bytes(path.read_bytes()[:20_000])
        if size == 0:
            path.write_bytes(b"\0" * 10_240)
    return folder


def _kinds(shards: Path) -> dict[str, Any]:
    return {
        "tar": lambda **options: fl.TarStream(shards, **options),
        "tar, transformed": lambda **options: fl.TarStream(shards, _key, **options),
        "numbers": lambda **options: fl.Stream(Numbers(300, broken=[0, 17, 18, 60, 299]), **options),
        "rows": lambda **options: fl.Stream(Rows("."), **options),
    }


def _key(sample: dict[str, Any]) -> str:
    key: str = sample["__key__"]
    if key.endswith("3"):
        raise OSError(f"no {key}")
    return key


def _next(samples: Iterator[Any]) -> tuple[Any, str]:
    try:
        return next(samples), ""
    except (Exception, StopIteration) as error:
        return None, f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("kind", ["tar", "tar, transformed", "numbers", "rows"])
@pytest.mark.parametrize("options", [{"buffer": 1}, {"buffer": 9}, {"buffer": 1000}, {"shuffle": False}], ids=str)
@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_what_is_taken_at_once_is_what_comes_one_by_one(shards: Path, kind: str, options: Any, count: int) -> None:
    stream = _kinds(shards)[kind](seed=5, **options)
    at_once: Any = iter(stream)
    one_by_one: Any = iter(stream)
    errors = 0
    while True:
        samples, error = at_once.take(count)
        assert samples == [next(one_by_one) for _ in samples]
        said = "" if error is None else f"{type(error).__name__}: {error}"
        if error is None:
            assert len(samples) == count
        else:
            assert _next(one_by_one) == (None, said)
            errors += 1
        state = at_once.state_dict()
        assert json.dumps(state) == json.dumps(one_by_one.state_dict())
        if isinstance(error, StopIteration):
            break
    assert errors > 1


@pytest.mark.parametrize("kind", ["tar", "tar, transformed", "numbers", "rows"])
@pytest.mark.parametrize("on_error", ["skip", "raise"])
def test_batches_are_of_the_samples_that_come_one_by_one(shards: Path, kind: str, on_error: str) -> None:
    stream = _kinds(shards)[kind](seed=3, buffer=10)
    loader: Any = fl.DataLoader(
        stream, batch_size=4, collate_fn=list, num_workers=0, on_error=on_error, max_errors=100
    )
    batches, got, said = iter(loader), [], []
    samples, expected, failed = iter(stream), [], []
    while True:
        batch, error = _next(batches)
        if error.startswith("StopIteration"):
            break
        got.append(batch)
        said += [error] if error else []
    batch = []
    while True:
        sample, error = _next(samples)
        over = error.startswith("StopIteration")
        if error and not over:
            failed.append(error)
            if on_error == "raise":  # with what the batch had
                expected.append(None)
                batch = []
            continue
        batch += [] if over else [sample]
        if batch and (over or len(batch) == 4):
            expected.append(batch)
            batch = []
        if over:
            break
    assert got == expected
    assert failed
    if on_error == "raise":
        assert said == failed
    else:
        assert [error.error.removeprefix("foreload.errors.") for error in loader.errors] == failed


def test_a_state_has_the_place_and_the_checksum_of_the_samples_given(tmp_path: Path) -> None:
    paths = [write_tar(tmp_path / f"{number}.tar", range(number * 9, number * 9 + 9)) for number in range(2)]
    samples: Any = iter(fl.TarStream(paths, shuffle=False))
    for turn in range(2):
        sum_ = 0
        for number in range(9):
            sample = next(samples)
            sizes = [(name, len(content)) for name, content in sample.items()]
            sum_ = zlib.crc32(repr((sample["__key__"], sizes)).encode(), sum_)
            assert samples.state_dict()["at"] == [turn, number + 1, 2, sum_]
    shuffled: Any = iter(fl.TarStream(paths, buffer=4, seed=2))
    whole = {sample["__key__"]: sample for path in paths for sample in fl.TarDataset(path)}
    given: list[str] = []
    for sample in shuffled:
        given.append(sample["__key__"])
        assert sample == whole[given[-1]]
        held = [f"{shard * 9 + number:06}" for shard, number in shuffled.state_dict()["held"]]
        assert not {*held} & {*given}
        assert len(held) <= 3
    assert sorted(given) == sorted(whole)


def test_a_stream_with_an_iterator_of_its_own_is_read_by_that(tmp_path: Path) -> None:
    class Keys(fl.TarStream):
        def __iter__(self) -> Iterator[Any]:
            return (sample["__key__"] for sample in super().__iter__())

    loader: Any = fl.DataLoader(Keys(write_tar(tmp_path / "a.tar", range(6)), shuffle=False), 4, num_workers=0)
    assert list(loader) == [["000000", "000001", "000002", "000003"], ["000004", "000005"]]
