"""Shards in object storage and on web servers: the same samples as from files."""

from __future__ import annotations

import itertools
import pickle
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, ConcatDataset, RandomSampler, Subset
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from foreload import transforms
from tests.decoders import ByPillow
from tests.remote.web_server import (
    COUNT,
    EACH,
    SHARDS,
    WAYS,
    Handler,
    expected,
    loaders,
    noise,
    right,
    same,
    samples,
    samples_of,
    write_shard,
)

pytest.importorskip("obstore")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "way",
    [
        way
        if way in ("auto", "threads", "processes", "stock, forked")
        else pytest.param(way, marks=pytest.mark.slow)
        for way in WAYS
    ],
)
def test_urls_give_what_files_give(way: str, folder: Path, pictures: Path, serve: Any) -> None:
    server = serve(folder)
    remote, local = fl.TarDataset(server.url(SHARDS)), fl.TarDataset(str(folder / SHARDS))
    assert remote[5] == expected(5)
    if way != "spawned":  # which takes long to start
        epoch = samples(loaders(way, remote, 8))
        assert epoch == samples(loaders(way.removesuffix(", spawned"), local, 8))
        assert right(epoch)
        assert epoch != sorted(epoch)
    server = serve(pictures)
    count = len(list(pictures.glob("*.tar")))
    small = transforms.resize((24, 32), normalize=False)
    images = fl.ImageDataset(server.url(f"shard-{{000000..{count - 1:06}}}.tar"), transform=small)
    files = fl.ImageDataset(pictures, transform=small)
    assert (len(images), images.classes, images.targets) == (len(files), files.classes, files.targets)
    if way != "stock, spawned":
        assert same(loaders(way, images, 8), loaders(way.replace("spawned", "none"), files, 8))
    assert not [name for command, name in server.asked if command == "GET" and name.endswith("x.tar")]


@pytest.mark.slow
def test_images_by_python_transforms_and_one_by_one(pictures: Path, serve: Any) -> None:
    count = len(list(pictures.glob("*.tar")))
    names = [f"shard-{number:06}.tar" for number in range(count)]
    server = serve(pictures)
    for transform in (np.asarray, transforms.train(16)):
        images = fl.ImageDataset([server.url(name) for name in names], transform=transform)
        files = fl.ImageDataset(pictures, transform=transform)
        for index in (0, 7, -1):
            torch.manual_seed(0)
            one = images[index]
            torch.manual_seed(0)
            assert np.array_equal(one[0], files[index][0])
            assert one[1] == files[index][1]
    with pytest.raises(IndexError, match="out of range"):
        images[len(images)]


@pytest.mark.slow
def test_what_is_left_to_a_device(pictures: Path, serve: Any) -> None:
    server = serve(pictures)
    urls = [server.url(path.name) for path in sorted(pictures.glob("*.tar"))]
    transform = transforms.train(24, normalize=False, flip_on_device=True)
    for decode, bound in (("cpu", 0), (ByPillow(), 1)):
        how: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 1, "num_workers": 2, "device": "cpu"}
        local = fl.DataLoader(fl.ImageDataset(pictures, transform=transform), **how)
        remote = fl.DataLoader(fl.ImageDataset(urls, transform=transform, decode=decode), **how)
        for (wanted, *rest), (found, *also) in zip(local, remote, strict=True):
            assert (wanted.int() - found.int()).abs().max() <= bound
            assert all(map(torch.equal, rest, also))


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", list(fl.LoadingMode))
def test_modes_keep_images_of_a_server(mode: fl.LoadingMode, pictures: Path, serve: Any) -> None:
    server = serve(pictures)
    urls = [server.url(path.name) for path in sorted(pictures.glob("*.tar"))]
    small = transforms.resize((24, 32), normalize=False)
    images = fl.ImageDataset(urls, transform=small, loading_mode=mode, cache_size=15)
    files = fl.ImageDataset(pictures, transform=small)
    for epoch in range(2):
        server.asked.clear()
        assert same(fl.DataLoader(images, 8, num_workers=2), fl.DataLoader(files, 8))
        assert same(TorchDataLoader(images, 8), fl.DataLoader(files, 8))
        assert torch.equal(images[-1][0], files[-1][0])
        asked = [name for command, name in server.asked if command == "GET"]
        assert bool(asked) == (mode is not fl.LoadingMode.EAGER), epoch
    kept = {fl.LoadingMode.EAGER: 40, fl.LoadingMode.STREAMING: 0}.get(mode, 15)
    assert (0 if images._cache is None else len(images._cache)) == kept
    server.fault = lambda handler: handler.refuse(404) or True
    if mode is fl.LoadingMode.EAGER:
        again = pickle.loads(pickle.dumps(fl.ImageDataset(pictures, loading_mode=mode)))
        assert len(again) == 40
        with pytest.raises(FileNotFoundError, match="no such file"):
            fl.ImageDataset(urls, loading_mode=mode)


@pytest.mark.slow
def test_files_of_a_server_that_were_used_last_are_kept(pictures: Path, serve: Any) -> None:
    server = serve(pictures)
    urls = [server.url(path.name) for path in sorted(pictures.glob("*.tar"))]
    for transform in (np.asarray, transforms.val(16)):
        images = fl.HighPerformanceDataset(urls, transform=transform)
        files = fl.ImageDataset(pictures, transform=transform)
        assert np.array_equal(images[3][0], files[3][0])
        server.asked.clear()
        assert np.array_equal(images[3][0], files[3][0])
        assert server.asked == []


def test_indices_count_from_the_end_too(folder: Path, serve: Any) -> None:
    dataset = fl.TarDataset(serve(folder).url(SHARDS))
    assert [sample["__key__"] for sample in dataset.__getitems__([-1, np.int64(-90), 3])] == [
        "0089",
        "0000",
        "0003",
    ]
    (batch,) = fl.DataLoader(dataset, 3, sampler=[-1, -90, 3], num_workers=0)
    assert batch["__key__"] == ["0089", "0000", "0003"]


@pytest.mark.slow
def test_no_fork_reads_to_memory_of_its_parent(folder: Path, serve: Any) -> None:
    dataset = fl.TarDataset(serve(folder).url(SHARDS))
    assert right(samples(fl.DataLoader(dataset, 10, num_workers=4)))  # leaves memory of this size free
    for _ in range(3):
        loader = fl.DataLoader(dataset, 10, shuffle=True, num_workers=3, workers="processes")
        ours = fl.DataLoader(dataset, 10, shuffle=True, num_workers=3, workers="threads")
        for rows in zip(loader, ours, strict=True):
            for row in samples(rows):
                assert row == tuple(expected(int(row[0])).values())


def key(sample: Any) -> Any:
    return (sample[0].numpy().tobytes(), sample[1]) if isinstance(sample, tuple) else sample["__key__"]


@pytest.mark.slow
@pytest.mark.parametrize("shards", ["tar", "images"])
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_caches(shards: str, workers: Any, folder: Path, pictures: Path, serve: Any, tmp_path: Path) -> None:
    def made() -> Any:
        if shards == "tar":
            return fl.TarDataset(server.url("s-0.tar"))
        names = [server.url(path.name) for path in sorted(pictures.glob("*.tar"))[:3]]
        return fl.ImageDataset(names, transform=transforms.resize(16, normalize=False))

    server = serve(folder if shards == "tar" else pictures)
    plain = sorted(map(key, made()))
    spill = fl.Cache(20_000, spill=tmp_path / "spill")
    for cache in (fl.Cache("64MB"), fl.Cache(40_000), spill):
        dataset = made()
        loader = fl.DataLoader(dataset, 5, shuffle=True, seed=1, cache=cache, workers=workers, num_workers=2)
        with loader:
            for epoch in range(2):
                begun = len(server.asked)
                if shards == "tar":
                    assert right(samples(loader), range(EACH))
                else:
                    rows = [row for batch in loader for row in zip(batch[0], batch[1].tolist(), strict=True)]
                    assert sorted(map(key, rows)) == plain
                if epoch and (cache.spill or cache.bytes > 1 << 20):
                    assert len(server.asked) == begun
    # Whoever comes next finds what is there, unless the shards are others by now.
    with fl.DataLoader(made(), 8, cache=spill, num_workers=2, workers=workers) as loader:
        opened = len(server.asked)
        assert sum(len(batch["cls"] if shards == "tar" else batch[0]) for batch in loader) == len(plain)
    assert len(server.asked) - opened <= 2 * 8  # which each worker compares


def test_a_cache_is_filled_by_batches(folder: Path, serve: Any, tmp_path: Path) -> None:
    server = serve(folder)
    dataset = fl.TarDataset(server.url(SHARDS))
    for cache in (fl.Cache("64MB"), fl.Cache("64MB", spill=tmp_path)):
        together: list[int] = []
        read = dataset._remote.read
        dataset._remote.read = lambda indices: together.append(len(indices)) or read(indices)  # type: ignore[func-returns-value]
        with fl.DataLoader(dataset, 30, shuffle=True, cache=cache, num_workers=2) as loader:
            assert right(samples(loader))
        assert max(together) > 20
        dataset._remote.read = read


@pytest.mark.slow
def test_another_shard_in_the_place_of_one_is_another_spill(folder: Path, serve: Any, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    server = serve(own)
    cache = fl.Cache("1MB", spill=tmp_path / "spill")
    for seed in (1, 2):
        write_shard(own / "a.tar", [noise(seed * 100 + number, 500) for number in range(20)])
        with fl.DataLoader(fl.TarDataset(server.url("a.tar")), 5, cache=cache) as loader:
            assert [row[1] for row in samples(loader)] == [noise(seed * 100 + number, 500) for number in range(20)]


def test_state_resumes_exactly(folder: Path, serve: Any) -> None:
    dataset = fl.TarDataset(serve(folder).url(SHARDS))
    whole = samples(fl.DataLoader(dataset, 4, shuffle=True, seed=5))
    begun = fl.DataLoader(dataset, 4, shuffle=True, seed=5)
    batches = iter(begun)
    first = samples([next(batches) for _ in range(3)])
    again = fl.DataLoader(dataset, 4, shuffle=True, seed=5, num_workers=1)
    again.load_state_dict(begun.state_dict())
    assert first + samples(again) == whole


@pytest.mark.slow
def test_as_many_ask_as_hide_the_latency(folder: Path, serve: Any) -> None:
    dataset = fl.TarDataset(serve(folder).url(SHARDS))
    for batch_size, count in ((64, 12), (1, 32), (1000, 2), (None, 32)):
        for seen in (dataset, Subset(dataset, range(50)), ConcatDataset([[expected(0)], dataset])):
            loader = fl.DataLoader(seen, batch_size)
            next(iter(loader))
            assert loader.num_workers == count
            assert not loader._fl_by_processes
            assert "server" in loader.stats()["workers"]["why"]
    given = fl.DataLoader(dataset, 64, num_workers=3)
    next(iter(given))
    assert (given.num_workers, given._fl_by_processes) == (3, False)
    drawn = BatchSampler(RandomSampler(dataset), 128, False)
    sampled = fl.DataLoader(dataset, batch_sampler=drawn, workers="threads")
    assert right(samples(sampled))
    assert sampled.num_workers == 6


def test_requests_are_under_way_together(folder: Path, serve: Any) -> None:
    server = serve(folder)
    dataset = fl.TarDataset(server.url(SHARDS))
    apart = range(0, COUNT * EACH, 2)  # neighbours are read together
    barrier = threading.Barrier(len(apart))

    def all_at_once(handler: Handler) -> bool:
        barrier.wait(300)
        return False

    server.fault = all_at_once
    assert right(samples(fl.DataLoader(dataset, 15, sampler=apart)), apart)


def test_arguments_that_make_no_sense(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="does not list its files; name them"):
        fl.TarDataset("http://127.0.0.1:9/")
    with pytest.raises(ValueError, match="address with a query"):
        fl.TarDataset("https://127.0.0.1:9/a.tar?signature=1")
    with pytest.raises(ValueError, match="some are local and some are remote"):
        fl.TarDataset(["http://127.0.0.1:9/a.tar", str(folder / "s-0.tar")])
    with pytest.raises(TypeError, match=r"storage: .*'30 seconds'"):
        fl.TarDataset("s3://b/a.tar", storage={"client_options": {"timeout": object()}})
    for kind, storage in itertools.product((fl.TarDataset, fl.TarStream, fl.ImageDataset), ("abc", [("a", 1)], 3)):
        with pytest.raises(TypeError, match=r"storage must be a dict of options, .* got (str|list|int)$"):
            kind("s3://b/a.tar", storage=storage)
    with pytest.raises(OSError, match=r"storage: .*'nonsense'.*s3://b/a\.tar"):
        fl.TarDataset("s3://b/a.tar", storage={"nonsense": "1"})
    with pytest.raises(OSError, match=r"ftp://b/a\.tar"):
        fl.TarDataset("ftp://b/a.tar")
    monkeypatch.setattr("foreload.remote.fetch.find_spec", lambda _: None)
    with pytest.raises(ImportError, match="pip install obstore"):
        fl.TarDataset("s3://b/a.tar")


def test_urls_of_files_are_paths(folder: Path, photos: Path, tmp_path: Path) -> None:
    own = tmp_path / "with space"
    shutil.copytree(folder, own)
    url = own.as_uri()
    assert "%20" in url
    for shards in (url, f"{url}/{SHARDS}", [f"{url}/s-{i}.tar" for i in range(COUNT)], f"file://localhost{own}"):
        assert right([tuple(sample.values()) for sample in samples_of(fl.TarDataset(shards))])
    assert fl.ImageDataset(photos.as_uri()).samples == fl.ImageDataset(photos).samples


@pytest.mark.slow
def test_direct_io_of_urls_is_warned_of(folder: Path, serve: Any) -> None:
    url = serve(folder).url(SHARDS)
    told = "direct_io=True: has no effect on URLs, whose bytes come from a server"
    with pytest.warns(UserWarning, match=told) as caught:
        remote = fl.TarDataset(url, direct_io=True)
    assert len(caught) == 1
    assert remote[5] == expected(5)
    assert fl.TarDataset(url).direct_problem is None
    with pytest.warns(UserWarning, match=told):
        fl.AsyncPrefetchDataset(fl.TarDataset(url), direct_io=True)
