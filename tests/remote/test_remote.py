"""Shards in object storage and on web servers: the same samples as from files, whatever happens on the way."""

from __future__ import annotations

import gc
import io
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import BatchSampler, ConcatDataset, RandomSampler, Subset
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from foreload import transforms
from foreload.datasets.tar.pack import pack
from foreload.errors import DecodeError
from foreload.remote.fetch import Fetch, Range
from tests import leftovers

pytest.importorskip("obstore")

Fault = Callable[["Handler"], bool]
COUNT, EACH = 3, 30


class Handler(BaseHTTPRequestHandler):
    """Files of the server's folder, by ranges; a fault may answer instead."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: Any) -> None: ...

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        name = self.path.lstrip("/")
        self.server.asked.append((self.command, name))
        time.sleep(self.server.latency)
        if self.server.fault is not None and self.server.fault(self):
            return
        path = self.server.folder / name
        if not path.is_file():
            self.refuse(404)
            return
        content = path.read_bytes()
        begin, end = self.wanted(len(content))
        if begin >= len(content) > 0:
            self.refuse(416)
        else:
            self.answer(content, begin, end)

    def wanted(self, size: int) -> tuple[int, int]:
        given = self.headers.get("Range")
        if given is None:
            return 0, size
        begin, _, last = given.removeprefix("bytes=").partition("-")
        return int(begin), min(size, int(last) + 1)

    def answer(self, content: bytes, begin: int, end: int, body: bytes | None = None) -> None:
        self.send_response(206 if "Range" in self.headers else 200)
        if "Range" in self.headers:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        self.send_header("ETag", f'"{zlib.crc32(content)}"')
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[begin:end] if body is None else body)

    def refuse(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def cut(self) -> None:
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True


class Server(ThreadingHTTPServer):
    """A web server that can be told to misbehave."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.asked: list[tuple[str, str]] = []
        self.latency = 0.0
        self.fault: Fault | None = None
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def handle_error(self, *_: Any) -> None:
        """Whoever asked has gone."""

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


@pytest.fixture
def serve() -> Iterator[Callable[[Path], Server]]:
    servers: list[Server] = []

    def start(folder: Path) -> Server:
        servers.append(Server(folder))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
    # The collector does not see through what is native, so a ring behind a ring takes it two turns.
    gc.collect()
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "foreload fetch":
            thread.join(5)


def write_shard(path: Path, contents: Sequence[bytes], first: int = 0) -> Path:
    with tarfile.open(path, "w") as tar:
        for number, content in enumerate(contents, first):
            for name, data in ((f"{number:04}.bin", content), (f"{number:04}.cls", str(number % 7).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path


def noise(seed: int, size: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of samples of one size, so that all reads could use the same memory, without indexes."""
    root = tmp_path_factory.mktemp("shards")
    for shard in range(COUNT):
        numbers = range(shard * EACH, (shard + 1) * EACH)
        write_shard(root / f"s-{shard}.tar", [noise(number, 3000) for number in numbers], shard * EACH)
    return root


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    root = tmp_path_factory.mktemp("pictures")
    pack(photos, root, shard_bytes=60_000)
    assert len(list(root.glob("*.idx"))) > 1
    return root


SHARDS = f"s-{{0..{COUNT - 1}}}.tar"


def expected(number: int) -> dict[str, Any]:
    return {"__key__": f"{number:04}", "bin": noise(number, 3000), "cls": str(number % 7).encode()}


def samples(batches: Any) -> list[tuple[Any, ...]]:
    return [row for batch in batches for row in zip(batch["__key__"], batch["bin"], batch["cls"], strict=True)]


def right(rows: Sequence[tuple[Any, ...]], numbers: Sequence[int] = range(COUNT * EACH)) -> bool:
    return sorted(rows) == [tuple(expected(number).values()) for number in sorted(numbers)]


def same(batches: Any, others: Any) -> bool:
    pairs = zip(batches, others, strict=True)
    return all(torch.equal(*parts) for pair in pairs for parts in zip(*pair, strict=True))


def helpers(of: int | None = None) -> list[psutil.Process]:
    children = [child for child in psutil.Process(of).children() if not leftovers.has_ended(child.pid)]
    return [child for child in children if any(word.endswith("fetch_process.py") for word in child.cmdline())]


WAYS: dict[str, dict[str, Any]] = {
    "none": {"num_workers": 0},
    "thread": {"num_workers": 1, "workers": "threads"},
    "threads": {"num_workers": 2, "workers": "threads"},
    "auto": {},
    "processes": {"num_workers": 2, "workers": "processes"},
    "spawned": {"num_workers": 1, "workers": "processes", "multiprocessing_context": "spawn"},
    "stock": {"num_workers": 0},
    "stock, forked": {"num_workers": 2},
    "stock, spawned": {"num_workers": 1, "multiprocessing_context": "spawn"},
}


def loaders(way: str, dataset: Any, batch_size: int) -> Any:
    if way.startswith("stock"):
        order = torch.Generator().manual_seed(3)
        return TorchDataLoader(dataset, batch_size, shuffle=True, generator=order, **WAYS[way])
    return fl.DataLoader(dataset, batch_size, shuffle=True, seed=3, **WAYS[way])


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
    assert len(images._remote._kept) == {fl.LoadingMode.EAGER: 40, fl.LoadingMode.CACHED: 15}.get(mode, 0)  # type: ignore[union-attr]
    server.fault = lambda handler: handler.refuse(404) or True
    if mode is fl.LoadingMode.EAGER:
        again = pickle.loads(pickle.dumps(fl.ImageDataset(pictures, loading_mode=mode)))
        assert len(again) == 40
        with pytest.raises(FileNotFoundError, match="no such file"):
            fl.ImageDataset(urls, loading_mode=mode)


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
            assert not loader.by_processes
            assert "server" in loader.stats()["workers"]["why"]
    given = fl.DataLoader(dataset, 64, num_workers=3)
    next(iter(given))
    assert (given.num_workers, given.by_processes) == (3, False)
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
        barrier.wait(20)
        return False

    server.fault = all_at_once
    assert right(samples(fl.DataLoader(dataset, 15, sampler=apart)), apart)


# Indexes.


def test_indexes_beside_the_shards_and_in_a_folder(folder: Path, serve: Any, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare, ignore=shutil.ignore_patterns("*.idx"))
    server = serve(bare)

    def ranges() -> int:
        return sum(command == "GET" and name.endswith(".tar") for command, name in server.asked)

    kept = tmp_path / "new" / "indexes"
    fl.TarDataset(server.url(SHARDS), index_folder=kept)
    made = ranges()
    assert made >= COUNT
    again = fl.TarDataset(server.url(SHARDS), index_folder=str(kept))
    assert ranges() == made
    assert right([tuple(sample.values()) for sample in samples_of(again)])
    own = tmp_path / "own"
    shutil.copytree(folder, own)
    fl.TarDataset(own)  # which writes indexes
    server = serve(own)
    assert right([tuple(sample.values()) for sample in samples_of(fl.TarDataset(server.url(SHARDS)))])
    # Neighbours come together, and the indexes are not made.
    assert ranges() < COUNT * EACH
    assert ("GET", "s-1.tar.idx") in server.asked
    # A shard that is exchanged has another tag, so the kept index is not used.
    other = tmp_path / "other"
    shutil.copytree(bare, other)
    server = serve(other)
    fl.TarDataset(server.url("s-0.tar"), index_folder=kept)
    write_shard(other / "s-0.tar", [noise(number, 2990 + number) for number in range(EACH)])
    assert fl.TarDataset(server.url("s-0.tar"), index_folder=kept)[3]["bin"] == noise(3, 2993)


@pytest.mark.parametrize(
    "change",
    [
        "sizes",
        "damaged index",
        *(
            pytest.param(change, marks=pytest.mark.slow)
            for change in ("order", "shorter", "longer", "empty index")
        ),
    ],
)
def test_an_old_index_never_gives_a_wrong_sample(change: str, serve: Any, tmp_path: Path) -> None:
    contents = [noise(number, 700 + number % 3) for number in range(9)]
    shard = write_shard(tmp_path / "a.tar", contents)
    fl.TarDataset(shard)
    index = tmp_path / "a.tar.idx"
    server = serve(tmp_path)
    if change == "sizes":
        write_shard(shard, contents[1:] + contents[:1])
    elif change == "order":  # all of one size, so that only the names tell
        write_shard(shard, [noise(number, 700) for number in range(9)])
        index.unlink()
        fl.TarDataset(shard)
        write_shard(shard, [noise(number, 700) for number in range(1, 10)], first=1)
    elif change == "shorter":
        write_shard(shard, contents[:4])
    elif change == "longer":
        write_shard(shard, [*contents, noise(10, 30_000)])
    else:
        index.write_bytes(index.read_bytes()[:200] if change == "damaged index" else b"")
    dataset = fl.TarDataset(server.url("a.tar"))
    if change in ("sizes", "order"):
        with pytest.raises(DecodeError, match=r"not the one that was indexed.*remove its \.idx"):
            for batch in fl.DataLoader(dataset, 4):
                assert batch is None
        loader = fl.DataLoader(dataset, 4, on_error="skip")
        assert all(row[1] == contents[int(row[0])] for row in samples(loader))
        assert loader.errors
    else:
        local = fl.TarDataset(shard)
        assert [dataset[i] for i in range(len(dataset))] == [local[i] for i in range(len(local))]


def test_names_of_all_sorts_are_recognised(serve: Any, tmp_path: Path) -> None:
    names = [
        "a.b",
        "./x/y.txt",
        "Über.B",
        "d" * 60 + "/" + "e" * 70 + ".bin",
        "f" * 180 + ".bin",
        "g/" * 60 + "h.bin",
    ]
    for style in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        with tarfile.open(tmp_path / "a.tar", "w", format=style) as tar:
            for name in names:
                if style == tarfile.USTAR_FORMAT and name.startswith("f"):
                    continue
                member = tarfile.TarInfo(name)
                member.size = 7
                tar.addfile(member, io.BytesIO(b"content"))
        local = fl.TarDataset(tmp_path)
        dataset = fl.TarDataset(serve(tmp_path).url("a.tar"))
        assert samples_of(dataset) == samples_of(local)
        assert len(dataset) >= len(names) - 1


def samples_of(dataset: Any) -> list[Any]:
    return dataset.__getitems__(list(range(len(dataset))))


# Faults.


def busy(times: int) -> Fault:
    """Answer 503 to the first requests for each range."""
    seen: dict[Any, int] = {}

    def fault(handler: Handler) -> bool:
        what = handler.path, handler.headers.get("Range")
        seen[what] = seen.get(what, 0) + 1
        if seen[what] <= times:
            handler.refuse(503)
        return seen[what] <= times

    return fault


def once(answer: Callable[[Handler, bytes, int, int], None]) -> Fault:
    """Spoil the first answer to each request for a range."""
    seen: set[Any] = set()

    def fault(handler: Handler) -> bool:
        what = handler.path, handler.headers.get("Range")
        if what in seen or handler.command != "GET":
            return False
        seen.add(what)
        content = (handler.server.folder / handler.path.lstrip("/")).read_bytes()
        answer(handler, content, *handler.wanted(len(content)))
        return True

    return fault


def cut_body(handler: Handler, content: bytes, begin: int, end: int) -> None:
    handler.answer(content, begin, end, content[begin : (begin + end) // 2])
    handler.cut()


def cut_head(handler: Handler, content: bytes, begin: int, end: int) -> None:
    handler.wfile.write(b"HTTP/1.1 206 Partial Con")
    handler.cut()


def trickle(handler: Handler, content: bytes, begin: int, end: int) -> None:
    handler.answer(content, begin, end, b"")
    for at in range(begin, end, 500):
        handler.wfile.write(content[at : min(end, at + 500)])
        handler.wfile.flush()
        time.sleep(0.02 if end - begin < 10_000 else 0)


FAULTS: dict[str, Callable[[], Fault]] = {
    "busy": lambda: busy(3),
    "body cut": lambda: once(cut_body),
    "too short": lambda: once(lambda handler, content, begin, end: handler.answer(content, begin, end - 10)),
    "head cut": lambda: once(cut_head),
    "closed at once": lambda: once(lambda handler, *_: handler.cut()),
    "slow": lambda: once(trickle),
    "too many requests": lambda: once(lambda handler, *_: handler.refuse(429)),
    "internal error": lambda: once(lambda handler, *_: handler.refuse(500)),
}


@pytest.mark.parametrize(
    "fault",
    [
        fault if fault in ("busy", "body cut", "closed at once") else pytest.param(fault, marks=pytest.mark.slow)
        for fault in FAULTS
    ],
)
def test_what_passes_is_waited_for(fault: str, folder: Path, serve: Any) -> None:
    server = serve(folder)
    server.fault = FAULTS[fault]()
    dataset = fl.TarDataset(server.url(SHARDS))
    server.fault = FAULTS[fault]()
    assert right(samples(fl.DataLoader(dataset, 16, shuffle=True)))


@pytest.mark.slow
@pytest.mark.parametrize("latency", [0.03, 2.0])
def test_a_server_that_is_far_away(latency: float, folder: Path, serve: Any) -> None:
    server = serve(folder)
    dataset = fl.TarDataset(server.url(SHARDS))
    server.latency = latency
    assert right(samples(fl.DataLoader(dataset, 16, shuffle=True)))


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        (404, FileNotFoundError, "no such file"),
        (403, PermissionError, "check the credentials"),
        (401, PermissionError, "skip_signature"),
        (410, OSError, "410 Gone"),
        (503, OSError, r"again and again.*503.*num_workers"),
    ],
)
def test_what_does_not_pass_is_an_error(status: int, kind: Any, message: str, folder: Path, serve: Any) -> None:
    server = serve(folder)
    dataset = fl.TarDataset(server.url(SHARDS))

    def last_shard(handler: Handler) -> bool:
        if handler.path != "/s-2.tar":
            return False
        handler.refuse(status)
        return True

    server.fault = last_shard
    begun = len(server.asked)
    with pytest.raises(kind, match=message) as caught:
        dataset[2 * EACH]
    assert caught.value.filename == server.url("s-2.tar")
    assert len(server.asked) - begun == (6 if status == 503 else 1)
    assert f"sample {2 * EACH} " in str(caught.value)
    if status == 503:  # which takes long
        return
    chosen = range(2 * EACH - 5, 2 * EACH + 2)
    loader = fl.DataLoader(dataset, 7, sampler=chosen, on_error="skip")
    assert right(samples(loader), chosen[:5])
    assert [error.index for error in loader.errors] == [*chosen[5:]]
    assert all(server.url("s-2.tar") in str(error) for error in loader.errors)
    with pytest.raises(kind):
        fl.TarDataset(server.url(SHARDS))


def test_images_that_cannot_be_fetched_are_left_out(pictures: Path, serve: Any) -> None:
    server = serve(pictures)
    images = fl.ImageDataset([server.url("shard-000000.tar"), server.url("shard-000001.tar")], image_size=16)
    first = len(images.shards.indexes[0])

    def fault(handler: Handler) -> bool:
        if "000001" not in handler.path:
            return False
        handler.refuse(404)
        return True

    server.fault = fault
    loader = fl.DataLoader(images, 8, on_error="skip")
    assert sum(len(batch) for batch, _ in loader) == first
    assert [error.index for error in loader.errors] == list(range(first, len(images)))
    with pytest.raises(FileNotFoundError, match=rf"sample {first} .*shard-000001.tar"):
        list(fl.DataLoader(images, 8))


def test_shards_that_are_cut_short_or_missing(folder: Path, serve: Any, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    server = serve(tmp_path)
    dataset = fl.TarDataset(server.url(SHARDS))
    os.truncate(tmp_path / "s-1.tar", 48_000)
    local = 48_000 // (2 * 512 + 3072 + 512)
    assert dataset[EACH + local - 1] == expected(EACH + local - 1)
    for sample in (EACH + local, 2 * EACH - 1):
        with pytest.raises(DecodeError, match=r"s-1\.tar: .*cut short.*dataset again"):
            dataset[sample]
    with pytest.raises(DecodeError, match=r"s-1\.tar: .*cut short"):
        fl.TarDataset(server.url(SHARDS))
    (tmp_path / "s-1.tar").unlink()
    with pytest.raises(FileNotFoundError, match=r"no such file.*s-1\.tar"):
        fl.TarDataset(server.url(SHARDS))
    (tmp_path / "s-1.tar").write_bytes(b"")
    with pytest.raises(DecodeError, match=r"s-1\.tar: the shard is empty"):
        fl.TarDataset(server.url(SHARDS))


def test_a_server_without_ranges(folder: Path, serve: Any) -> None:
    server = serve(folder)
    dataset = fl.TarDataset(server.url("s-0.tar"))

    def no_ranges(handler: Handler) -> bool:
        del handler.headers["Range"]
        return False

    server.fault = no_ranges
    with pytest.raises(OSError, match=r"does not serve ranges of files.*TarStream.*s-0\.tar"):
        dataset[0]


def test_arguments_that_make_no_sense(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="does not list its files; name them"):
        fl.TarDataset("http://127.0.0.1:9/")
    with pytest.raises(ValueError, match="address with a query"):
        fl.TarDataset("https://127.0.0.1:9/a.tar?signature=1")
    with pytest.raises(ValueError, match="some are local and some are remote"):
        fl.TarDataset(["http://127.0.0.1:9/a.tar", str(folder / "s-0.tar")])
    with pytest.raises(TypeError, match=r"storage: .*'30 seconds'"):
        fl.TarDataset("s3://b/a.tar", storage={"client_options": {"timeout": object()}})
    with pytest.raises(OSError, match=r"storage: .*'nonsense'.*s3://b/a\.tar"):
        fl.TarDataset("s3://b/a.tar", storage={"nonsense": "1"})
    with pytest.raises(OSError, match=r"ftp://b/a\.tar"):
        fl.TarDataset("ftp://b/a.tar")
    monkeypatch.setattr("foreload.remote.fetch.find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"foreload\[remote\]"):
        fl.TarDataset("s3://b/a.tar")


def test_urls_of_files_are_paths(folder: Path, photos: Path, tmp_path: Path) -> None:
    own = tmp_path / "with space"
    shutil.copytree(folder, own)
    url = own.as_uri()
    assert "%20" in url
    for shards in (url, f"{url}/{SHARDS}", [f"{url}/s-{i}.tar" for i in range(COUNT)], f"file://localhost{own}"):
        assert right([tuple(sample.values()) for sample in samples_of(fl.TarDataset(shards))])
    assert fl.ImageDataset(photos.as_uri()).samples == fl.ImageDataset(photos).samples


# The process that fetches.


def test_the_helper_may_be_killed(folder: Path, serve: Any) -> None:
    server = serve(folder)
    dataset = fl.TarDataset(server.url(SHARDS))
    server.latency = 0.02
    rows = []
    for number, batch in enumerate(fl.DataLoader(dataset, 3, shuffle=True, num_workers=4)):
        rows += samples([batch])
        if number % 5 == 1:
            for helper in helpers():
                helper.kill()
    assert right(rows)
    assert dataset[0] == expected(0)
    assert len(helpers()) == 1


def test_nothing_is_left_behind(folder: Path, serve: Any) -> None:
    gone = {child.pid for child in psutil.Process().children()}
    dataset = fl.TarDataset(serve(folder).url(SHARDS))
    open_files = []
    for _ in range(30):
        assert len(samples(fl.DataLoader(dataset, 10, shuffle=True, num_workers=3))) == COUNT * EACH
        # Those of the server's connections are in this process too.
        open_files.append(psutil.Process().num_fds() - len(psutil.Process().net_connections("tcp")))
    assert max(open_files[15:]) <= max(open_files[:15]) + 8
    for _ in range(3):
        for helper in helpers():
            helper.kill()
        assert dataset[1] == expected(1)
    (last,) = helpers()
    del dataset
    assert not last.is_running()
    left = {child.pid: child.status() for child in psutil.Process().children() if child.pid not in gone}
    assert not [pid for pid, status in left.items() if status == psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_many_threads(folder: Path, serve: Any) -> None:
    dataset = fl.TarDataset(serve(folder).url(SHARDS))
    with ThreadPoolExecutor(64) as threads:
        numbers = [number * 7 % len(dataset) for number in range(640)]
        for number, sample in zip(numbers, threads.map(dataset.__getitem__, numbers), strict=True):
            assert sample == expected(number)
    assert len(helpers()) == 1


def test_forks_while_requests_are_under_way(folder: Path, serve: Any) -> None:
    dataset = fl.TarDataset(serve(folder).url(SHARDS))
    stop = threading.Event()

    def read() -> bool:
        exact = True
        while not stop.is_set():
            exact &= dataset[11] == expected(11)
        return exact

    with ThreadPoolExecutor(6) as threads:
        reading = [threads.submit(read) for _ in range(6)]
        children = []
        for number in range(6):
            child = os.fork()
            if child == 0:
                os._exit(0 if all(dataset[i] == expected(i) for i in range(number, 60, 7)) else 1)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 6
        stop.set()
        assert all(each.result() for each in reading)


def test_an_interrupted_read_keeps_its_memory(folder: Path, serve: Any) -> None:
    server = serve(folder)
    dataset = fl.TarDataset(server.url(SHARDS))
    server.latency = 0.3
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        samples_of(dataset)
    timer.join()
    # What was asked for still arrives, but not where these go.
    server.latency = 0.0
    for _ in range(30):
        assert right([tuple(sample.values()) for sample in samples_of(dataset)])


def test_ranges_as_they_are(folder: Path, serve: Any) -> None:
    server = serve(folder)
    fetch = Fetch()
    content = (folder / "s-0.tar").read_bytes()
    url = server.url("s-0.tar")
    memory, starts, failures = fetch.read([Range(url, 5, 10), Range(url, 7, 0), Range(server.url("no"), 0, 5)])
    assert (starts.tolist(), list(failures)) == ([0, 10, 10, 15], [2])
    assert memory[:10].tobytes() == content[5:15]
    assert fetch.read([])[1].tolist() == [0]
    assert fetch.head(url) == (len(content), f'"{zlib.crc32(content)}"')
    again = pickle.loads(pickle.dumps(fetch))
    assert again.read([Range(url, 0, 9)])[0][:9].tobytes() == content[:9]


SCRIPT = """
    import os, signal, sys, time
    import foreload as fl, psutil
    dataset = fl.TarDataset(sys.argv[1])
    loader = fl.DataLoader(dataset, 2, num_workers=4, workers=sys.argv[2])
    batches = iter(loader)
    next(batches)
    tree = psutil.Process().children(recursive=True)
    helpers = [child.pid for child in tree if any("fetch_process.py" in word for word in child.cmdline())]
    print(*helpers, flush=True)
    {then}
"""


@pytest.mark.parametrize(
    ("end", "workers"),
    [
        ("exit", "threads"),
        ("kill", "processes"),
        pytest.param("interrupt", "threads", marks=pytest.mark.slow),
        pytest.param("exit", "processes", marks=pytest.mark.slow),
        pytest.param("interrupt", "processes", marks=pytest.mark.slow),
        pytest.param("kill", "threads", marks=pytest.mark.slow),
    ],
)
def test_the_helper_ends_with_its_parent(end: str, workers: str, folder: Path, serve: Any) -> None:
    server = serve(folder)
    server.latency = 0.1
    then = "sys.exit(3)" if end == "exit" else "[next(batches) for _ in range(10**6)] and 0 or time.sleep(60)"
    if end == "interrupt":
        then = "list(batches); time.sleep(60)"
    script = textwrap.dedent(SCRIPT).replace("{then}", then)
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script, server.url(SHARDS), workers],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) >= 1
    if end != "exit":
        sign = signal.SIGINT if end == "interrupt" else signal.SIGKILL
        os.killpg(process.pid, sign) if end == "interrupt" else process.send_signal(sign)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == {"exit": 3, "interrupt": -signal.SIGINT, "kill": -signal.SIGKILL}[end]
    if end == "exit":
        assert "Traceback" not in errors
    for pid in pids:
        assert ended(pid)


def ended(pid: int) -> bool:
    """Wait for a process that need not be our child."""
    deadline = time.monotonic() + leftovers.PATIENCE
    while not leftovers.has_ended(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return leftovers.has_ended(pid)


def test_keys_are_not_shown_to_others(folder: Path, serve: Any) -> None:
    secret = {"client_options": {"user_agent": "a-secret-key"}}
    dataset = fl.TarDataset(serve(folder).url(SHARDS), storage=secret)
    assert dataset[0] == expected(0)
    (helper,) = helpers()
    assert "a-secret-key" not in " ".join(helper.cmdline())


def test_the_helper_finds_its_library_where_the_program_does(folder: Path, serve: Any) -> None:
    # Without site's own folders, but with what an editable install needs to be found.
    script = (
        "import sys, site; site.addsitedir({site!r}); sys.path[:] = {path!r}; import foreload as fl; "
        "print(len(fl.TarDataset({url!r})))"
    )
    text = script.format(site=sysconfig.get_paths()["purelib"], path=sys.path, url=serve(folder).url(SHARDS))
    found = subprocess.run([sys.executable, "-I", "-S", "-c", text], capture_output=True, text=True, timeout=60)
    assert found.stdout.split() == [str(COUNT * EACH)], found.stderr


# Real servers.


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_nginx(folder: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "nginx.conf").write_text(
        f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/log; events {{}}\n"
        f"http {{ access_log off; client_body_temp_path {tmp_path}; proxy_temp_path {tmp_path};\n"
        f"fastcgi_temp_path {tmp_path}; uwsgi_temp_path {tmp_path}; scgi_temp_path {tmp_path};\n"
        f"server {{ listen 127.0.0.1:{port}; root {folder}; }} }}\n"
    )
    os.chmod(folder, 0o755)
    server = subprocess.Popen(
        ["nginx", "-c", str(tmp_path / "nginx.conf"), "-g", f"user {os.environ.get('USER', 'root')};"]
    )
    try:
        url = f"http://127.0.0.1:{port}/{SHARDS}"
        Fetch().head(url.replace(SHARDS, "s-0.tar"))  # it is tried until the server is there
        assert right(samples(fl.DataLoader(fl.TarDataset(url), 8, shuffle=True)))
        with pytest.raises(FileNotFoundError, match=r"none\.tar"):
            fl.TarDataset(url.replace(SHARDS, "none.tar"))
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture(scope="module")
def bucket(folder: Path, pictures: Path) -> Iterator[dict[str, Any]]:
    """An S3 that speaks over a socket, with the shards below two prefixes of a bucket."""
    moto = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    server = moto.ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"access_key_id": "me", "secret_access_key": "secret", "region": "us-east-1"}
    endpoint = f"http://{host}:{port}"
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="me",
        aws_secret_access_key="secret",
    )
    client.create_bucket(Bucket="data")
    for path in sorted(folder.glob("*.tar")):
        client.put_object(Bucket="data", Key=f"train set/{path.name}", Body=path.read_bytes())
    for path in sorted(pictures.iterdir()):
        client.put_object(Bucket="data", Key=f"pictures/{path.name}", Body=path.read_bytes())
    yield {**keys, "endpoint": endpoint}
    server.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", ["auto", *(pytest.param(way, marks=pytest.mark.slow) for way in ("processes", "stock, forked"))]
)
def test_s3(way: str, bucket: dict[str, Any], pictures: Path) -> None:
    listed = fl.TarDataset("s3://data/train set/", storage=bucket)
    named = fl.TarDataset(f"s3://data/train%20set/{SHARDS}", storage=bucket)
    assert len(listed.shards.paths) == COUNT
    assert right(samples(loaders(way, listed, 8)))
    assert samples_of(named) == samples_of(listed)
    small = transforms.resize((24, 32), normalize=False)
    images = fl.ImageDataset("s3://data/pictures/", transform=small, storage=bucket)
    assert images.classes == [f"class_{i}" for i in range(4)]
    assert same(loaders(way, images, 8), loaders(way, fl.ImageDataset(pictures, transform=small), 8))


@pytest.mark.slow
def test_s3_errors(bucket: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match=r"no \*\.tar below 's3://data/nothing/'"):
        fl.TarDataset("s3://data/nothing/", storage=bucket)
    for url in ("s3://data/none.tar", "s3://nobody/a.tar"):
        with pytest.raises(FileNotFoundError, match=url):
            fl.TarDataset(url, storage=bucket)
    with pytest.raises(OSError, match=r"again and again.*can be reached"):
        fl.TarDataset("s3://data/none.tar", storage=bucket | {"endpoint": "http://127.0.0.1:9"})
