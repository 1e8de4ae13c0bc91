"""Fetches from object storage and web servers, in a process of its own; see :mod:`foreload.remote.fetch`.

Run as a script, so that it imports neither torch nor foreload. The library that it uses has threads of its own,
with which a process must not be forked; and what it does needs no turn at the GIL of the program that trains.

Messages are JSON after their length (8 bytes); a request for ranges comes with the memory that they go to.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import random
import re
import resource
import socket
import struct
import sys
from datetime import timedelta
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import obstore
from obstore import exceptions
from obstore.store import HTTPStore, from_url

# Calls of the library under way at a time; ranges of a file that one of them gets, which costs far less than as
# many calls; and the bytes between two ranges that are rather read than skipped.
MOST = 512
TOGETHER = 4
GAP = 4096

# How often a request is tried.
MAPS = 24
TRIES = 6
FIRST_PAUSE = 0.1

LENGTH = struct.Struct("<Q")

# Failures that another try would only repeat.
FINAL = ("missing", "forbidden", "short", "refused")
REFUSED = re.compile(r"status code: 4(?!00|08|25|29)\d\d|^Received redirect|Range Request not supported")
NOBODY = "169.254.169.254"  # the address at which a machine in a cloud is given its keys


def main() -> None:
    """Serve the socket of this number until it is closed; the first message holds the options."""
    connection = socket.socket(fileno=int(sys.argv[1]))
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
        self._stores: dict[str, Any] = {}
        self._slots = asyncio.Semaphore(MOST)
        self._jobs: set[asyncio.Task[None]] = set()
        self._maps: dict[int, mmap.mmap] = {}
        self._turn = asyncio.Lock()  # to send an answer

    async def serve(self) -> None:
        """Answer requests until the other end is closed."""
        loop = asyncio.get_running_loop()
        while True:
            received = await loop.run_in_executor(None, self._receive)
            if received is None:
                os._exit(0)  # there is no one left to send results to
            request, memory = received
            if "id" not in request:
                self._options = request
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
                answer["failures"] = await self._ranges(request["ranges"], descriptor)
            elif request["do"] == "head":
                answer["result"] = await self._retried(request["url"], self._head)
            else:
                answer["result"] = await self._retried(request["url"], self._list)
        except BaseException as error:  # a panic of the library, too: the other end waits for an answer
            answer["error"] = describe(error)
        body = json.dumps(answer).encode()
        async with self._turn:
            await asyncio.get_running_loop().run_in_executor(
                None, self._connection.sendall, LENGTH.pack(len(body)) + body
            )

    async def _ranges(self, ranges: list[list[Any]], descriptor: int) -> list[Any]:
        memory = self._map(descriptor)
        failures: list[Any] = []

        def put(found: Any, length: int, at: int) -> None:
            got = memoryview(found)
            if len(got) != length:
                raise EOFError(f"it ends {length - len(got):,} bytes too early")
            memory[at : at + length] = got

        async def one(number: int, url: str, start: int, length: int, at: int) -> None:
            async def get(store: Any, path: str) -> Any:
                return await obstore.get_range_async(store, path, start=start, length=length)

            try:
                put(await self._retried(url, get), length, at)
            except Exception as error:  # as above
                failures.append([number, *describe(error)])

        async def several(url: str, group: list[int]) -> None:
            """Get several ranges of a file by one call of the library, or one by one if that fails."""
            _, starts, lengths, places = zip(*(ranges[number] for number in group), strict=True)
            try:
                store, path = self._store(url)
                async with self._slots:
                    found = await obstore.get_ranges_async(
                        store, path, starts=starts, lengths=lengths, coalesce=GAP
                    )
                for part in zip(found, lengths, places, strict=True):
                    put(*part)
            except BaseException:  # the library panics if a file is shorter than two ranges that it joins
                await asyncio.gather(*(one(number, *ranges[number]) for number in group))

        files: dict[str, list[int]] = {}
        for number, (url, _, length, _) in enumerate(ranges):
            if length:
                files.setdefault(url, []).append(number)
        groups = [(url, all[i : i + TOGETHER]) for url, all in files.items() for i in range(0, len(all), TOGETHER)]
        await asyncio.gather(
            *(several(url, group) if len(group) > 1 else one(group[0], *ranges[group[0]]) for url, group in groups)
        )
        return failures

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
        store, path = self._store(url)
        for attempt in range(TRIES):
            try:
                async with self._slots:
                    return await ask(store, path)
            except Exception as error:  # a cut connection or a busy server, for which the library has no one class
                if attempt == TRIES - 1 or describe(error)[0] in FINAL:
                    raise
            await asyncio.sleep(FIRST_PAUSE * 2**attempt * (0.5 + random.random()))
        raise AssertionError("unreachable")

    def _store(self, url: str) -> tuple[Any, str]:
        parts = urlsplit(url)
        base = f"{parts.scheme}://{parts.netloc}"
        if base not in self._stores:
            client = {
                "allow_http": True,
                "timeout": timedelta(seconds=60),
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
        return self._stores[base], unquote(parts.path).lstrip("/")

    async def _head(self, store: Any, path: str) -> Any:
        found = await obstore.head_async(store, path)
        return {"size": found["size"], "tag": found.get("e_tag") or str(found.get("last_modified"))}

    async def _list(self, store: Any, path: str) -> Any:
        found = []
        async for chunk in obstore.list(store, path):
            found += [quote(entry["path"]) for entry in chunk]
        return sorted(found)


def describe(error: BaseException) -> tuple[str, str]:
    """Return the kind of a failure, and the library's message."""
    kinds = {
        "missing": (FileNotFoundError, exceptions.NotFoundError),
        "forbidden": (PermissionError, exceptions.PermissionDeniedError, exceptions.UnauthenticatedError),
        "short": (EOFError,),
        "refused": (ValueError, TypeError, exceptions.NotSupportedError),
    }
    text = (str(error).strip().splitlines() or [repr(error)])[0][:300]
    kind = next((name for name, classes in kinds.items() if isinstance(error, classes)), "other")
    if kind == "other" and NOBODY in text:
        return "forbidden", text
    if kind == "other" and "status code: 404" in text:
        return "missing", text  # listing a bucket has no class for it
    if kind == "other" and "status code: 416" in text:
        return "short", "it ends before the range begins"
    return ("refused" if kind == "other" and REFUSED.search(text) else kind), text


if __name__ == "__main__":
    main()
