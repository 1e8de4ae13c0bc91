"""Hugging Face datasets, webdataset pipelines and streams with a state, as they are in torch's loader."""

from __future__ import annotations

import importlib
import importlib.machinery
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

import foreload as fl
from foreload.workers.copies import own_copy
from tests.datasets.compared import HOW, same, split_epoch
from tests.pairwise import pairwise

# Hugging Face datasets: they work as they are.


@pytest.fixture(scope="module")
def hub() -> Any:
    return pytest.importorskip("datasets")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["auto", "none", "processes", "threads"])
def test_a_hugging_face_dataset_is_a_dataset(hub: Any, how: str) -> None:
    data = hub.Dataset.from_dict(
        {"x": list(range(300)), "t": [str(i) for i in range(300)], "v": [[i, 1.5] for i in range(300)]}
    )
    data = data.with_format("torch").select(range(7, 300))
    torch.manual_seed(1)
    wanted = list(TorchDataLoader(data, batch_size=32, shuffle=True))
    for more in ({}, {"cache": "8MiB"}):
        torch.manual_seed(1)
        loader = fl.DataLoader(data, batch_size=32, shuffle=True, **HOW[how], **more)
        assert same(list(loader), wanted)
        list(loader)
        assert not more or loader.stats()["cache"]["hits"] == len(data)
        loader.close()
    _, rest, continued = split_epoch(
        lambda: fl.DataLoader(data, batch_size=32, shuffle=True, seed=2, **HOW[how]), 3
    )
    assert same(continued, rest)


def hub_stream(hub: Any, **split: int) -> Any:
    data = hub.Dataset.from_dict({"x": list(range(300))}).to_iterable_dataset(num_shards=4)
    if split:
        data = importlib.import_module("datasets.distributed").split_dataset_by_node(data, **split)
    return data.map(lambda row: {"y": 2 * row["x"]}).filter(lambda row: row["x"] % 7 != 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threads", "processes"])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_hugging_face_stream_is_split_and_goes_on(hub: Any, workers: int, kind: Any) -> None:
    arguments: dict[str, Any] = {"batch_size": 8, "num_workers": workers}
    for split in ({}, {"rank": 0, "world_size": 2}, {"rank": 1, "world_size": 2}):
        wanted = list(TorchDataLoader(hub_stream(hub, **split), **arguments))
        for batches in (0, 1, 5):
            first, rest, continued = split_epoch(
                lambda split=split: fl.DataLoader(hub_stream(hub, **split), workers=kind, **arguments), batches
            )
            assert same(first + rest, wanted)
            assert same(continued, rest)


# webdataset, and streams of one's own.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "workers", "persistent", "kind"),
    pairwise(range(5), [0, 1, 2], [False, True], ["threads", "processes"]),
)
@pytest.mark.filterwarnings("ignore:.with_length")
def test_webdataset_pipelines_are_as_in_torch(
    tmp_path: Path, number: int, workers: int, persistent: bool, kind: Any
) -> None:
    wds = pytest.importorskip("webdataset")
    for shard in range(6):
        with wds.TarWriter(f"{tmp_path}/s-{shard}.tar") as writer:
            for i in range(20 * shard, 20 * shard + 20):
                writer.write({"__key__": f"{i:04}", "txt": f"text {i}", "cls": i})
    url = f"{tmp_path}/s-{{0..5}}.tar"

    def plain(**options: Any) -> Any:
        return wds.WebDataset(url, shardshuffle=False, **options).decode().to_tuple("cls", "txt")

    pipelines: list[tuple[Callable[[], Any], int | None]] = [
        (plain, 8),
        (lambda: plain().shuffle(30, rng=random.Random(3)).batched(8), None),
        (lambda: plain().with_epoch(30), 8),
        (lambda: plain().with_length(120), 7),
        (
            lambda: wds.DataPipeline(
                wds.SimpleShardList(url),
                wds.detshuffle(),
                wds.split_by_worker,
                wds.tarfile_to_samples(),
                wds.decode(),
                wds.to_tuple("cls", "txt"),
            ),
            5,
        ),
    ]
    make, size = pipelines[number]
    arguments = {"batch_size": size, "num_workers": workers, "persistent_workers": persistent and workers > 0}
    theirs = TorchDataLoader(make(), **arguments)
    ours = fl.DataLoader(make(), workers=kind, **arguments)
    for _ in range(2):
        assert same(list(map(list, ours)), list(map(list, theirs)))
    ours.close()


def test_a_dataset_that_wants_arguments_for_its_state_is_read_again() -> None:
    class Told(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(20))

        def state_dict(self, given: int) -> Any:
            raise AssertionError

        load_state_dict = state_dict

    with pytest.warns(UserWarning, match="Told has no state_dict"):
        _, rest, continued = split_epoch(lambda: fl.DataLoader(Told(), batch_size=4, num_workers=1), 2)
    assert torch.cat(continued).tolist() == torch.cat(rest).tolist() == list(range(8, 20))


def test_a_thread_has_its_own_dataset_but_for_what_is_large_or_cannot_be_copied() -> None:
    class Parts:
        def __init__(self) -> None:
            self.itself = self
            self.stage = {"rng": random.Random(1), "files": ["a"]}
            self.again = self.stage
            self.small, self.large = np.zeros(3), np.zeros(1 << 18)
            self.shared = torch.zeros(2).share_memory_()
            self.many = [[i] for i in range(30_000)]
            self.lock = threading.Lock()
            self.behind = {"lock": threading.Lock(), "large": self.large}

    parts = Parts()
    own = own_copy(parts)
    assert own.itself is own
    assert own.stage is own.again is not parts.stage
    assert own.stage["rng"].random() == parts.stage["rng"].random()
    assert own.small is not parts.small
    for name in ("large", "shared", "lock", "behind"):
        assert getattr(own, name) is getattr(parts, name)
    assert own.many is not parts.many
    assert own.many[0] is parts.many[0]

    class Dicted:
        def __init__(self) -> None:
            self.x = 1

        def __getstate__(self) -> Any:
            return self.__dict__

        def __setstate__(self, state: Any) -> None:
            self.__dict__ = state

    dicted = Dicted()
    own_copy(dicted).x = 2
    assert dicted.x == 1
    assert own_copy(frozenset({1})) == {1}
