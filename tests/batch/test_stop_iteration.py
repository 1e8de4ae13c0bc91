"""StopIteration out of a map-style dataset or a collate function is an error, not the end of the epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import foreload as fl

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

KINDS: dict[str, dict[str, Any]] = {
    "here": {"num_workers": 0},
    "threads": {"num_workers": 2, "workers": "threads"},
    "processes": {"num_workers": 2, "workers": "processes"},
    "auto": {},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


class Stopping(Dataset[Any]):
    def __init__(self, at: int = 7) -> None:
        self.at = at

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        return next(iter([] if index == self.at else [index]))


class StoppingTogether(Stopping):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


def stop_at(index: int) -> int:
    return next(iter([] if index == 7 else [index]))


def stop_collating(batch: Any) -> Any:
    if 7 in (batch if isinstance(batch, list) else [batch]):
        raise StopIteration
    return batch


@every_kind
def test_a_sample_that_stops_is_an_error(kind: str) -> None:
    batches = iter(fl.DataLoader(Stopping(), batch_size=4, **KINDS[kind]))
    assert next(batches).tolist() == [0, 1, 2, 3]
    with pytest.raises(
        RuntimeError, match=r"StopIteration was raised while loading sample 7 \(position 3"
    ) as caught:
        next(batches)
    assert isinstance(caught.value.__cause__, StopIteration)
    assert next(batches).tolist() == [8, 9, 10, 11]


@every_kind
def test_a_sample_without_a_batch(kind: str) -> None:
    batches = iter(fl.DataLoader(Stopping(0), batch_size=None, **KINDS[kind]))
    with pytest.raises(RuntimeError, match="StopIteration was raised while loading 0"):
        next(batches)
    assert len(list(batches)) == 19


@every_kind
def test_a_whole_batch(kind: str) -> None:
    batches = iter(fl.DataLoader(StoppingTogether(), batch_size=4, **KINDS[kind]))
    next(batches)
    with pytest.raises(RuntimeError, match=r"StopIteration was raised while loading \[4, 5, 6, 7\]"):
        next(batches)
    assert len(list(batches)) == 3


@every_kind
def test_a_transform(kind: str) -> None:
    loader = fl.DataLoader(list(range(20)), batch_size=4, transform=stop_at, **KINDS[kind])
    with pytest.raises(RuntimeError, match="StopIteration was raised while loading sample 7"):
        list(loader)


@every_kind
@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_collate_fn(kind: str, batch_size: int | None) -> None:
    loader = fl.DataLoader(list(range(20)), batch_size=batch_size, collate_fn=stop_collating, **KINDS[kind])
    with pytest.raises(RuntimeError, match="StopIteration was raised while collating the batch of samples"):
        list(loader)


@every_kind
@pytest.mark.parametrize("dataset", [Stopping, StoppingTogether])
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_an_error_policy_takes_it_for_a_failed_sample(kind: str, dataset: Any, policy: Any) -> None:
    loader = fl.DataLoader(dataset(), batch_size=4, on_error=policy, **KINDS[kind])
    samples = torch.cat(list(loader)).tolist()
    assert samples == [index if index != 7 else 4 for index in range(20) if index != 7 or policy == "replace"]
    assert [error.index for error in loader.errors] == [7]
    assert "StopIteration" in loader.errors[0].error


@every_kind
def test_a_cached_sample(kind: str) -> None:
    if kind == "auto":
        pytest.skip("as the others")
    loader = fl.DataLoader(Stopping(), batch_size=4, cache="1MiB", **KINDS[kind])
    for _ in range(2):
        with pytest.raises(RuntimeError, match="StopIteration was raised while loading sample 7"):
            list(loader)


def test_a_transform_of_images(photos: Any) -> None:
    calls = []

    def stopping(image: Any) -> Any:
        calls.append(image)
        return next(iter([torch.zeros(3)] * (len(calls) != 5)))

    loader = fl.DataLoader(fl.ImageDataset(photos, transform=stopping), batch_size=4, num_workers=0)
    with pytest.raises(RuntimeError, match="StopIteration was raised"):
        list(loader)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(20))


@every_kind
@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_collate_fn_of_a_stream(kind: str, batch_size: int | None) -> None:
    options = {**KINDS[kind], **({"num_workers": 1} if KINDS[kind].get("num_workers") else {})}
    loader = fl.DataLoader(Stream(), batch_size=batch_size, collate_fn=stop_collating, **options)
    with pytest.raises(RuntimeError, match="StopIteration was raised while collating"):
        list(loader)


@every_kind
def test_the_end_of_a_stream_is_its_end(kind: str) -> None:
    options = {**KINDS[kind], **({"num_workers": 1} if KINDS[kind].get("num_workers") else {})}
    assert torch.cat(list(fl.DataLoader(Stream(), batch_size=6, **options))).tolist() == list(range(20))


class StoppingSampler(torch.utils.data.Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(6)

    def __len__(self) -> int:
        return 10


@every_kind
def test_a_sampler_may_end_early(kind: str) -> None:
    loader = fl.DataLoader(list(range(20)), batch_size=4, sampler=StoppingSampler(), **KINDS[kind])
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5]]
