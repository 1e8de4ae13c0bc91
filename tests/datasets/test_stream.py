"""Streams: each sample once over ranks and workers, shuffled, in constant memory, interrupted anywhere."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import tarfile
import threading
import warnings
from collections import Counter
from collections.abc import Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import foreload as fl
from foreload.errors import DecodeError
from foreload.order import KeyedSampler

WORKERS: dict[str, dict[str, Any]] = {
    "here": {"num_workers": 0},
    "threads": {"num_workers": 2, "workers": "threads"},
    "processes": {"num_workers": 2, "workers": "processes"},
}


class Numbers(Dataset[int]):
    """Notes what it is asked for."""

    def __init__(self, size: int, *, broken: Sequence[int] = ()) -> None:
        self.size, self.broken = size, broken
        self.asked: list[list[int]] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.asked.append([index])
        if index in self.broken:
            raise OSError(f"no {index}")
        return index

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.asked.append(list(indices))
        if set(indices) & set(self.broken):
            raise OSError("one of them")
        return list(indices)


def part(dataset: Any, worker: int, workers: int, **options: Any) -> list[Any]:
    """What one worker of one rank gives."""
    info = SimpleNamespace(id=worker, num_workers=workers, seed=1000 + worker)
    with patch("foreload.order.shuffle.get_worker_info", lambda: info):
        return list(fl.Stream(dataset, **options))


def saved(state: Any) -> Any:
    """Through a file, as a checkpoint is, and as JSON, which shows that it is plain."""
    json.dumps(state["streams"])
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# The order.


@given(
    size=st.integers(0, 300),
    ranks=st.integers(1, 4),
    workers=st.integers(1, 4),
    buffer=st.integers(1, 100),
    seed=st.one_of(st.none(), st.integers(0, 2**64 - 1)),
    epoch=st.integers(0, 2**31),
)
def test_each_sample_once_dealt_evenly(
    size: int, ranks: int, workers: int, buffer: int, seed: int | None, epoch: int
) -> None:
    # By hand: the blocks in the order that the seed gives them, cut into as many equal parts.
    length = max(1, min(buffer // 16, size // 64))
    blocks = [range(begin, min(size, begin + length)) for begin in range(0, size, length)]
    known = seed if seed is not None else 0 if ranks > 1 else 1000
    order = [index for block in KeyedSampler(blocks, known, epoch) for index in blocks[block]]
    readers = ranks * workers
    seen: list[int] = []
    for rank in range(ranks):
        counted = 0
        for worker in range(workers):
            stream = partial(part, Numbers(size), worker, workers, buffer=buffer, seed=seed)
            with patch.object(fl.Stream, "epoch", epoch):
                got = stream(num_replicas=ranks, rank=rank)
            reader = rank * workers + worker
            own = order[size * reader // readers : size * (reader + 1) // readers]
            assert sorted(got) == sorted(own)
            # Nothing leaves the buffer before it came in, and the buffer holds no more than it may.
            assert all(own.index(index) < place + buffer for place, index in enumerate(got))
            counted += len(got)
            seen += got
        assert counted == len(fl.Stream(range(size), num_replicas=ranks, rank=rank))
    assert sorted(seen) == list(range(size))


@pytest.mark.parametrize("workers", [1, 3])
def test_without_shuffle_the_order_is_that_of_storage(workers: int) -> None:
    data = Numbers(100)
    assert [i for worker in range(workers) for i in part(data, worker, workers, shuffle=False)] == list(range(100))


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        stream = fl.Stream(range(500), buffer=30, seed=seed)
        stream.set_epoch(epoch)
        torch.rand(3)
        return list(stream)

    orders = {(seed, epoch): order(seed, epoch) for seed in (0, 1, 2**64 - 1) for epoch in (0, 1, 7)}
    assert all(order(*key) == known for key, known in orders.items())
    assert len({tuple(each) for each in orders.values()}) == len(orders)


def test_without_a_seed_torchs_generator_gives_one_for_each_epoch() -> None:
    stream = fl.Stream(range(200), buffer=20)
    for loader in (stream, TorchDataLoader(stream, num_workers=2, batch_size=None)):
        torch.manual_seed(5)
        first, second = list(loader), list(loader)
        torch.manual_seed(5)
        assert list(loader) == first != second
        assert sorted(first) == sorted(second) == list(range(200))


def test_every_sample_can_come_anywhere_and_neighbours_part() -> None:
    size, epochs = 2000, 60
    stream = fl.Stream(range(size), buffer=100, seed=3)
    places = np.empty((epochs, size), np.int64)
    for epoch in range(epochs):
        stream.set_epoch(epoch)
        order = np.array(list(stream))
        places[epoch, order] = np.arange(size)
        assert abs(np.corrcoef(order, np.arange(size))[0, 1]) < 0.35
        assert (np.abs(np.diff(order)) == 1).mean() < 0.1
    # Each is early, late and in the middle at times, on average in the middle.
    tenths = places * 10 // size
    assert all(len(set(tenths[:, index].tolist())) >= 7 for index in range(size))
    assert np.abs(places.mean(0) - size / 2).max() < 5 * size / (12 * epochs) ** 0.5


def test_what_is_stored_by_class_is_mixed() -> None:
    classes = np.array(list(fl.Stream(range(20_000), buffer=1000, seed=0))) // 1000
    batches = classes[: len(classes) // 64 * 64].reshape(-1, 64)
    # With all twenty at random, a batch has 19 of them on average.
    assert np.mean([len(set(batch.tolist())) for batch in batches]) > 12


@pytest.mark.parametrize("loader", [TorchDataLoader, fl.DataLoader])
def test_set_epoch_reaches_workers_that_persist(loader: Any) -> None:
    stream = fl.Stream(range(100), seed=1, buffer=10)
    made = loader(stream, batch_size=None, num_workers=2, persistent_workers=True)
    orders = []
    for epoch in (0, 1, 0):
        stream.set_epoch(epoch)
        orders.append([int(index) for index in made])
    assert orders[0] == orders[2] != orders[1]
    assert all(sorted(order) == list(range(100)) for order in orders)
    if isinstance(made, fl.DataLoader):
        made.close()


# Reading.


def test_neighbours_are_read_together_and_no_more_than_are_held() -> None:
    data = Numbers(20_000)
    stream = iter(fl.Stream(data, buffer=100, seed=0))
    given = 0
    for _ in stream:
        given += 1
        assert sum(map(len, data.asked)) <= given + 100 + 25
    assert np.mean(list(map(len, data.asked))) == 25
    # Blocks of six.
    assert np.mean([np.diff(together) == 1 for together in data.asked if len(together) == 25]) > 0.75
    assert given == 20_000


class Rows(fl.BaseDataset):
    """Of a user's own, with blocks of its own."""

    def index(self) -> int:
        return 50

    def read(self, index: int) -> Any:
        if index == 13:
            raise OSError("no 13")
        return index, index % 3

    def storage_blocks(self, size: int) -> Any:
        return [0, 20, 21]


def test_blocks_of_ones_own_are_kept_together(tmp_path: Path) -> None:
    rows = Rows(tmp_path, transform=lambda number: number * 10, target_transform=str)
    loader: Any = fl.DataLoader(
        rows.stream(buffer=1, seed=2), batch_size=None, num_workers=0, on_error="skip", collate_fn=lambda row: row
    )
    order = [row[0] // 10 for row in loader]
    runs = [[*range(13), *range(14, 20)], [20], list(range(21, 50))]
    assert any(order == list(chain.from_iterable(chosen)) for chosen in permutations(runs))
    assert len(loader.errors) == 1
    assert "no 13" in loader.errors[0].error


def test_a_failed_sample_is_named_and_the_others_come() -> None:
    stream = iter(fl.Stream(Numbers(100, broken=[7, 8]), buffer=10, seed=0))
    seen, failures = [], []
    while True:
        try:
            seen.append(next(stream))
        except StopIteration:
            break
        except OSError as error:
            failures.append((str(error), error.__notes__))
    assert sorted(seen) == [index for index in range(100) if index not in (7, 8)]
    assert sorted(failures) == [(f"no {index}", [f"foreload: while loading sample {index}"]) for index in (7, 8)]


def write_tar(path: Path, keys: Sequence[int], mode: str = "w", size: int = 20) -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for key in keys:
            content = np.random.default_rng(key).bytes(size + key % 7)
            for field, data in (("bin", content), ("cls", str(key).encode())):
                member = tarfile.TarInfo(f"{key:06}.{field}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path


def makers(folder: Path) -> dict[str, Any]:
    """Small datasets of every kind."""
    for number, keys in enumerate((range(30), range(30, 37), range(37, 90))):
        write_tar(folder / f"{number}.tar", keys)
    (folder / "lines.txt").write_text("".join(f"line {i}\n" for i in range(90)))
    (folder / "files").mkdir()
    for i in range(30):
        (folder / "files" / f"{i:02}.bin").write_bytes(bytes([i] * (i + 1)))
    with h5py.File(folder / "rows.h5", "w") as file:
        file.create_dataset("data", data=np.arange(90 * 4).reshape(90, 4), chunks=(7, 2), compression="gzip")
        file["labels"] = np.arange(90)
        file["names"] = [f"row {i}" for i in range(90)]
    return {
        "tar": lambda mode: fl.TarDataset(folder, len, mode),
        "lines": lambda mode: fl.TextDataset(folder / "lines.txt", None, 10, mode),
        "words": lambda mode: fl.TextDataset(folder / "lines.txt", lambda t: [len(t)], 4, mode, padding=False),
        "files": lambda mode: fl.FileDataset(folder / "files", lambda t: t.sum(), loading_mode=mode),
        "labelled": lambda mode: fl.FileDataset(folder / "files", loading_mode=mode, labels=list(range(30))),
        "rows": lambda mode: fl.HDF5Dataset(folder / "rows.h5", "data", mode, target_name="labels"),
        "changed": lambda mode: fl.HDF5Dataset(folder / "rows.h5", "data", mode, transform=lambda row: row * 2),
        "efficient": lambda mode: fl.MemoryEfficientDataset(folder / "lines.txt", loading_mode=mode),
        "names": lambda mode: fl.HDF5Dataset(folder / "rows.h5", "names", mode),
    }


def flat(sample: Any) -> str:
    if isinstance(sample, (tuple, list)):
        return str([flat(each) for each in sample])
    return str((sample.dtype, sample.tolist())) if isinstance(sample, torch.Tensor) else repr(sample)


@pytest.mark.parametrize("mode", fl.LoadingMode)
def test_every_dataset_streams_the_samples_that_it_has(tmp_path: Path, mode: fl.LoadingMode) -> None:
    for name, make in makers(tmp_path).items():
        data = make(mode)
        expected = [flat(data[index]) for index in range(len(data))]
        assert [flat(sample) for sample in data.stream(shuffle=False)] == expected, name
        shuffled = [flat(sample) for sample in data.stream(buffer=10, seed=1)]
        assert shuffled != expected or name == "tar"  # all of one length
        assert sorted(shuffled) == sorted(expected), name
        assert len(data.stream()) == len(data)


def test_each_row_group_and_each_chunk_is_decoded_once(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    table = pyarrow.table({"number": list(range(900))})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=90)
    data = fl.ParquetDataset(tmp_path / "a.parquet", group_cache=1)
    opened: list[Any] = []
    with patch("foreload.datasets.parquet.rowgroups.open_parquet", wraps=_noting(opened)):
        assert sorted(row["number"] for row in data.stream(buffer=40, seed=0)) == list(range(900))
    assert len(opened) == 10

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("data", data=np.arange(900), chunks=(90,), compression="gzip")
    rows = fl.HDF5Dataset(tmp_path / "a.h5")
    chunks = rows.columns[0].chunks
    with patch.object(type(chunks), "read", autospec=True, side_effect=type(chunks).read) as read:
        assert sorted(rows.stream(buffer=40, seed=0)) == list(range(900))
    assert read.call_count == 10


def _noting(opened: list[Any]) -> Any:
    from foreload.datasets.parquet.rowgroups import open_parquet

    return lambda *arguments: opened.append(arguments) or open_parquet(*arguments)


@pytest.mark.parametrize("transform", [None, "python"])
def test_images_stream(photos: Path, transform: str | None) -> None:
    chosen: Any = None if transform is None else lambda image: torch.tensor(image.size)
    for mode in fl.LoadingMode:
        data = fl.ImageDataset(photos, 32, chosen, mode)
        for (ours, target), (theirs, other) in zip(data.stream(shuffle=False), data, strict=True):
            assert target == other
            assert (ours - theirs).abs().max() <= (0.05 if transform is None else 0)
    shards = fl.ImageDataset(photos, 32).stream(buffer=8, seed=0)
    assert Counter(target for _, target in shards) == Counter(fl.ImageDataset(photos).targets)


def test_a_subclass_that_makes_samples_in_its_own_way_is_asked_for_them(tmp_path: Path) -> None:
    class Own(fl.TarDataset):
        def __getitem__(self, index: int) -> Any:
            return "own", index

    class Read(fl.TarDataset):
        def read(self, index: int) -> Any:
            return {"read": index}

    write_tar(tmp_path / "0.tar", range(5))
    assert list(Own(tmp_path / "0.tar").stream(shuffle=False)) == [("own", index) for index in range(5)]
    assert list(Read(tmp_path / "0.tar").stream(shuffle=False)) == [{"read": index} for index in range(5)]


def test_rows_of_a_batch_do_not_keep_all_of_it() -> None:
    class Views(Numbers):
        def __getitem__(self, index: int) -> Any:
            return torch.full((10,), index)

        def __getitems__(self, indices: list[int]) -> Any:
            return torch.tensor(indices)[:, None].repeat(1, 10).unbind()

    rows = list(fl.Stream(Views(6400), buffer=40, seed=0))
    assert sorted(row[9].item() for row in rows) == list(range(6400))  # type: ignore[attr-defined]
    assert {row.untyped_storage().nbytes() for row in rows} == {80}  # type: ignore[attr-defined]


MEMORY = """
import sys, resource, foreload as fl
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for stream in (fl.TarDataset(sys.argv[1]).stream(buffer=100), fl.TarStream(sys.argv[1], buffer=100)):
    samples = iter(stream)
    for _ in range(300): next(samples)
    before, count = peak(), 300
    for _ in samples: count += 1
    print(count, peak() - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_data(tmp_path: Path) -> None:
    write_tar(tmp_path / "large.tar", range(1500), size=60_000)  # 90 MB
    run = [sys.executable, "-c", MEMORY, str(tmp_path / "large.tar")]
    for line in subprocess.run(run, capture_output=True, text=True, check=True).stdout.splitlines():
        count, kilobytes = map(int, line.split())
        assert count == 1500
        assert kilobytes < 16 << 10


# In loaders.


def test_stock_dataloader(tmp_path: Path) -> None:
    for number in range(4):
        write_tar(tmp_path / f"{number}.tar", range(number * 10, number * 10 + 10))
    data = fl.TarDataset(tmp_path)
    for stream in (data.stream(buffer=8, seed=1), fl.TarStream(tmp_path, buffer=8, seed=1)):
        for workers in (0, 1, 2):
            loader: Any = TorchDataLoader(stream, 7, num_workers=workers)
            keys = [int(key) for batch in loader for key in batch["cls"]]
            assert sorted(keys) == list(range(40)), (type(stream), workers)
            assert keys != list(range(40))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [fl.Stream, fl.TarStream])
@pytest.mark.parametrize("workers", WORKERS)
def test_it_goes_on_exactly_after_every_batch(kind: Any, workers: str, tmp_path: Path) -> None:
    for number in range(5):
        write_tar(tmp_path / f"{number}.tar", range(number * 8, number * 8 + 5 + number % 3))

    def make() -> Any:
        source = fl.TarDataset(tmp_path) if kind is fl.Stream else tmp_path
        stream = kind(source, buffer=6, seed=9)
        stream.set_epoch(3)
        return fl.DataLoader(stream, batch_size=3, collate_fn=_keys, **WORKERS[workers])

    expected = list(make())
    assert sorted(chain.from_iterable(expected)) == sorted(sample["cls"] for sample in fl.TarDataset(tmp_path))
    for stop in range(len(expected) + 1) if workers == "here" else (1, 2, 5, len(expected) - 1):
        loader = make()
        iterator = iter(loader)
        assert [next(iterator) for _ in range(stop)] == expected[:stop]
        state = saved(loader.state_dict())
        iterator.close()
        again = make()
        again.load_state_dict(state)
        assert list(again) == expected[stop:], stop


def _keys(samples: list[Any]) -> list[bytes]:
    return [sample["cls"] for sample in samples]


@settings(max_examples=25)
@given(st.integers(1, 200), st.integers(1, 30), st.integers(1, 20), st.integers(0, 9))
def test_states_may_follow_one_another(size: int, buffer: int, steps: int, seed: int) -> None:
    stream = fl.Stream(Numbers(size), buffer=buffer, seed=seed)
    expected = list(stream)
    iterator: Any = iter(stream)
    got: list[int] = []
    while len(got) < size:
        got += [next(iterator) for _ in range(min(steps, size - len(got)))]
        state = json.loads(json.dumps(iterator.state_dict()))
        source = Numbers(size)
        iterator = iter(fl.Stream(source, buffer=buffer))
        iterator.load_state_dict(state)
        assert iterator.state_dict() == state
        # The buffer is read again, and nothing else.
        assert sorted(index for run in source.asked for index in run) == sorted(state["held"])
    assert got == expected


def test_a_state_of_something_else_is_refused(tmp_path: Path) -> None:
    iterator: Any = iter(fl.Stream(range(100), buffer=10, seed=0))
    next(iterator)
    state = iterator.state_dict()
    for other, said in (
        (fl.Stream(range(100), buffer=11), "buffer = 10, but this one has 11"),
        (fl.Stream(range(100), buffer=10, num_replicas=2, rank=0), "ranks = 1, but this one has 2"),
        (fl.Stream(range(100), buffer=10, shuffle=False), "shuffle = True"),
        (fl.Stream(range(99), buffer=10), "of a dataset of 100 samples, but this one has 99"),
    ):
        another: Any = iter(other)
        with pytest.raises(ValueError, match=said):
            another.load_state_dict(state)
    paths = [write_tar(tmp_path / f"{number}.tar", range(9)) for number in range(2)]
    iterator = iter(fl.TarStream(paths, seed=0, buffer=12))
    next(iterator)
    one: Any = iter(fl.TarStream(paths[:1], seed=0, buffer=12))
    with pytest.raises(ValueError, match="stream of 2 shards, but this one has 1"):
        one.load_state_dict(iterator.state_dict())
    for path in paths:
        write_tar(path, range(2))
    one = iter(fl.TarStream(paths, seed=0, buffer=12))
    with pytest.raises(ValueError, match="tar has 2 samples, but had more when the state was taken"):
        one.load_state_dict(iterator.state_dict())
    for changed in (range(9), range(1, 10)):  # other sizes, other keys
        for path in paths:
            write_tar(path, changed, size=200 if changed[0] == 0 else 100)
        one = iter(fl.TarStream(paths, seed=0, buffer=12))
        with pytest.raises(ValueError, match=r"tar has other samples than when the state was taken"):
            one.load_state_dict(iterator.state_dict())


@pytest.mark.parametrize("kind", [fl.Stream, fl.TarStream])
def test_the_ranks_of_a_distributed_run_share_the_samples(kind: Any, tmp_path: Path) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    for number in range(5):
        write_tar(tmp_path / f"{number}.tar", range(number * 5, number * 5 + 5))
    seen: list[list[int]] = [[], [], []]
    for rank in range(2):
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
        try:
            stream = kind(fl.TarDataset(tmp_path) if kind is fl.Stream else tmp_path, buffer=5)
            loaders: list[Any] = [
                fl.DataLoader(stream, batch_size=None, num_workers=2, workers="threads"),
                TorchDataLoader(stream, None, num_workers=2),
            ]
            if rank == 1:  # in a process that knows of no group
                loaders.append(TorchDataLoader(stream, None, num_workers=1, multiprocessing_context="forkserver"))
            for keys, loader in zip(seen, loaders, strict=False):
                keys += [int(sample["cls"]) for sample in loader]
        finally:
            torch.distributed.destroy_process_group()
    assert sorted(seen[0]) == sorted(seen[1]) == list(range(25))
    assert set(seen[2]) == set(seen[1][-len(seen[2]) :])


def test_wrong_arguments() -> None:
    for kind, source in ((fl.Stream, range(9)), (fl.TarStream, "a.tar")):
        for arguments, error, said in (
            ({"buffer": 0}, ValueError, "buffer must be 1 or more, got 0"),
            ({"buffer": 1.5}, TypeError, "buffer must be an int, got 1.5"),
            ({"seed": -1}, ValueError, "seed must be from 0"),
            ({"shuffle": 1}, TypeError, "shuffle must be True or False, got 1"),
            ({"rank": 0}, ValueError, "num_replicas and rank must be given together"),
            ({"rank": 2, "num_replicas": 2}, ValueError, "rank must be from 0 to 1, got 2"),
            ({"rank": 0, "num_replicas": 0}, ValueError, "num_replicas must be 1 or more"),
        ):
            with pytest.raises(error, match=said):
                kind(source, **arguments)
    with pytest.raises(TypeError, match="dataset must be map-style, with __len__ and __getitem__, got set"):
        fl.Stream({1})

    class Wrong(Rows):
        def storage_blocks(self, size: int) -> list[int]:
            return [0, 5, 5]

    with pytest.raises(ValueError, match=r"Wrong.storage_blocks must return the first sample of each block"):
        next(iter(fl.Stream(Wrong("."))))


# Shards without random access.


def test_zstandard(tmp_path: Path) -> None:
    plain = write_tar(tmp_path / "a.tar", range(20), size=2000)
    packed = plain.with_suffix(".tar.zst")
    zstandard = pytest.importorskip("zstandard")
    content = zstandard.ZstdCompressor(write_checksum=True).compress(plain.read_bytes())
    packed.write_bytes(content)
    assert list(fl.TarStream(packed, shuffle=False)) == list(fl.TarDataset(plain))
    for damaged in (content[: len(content) // 2], content[:9000] + b"x" * 30 + content[9030:]):
        packed.write_bytes(damaged)
        with pytest.raises(DecodeError, match=r"a\.tar\.zst: "):
            list(fl.TarStream(packed))
    with patch.dict(sys.modules, zstandard=None), pytest.raises(ImportError, match="needs zstandard: pip install"):
        list(fl.TarStream(packed))


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_shards_compressed_or_not_give_what_tar_dataset_gives(tmp_path: Path, mode: str) -> None:
    plain = write_tar(tmp_path / "plain.tar", range(20), size=2000)
    packed = write_tar(tmp_path / f"packed.tar.{mode[2:]}".rstrip("."), range(20), mode, size=2000)
    data = packed.read_bytes()
    expected = list(fl.TarDataset(plain))
    for shard in (packed, str(packed), [packed], partial(open, packed, "rb"), lambda: io.BytesIO(data)):
        assert list(fl.TarStream(shard, shuffle=False)) == expected
    (tmp_path / "folder").mkdir()
    packed.rename(tmp_path / "folder" / packed.name)
    assert list(fl.TarStream(tmp_path / "folder", lambda sample: sample["cls"], shuffle=False)) == [
        sample["cls"] for sample in expected
    ]


@pytest.mark.slow
def test_standard_input(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "a.tar.gz", range(20), "w:gz")
    script = (
        "import foreload as fl; loader = fl.DataLoader(fl.TarStream('-', seed=0), batch_size=None);"
        "print(sorted(int(s['cls']) for s in loader) == list(range(20)))"
    )
    with shard.open("rb") as file:
        run = subprocess.run([sys.executable, "-c", script], stdin=file, capture_output=True, text=True)
    assert run.stdout == "True\n", run.stderr
    with (
        patch("multiprocessing.parent_process"),
        pytest.raises(ValueError, match="processes have no standard input"),
    ):
        list(fl.TarStream("-"))


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_shard_that_is_cut_short_says_where(tmp_path: Path, mode: str) -> None:
    whole = write_tar(tmp_path / "whole.tar", range(10), mode, size=3000).read_bytes()
    good = list(fl.TarDataset(write_tar(tmp_path / "plain.tar", range(10), size=3000)))
    cut = tmp_path / "cut.tar"
    # At any byte, also within headers and padding; not where only the padding of the archive is missing.
    end = len(whole) if mode != "w" else 10 * (512 + 3072 + 512 + 512)
    for size in [0, 1, 300, *range(511, end, 997), end - 1]:
        cut.write_bytes(whole[:size])
        got: list[Any] = []
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            said = _until_it_fails(fl.TarStream(cut, shuffle=False), got)
        assert (str(cut) in said) or any("no end marker" in str(each.message) for each in warned), size
        assert size < 1000 or mode != "w" or not said or "member '0" in said
        assert got == good[: len(got)] or (mode == "w" and got[:-1] == good[: len(got) - 1])


def _until_it_fails(stream: Any, got: list[Any]) -> str:
    try:
        got.extend(iter(stream))  # which keeps what came before
    except DecodeError as error:
        return str(error)
    return ""


def test_damage_is_never_a_sample(tmp_path: Path) -> None:
    content = bytearray(write_tar(tmp_path / "a.tar.gz", range(10), "w:gz", size=90_000).read_bytes())
    content[len(content) // 2] ^= 0x55
    (tmp_path / "a.tar.gz").write_bytes(content)
    good = write_tar(tmp_path / "b.tar", range(10, 20))
    loader: Any = fl.DataLoader(
        fl.TarStream([tmp_path / "a.tar.gz", good], shuffle=False), batch_size=None, num_workers=0, on_error="skip"
    )
    keys = [int(sample["cls"]) for sample in loader]
    assert keys[-10:] == list(range(10, 20))
    assert 0 < len(keys) - 10 < 10
    assert keys[:-10] == list(range(len(keys) - 10))
    (failure,) = loader.errors
    assert "a.tar.gz: damaged or cut short at member '0000" in failure.error
    header = bytearray(good.read_bytes())
    header[1024 * 3 + 100] ^= 1  # in the mode of a later member
    good.write_bytes(header)
    with pytest.raises(DecodeError, match=r"b.tar: damaged or cut short at member '00001"):
        list(fl.TarStream(good))


def test_what_is_no_shard(tmp_path: Path) -> None:
    def shard(*members: tuple[str, bytes]) -> Path:
        with tarfile.open(tmp_path / "x.tar", "w") as tar:
            for name, data in members:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return tmp_path / "x.tar"

    (tmp_path / "text.tar").write_text("no tar at all" * 100)
    for path, said in (
        (tmp_path / "text.tar", "text.tar: no tar, or damaged before its first member"),
        (shard(("../../etc/a.txt", b"1")), r"x.tar: member '../../etc/a.txt' leads out of the archive"),
    ):
        with pytest.raises(DecodeError, match=said):
            list(fl.TarStream(path))
    with pytest.raises(DecodeError, match="sample 'a' has two members 'txt'"):
        list(fl.TarStream(shard(("a.txt", b"1"), ("a.txt", b"2"))))
    with pytest.raises(DecodeError, match="the shard has no samples"):
        list(fl.TarStream(shard(("README", b"1"))))
    with pytest.raises(FileNotFoundError):
        list(fl.TarStream(tmp_path / "none.tar"))
    for source, error, said in (
        ("pipe:cat a.tar", ValueError, "is a command, and none is run"),
        (io.BytesIO(), TypeError, "an open file can be read once only; give a function that opens it"),
        ([], ValueError, "shards is an empty list"),
        (5, TypeError, "shards must be files, URLs, '-' or functions"),
    ):
        with pytest.raises(error, match=said):
            fl.TarStream(source)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a function must give a file open for reading, got int"):
        list(fl.TarStream(lambda: 5))  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="transform must be callable, got int"):
        fl.TarStream("a.tar", 5)  # type: ignore[arg-type]
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no tar, compressed or not, in"):
        fl.TarStream(tmp_path / "empty")


def test_fewer_shards_than_readers_is_said(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "a.tar", range(10))
    loader: Any = fl.DataLoader(fl.TarStream(shard, seed=0), batch_size=None, num_workers=3, workers="threads")
    with pytest.warns(UserWarning, match=r"only 1 shards for 3 readers .* 2 of them have nothing to read"):
        assert sorted(int(sample["cls"]) for sample in loader) == list(range(10))


class Server(BaseHTTPRequestHandler):
    """Knows no ranges, is busy at first, and cuts connections."""

    files: ClassVar[dict[str, bytes]] = {}
    ranges = False
    cuts: ClassVar[list[int]] = []
    asked: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        Server.asked.append(self.headers.get("Range"))
        if self.path == "/busy.tar" and len(Server.asked) == 1:
            self.send_error(503)
            return
        data = self.files.get(self.path)
        if data is None:
            self.send_error(403 if "secret" in self.path else 404)
            return
        begin = 0
        if self.ranges and (wanted := self.headers.get("Range")):
            begin = int(wanted.removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(data) - begin))
        self.send_header("ETag", f'"{len(data)}"')
        self.end_headers()
        until = self.cuts.pop(0) if self.cuts else len(data)
        self.wfile.write(data[begin:until])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize("ranges", [False, True])
def test_web_servers(tmp_path: Path, ranges: bool) -> None:
    content = write_tar(tmp_path / "a.tar", range(30), size=9000).read_bytes()
    expected = list(fl.TarDataset(tmp_path / "a.tar"))
    Server.files = {"/a.tar": content, "/busy.tar": content, "/a.tar.gz": gzip.compress(content)}
    Server.files["/%C3%BC%20%2B.tar"] = content
    Server.ranges = ranges
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        base = f"http://127.0.0.1:{server.server_port}"
        try:
            for name in ("busy.tar", "a.tar", "a.tar.gz", "ü %2B.tar"):
                Server.asked, Server.cuts = [], [100_000, 170_000] if name == "a.tar" else []
                assert list(fl.TarStream(f"{base}/{name}", shuffle=False)) == expected
            for name, error in (("none.tar", FileNotFoundError), ("secret.tar", PermissionError)):
                with pytest.raises(error) as caught:
                    list(fl.TarStream(f"{base}/{name}"))
                assert caught.value.filename == f"{base}/{name}"
        finally:
            server.shutdown()
            thread.join()
