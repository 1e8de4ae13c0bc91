"""Fetches from object storage and web servers, in a process of its own; see :mod:`foreload.remote.fetch`.

The library that it uses has threads of its own, with which a process must not be forked; and what it does needs no
turn at the GIL of the program that trains.

Messages are JSON after their length (8 bytes); a request for ranges comes with the memory that they go to. The
first message holds the options of the storage, and how patient to be.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import resource
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import obstore
from obstore.store import HTTPStore, from_url

from foreload.remote.answers import FINAL, check_answer, describe, status_of, tag_of
from foreload.remote.busy import BUSY, BusyServer
from foreload.remote.connections import Connections
from foreload.remote.patience import PATIENCE, Patience

__all__ = ["serve"]

# Requests under way at a time; the bytes between two ranges that are rather read than skipped; and the most bytes
# of neighbours that one request gets.
MOST = 512
GAP = 4096
JOINED = 1 << 20

MAPS = 24  # pieces of memory that stay mapped

LENGTH = struct.Struct("<Q")


def serve(number: int) -> None:
    """Serve the socket of this number until it is closed."""
    connection = socket.socket(fileno=number)
    connection.setblocking(True)
    # Each request that is under way has a connection.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(Server(connection).serve())


class Server:
    """A server of requests over a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._options: dict[str, Any] = {}
        self._patience = PATIENCE
        self._stores: dict[str, Any] = {}
        self._connections = Connections()
        self._slots = asyncio.Semaphore(MOST)
        self._heard: dict[str, float] = {}  # when each server sent something last
        self._silent: set[str] = set()  # servers that were given up, and have not sent anything since
        self._busy: dict[str, BusyServer] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self._maps: dict[int, mmap.mmap] = {}
        self._turn = asyncio.Lock()  # to send an answer
        self._messages = ThreadPoolExecutor(2)  # the loop's own may wait for names of servers

    async def serve(self) -> None:
        """Answer requests until the other end is closed."""
        loop = asyncio.get_running_loop()
        while True:
            received = await loop.run_in_executor(self._messages, self._receive)
            if received is None:
                os._exit(0)  # there is no one left to send results to
            request, memory = received
            if "id" not in request:
                self._options, self._patience = request["options"], Patience(*request["patience"])
                continue
            job = loop.create_task(self._answer(request, memory))
            self._jobs.add(job)
            job.add_done_callback(self._jobs.discard)

    def _receive(self) -> tuple[dict[str, Any], int | None] | None:
        try:
            head, descriptors, _, _ = socket.recv_fds(self._connection, LENGTH.size, 1)
            while 0 < len(head) < LENGTH.size:
                more = self._connection.recv(LENGTH.size - len(head))
                head = head + more if more else b""
            if not head:
                return None
            body = bytearray()
            while len(body) < LENGTH.unpack(head)[0]:
                part = self._connection.recv(min(1 << 20, LENGTH.unpack(head)[0] - len(body)))
                if not part:
                    return None
                body += part
        except OSError:
            return None
        return json.loads(body), descriptors[0] if descriptors else None

    async def _answer(self, request: dict[str, Any], descriptor: int | None) -> None:
        answer: dict[str, Any] = {"id": request["id"]}
        try:
            if request["do"] == "ranges":
                assert descriptor is not None
                memory = self._map(descriptor)
                answer["failures"] = await self._ranges(request["ranges"], request["versions"], memory)
            elif request["do"] == "head":
                answer["result"] = await self._retried(request["url"], head)
            else:
                answer["result"] = await self._retried(request["url"], list_objects)
        except BaseException as error:  # a panic of the library, too: the other end waits for an answer
            answer["error"] = describe(error)
        body = json.dumps(answer).encode()
        async with self._turn:
            await asyncio.get_running_loop().run_in_executor(
                self._messages, self._connection.sendall, LENGTH.pack(len(body)) + body
            )

    async def _ranges(self, ranges: list[list[Any]], versions: dict[str, Any], memory: mmap.mmap) -> list[Any]:
        failures: list[Any] = []

        async def several(url: str, numbers: list[int]) -> None:
            """Get neighbours by one request, or one by one if the file ends among them."""
            start = ranges[numbers[0]][1]
            length = max(ranges[number][1] + ranges[number][2] for number in numbers) - start
            alone = len(numbers) == 1
            target = memoryview(memory)[ranges[numbers[0]][3] :][:length] if alone else bytearray(length)
            try:
                await self._get(url, versions.get(url), start, target)
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # a panic of the library, too: others still write to the memory
                described = describe(error)
                if described[0] == "short" and not alone:
                    await asyncio.gather(*(several(url, [number]) for number in numbers))
                else:
                    failures.extend([number, *described] for number in numbers)
                return
            if not alone:
                for number in numbers:
                    _, begin, size, place = ranges[number]
                    memory[place : place + size] = target[begin - start :][:size]

        files: dict[str, list[int]] = {}
        for number, (url, _, length, _) in enumerate(ranges):
            if length:
                files.setdefault(url, []).append(number)
        await asyncio.gather(
            *(several(url, group) for url, numbers in files.items() for group in neighbours(ranges, numbers))
        )
        return failures

    async def _get(self, url: str, version: list[Any] | None, start: int, target: Any) -> None:
        """Get the bytes from ``start`` on of this version of a file, as many as ``target`` holds."""
        options: Any = {"range": (start, start + len(target))}
        if version is not None and version[1].startswith('"'):
            options["if_match"] = version[1]
        # A client that was told how long to wait does so by itself.
        given = "read_timeout" in self._options.get("client_options", {})
        silence = None if given else self._patience.silence

        async def get(store: Any, path: str, heard: Callable[[], float]) -> None:
            # (What the options of the library mean, it knows itself.)
            if not self._options and await self._connections.get(
                url, version, start, memoryview(target), self._patience, heard
            ):
                return
            found = await obstore.get_async(store, path, options=options)
            check_answer(url, found, version)
            filled = 0
            # A server that sends next to nothing is as silent as one that sends nothing.
            stream = found.stream(min_chunk_size=self._patience.least)
            try:
                async with asyncio.timeout(silence) as limit:
                    while filled < len(target):  # to ask for the end as well would take as long again
                        part = await anext(stream, b"")
                        if not part:
                            raise EOFError(f"it ends {len(target) - filled:,} bytes too early")
                        if filled + len(part) > len(target):
                            raise ConnectionError("the answer is longer than the range that was asked for")
                        target[filled : filled + len(part)] = part
                        filled += len(part)
                        limit.reschedule(None if silence is None else heard() + silence)
            except TimeoutError:
                raise TimeoutError(f"it sends less than {self._patience.least} bytes in {silence:g} s") from None

        await self._retried(url, get)

    def _map(self, descriptor: int) -> mmap.mmap:
        status = os.fstat(descriptor)
        # The same memory is used repeatedly; mapped once, it takes no page faults.
        memory = self._maps.pop(status.st_ino, None) or mmap.mmap(descriptor, status.st_size)
        os.close(descriptor)
        self._maps[status.st_ino] = memory
        if len(self._maps) > MAPS:
            del self._maps[next(iter(self._maps))]
        return memory

    async def _retried(self, url: str, ask: Any) -> Any:
        """Ask, and ask again after what may pass, until the server has been silent for too long."""
        base, store, path = self._store(url)
        clock = asyncio.get_running_loop().time
        patience = self._patience
        last = began = clock()

        def heard() -> float:
            nonlocal last
            self._silent.discard(base)
            self._heard[base] = last = clock()
            return last

        for attempt in range(patience.tries):
            try:
                async with self._slots:
                    if attempt == 0:
                        # Those that waited for a slot while the server was silent need not wait as long again.
                        if clock() - max(began, self._heard.get(base, 0)) > patience.total:
                            raise TimeoutError("it is silent")
                        last = clock()
                    found = await ask(store, path, heard)
                    heard()
                    return found
            except Exception as error:  # a cut connection or a busy server, for which the library has no one class
                if describe(error)[0] in FINAL or base in self._silent:
                    raise
                told = 0.0
                if url.startswith("http") and status_of(error) in BUSY:
                    told = await self._busy.setdefault(base, BusyServer()).told_to_wait(url, patience.silence)
                pause = patience.pause_after(attempt, told, clock() - last)
                if pause is None:
                    if attempt + 1 < patience.tries:  # so it was time that ran out
                        self._silent.add(base)
                    raise
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    def _store(self, url: str) -> tuple[str, Any, str]:
        parts = urlsplit(url)
        base = f"{parts.scheme}://{parts.netloc}"
        if base not in self._stores:
            client = {
                "allow_http": True,
                "read_timeout": timedelta(seconds=self._patience.silence),
                "timeout": timedelta(days=365),  # of a whole request, which may take as long as it needs
                **self._options.get("client_options", {}),
            }
            options = {name: value for name, value in self._options.items() if name != "client_options"}
            # The library's own retries would multiply with these.
            retries = {"max_retries": 0, "retry_timeout": timedelta(seconds=60)}
            # For a web address, from_url would guess a storage service and ask for its keys.
            make: Any = HTTPStore.from_url if parts.scheme in ("http", "https") else from_url
            try:
                self._stores[base] = make(base, client_options=client, retry_config=retries, **options)
            except BaseException as error:  # the library has many kinds of them
                raise ValueError(f"storage: {describe(error)[1]}") from error
        return base, self._stores[base], unquote(parts.path).lstrip("/")


async def head(store: Any, path: str, heard: Callable[[], float]) -> Any:
    """Return the size and the tag of a file."""
    found = await obstore.head_async(store, path)
    return {"size": found["size"], "tag": tag_of(found)}


async def list_objects(store: Any, path: str, heard: Callable[[], float]) -> Any:
    """List the files below a path."""
    found = []
    async for chunk in obstore.list(store, path):
        found += [quote(entry["path"]) for entry in chunk]
        heard()
    return sorted(found)


def neighbours(ranges: list[list[Any]], numbers: list[int]) -> Iterator[list[int]]:
    """Yield the ranges of a file, those together that lie side by side."""
    group: list[int] = []
    begin = end = 0
    for number in sorted(numbers, key=lambda number: int(ranges[number][1])):
        _, start, length, _ = ranges[number]
        if group and (start > end + GAP or start + length > begin + JOINED):
            yield group
            group = []
        if not group:
            begin = end = start
        group.append(number)
        end = max(end, start + length)
    if group:
        yield group
