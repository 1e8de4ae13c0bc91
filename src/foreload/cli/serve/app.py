"""The server of ``foreload serve``, and its routes."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from foreload.cli.serve.guard import MAX_HEAD_BYTES, guards
from foreload.cli.serve.trial import BenchRun, arguments
from foreload.cli.serve.watch import LoaderDiscovery
from foreload.export.hosts import is_loopback
from foreload.export.publisher import runtime_folder

__all__ = ["serve"]

# The longest body of a request, and the seconds for it to come.
_MAX_BODY_BYTES = 10_000
_BODY_TIMEOUT = 10.0


def serve(host: str, port: int, *, token: bool, say: Callable[[str], object]) -> None:
    """Serve the page until the process is asked to end.

    Args:
        host: a name or address of this machine.
        port: the port to listen on; 0: any free one.
        token: require the token to see the page on loopback too, as beyond loopback. It is always required to
            start a benchmark.
        say: called with the address to open.

    Raises:
        ValueError: the host is not this machine.
        OSError: the port is in use, or others can write to the folder in which loaders are published.
    """
    runtime_folder()
    with _bind(host, port) as listener:
        port = listener.getsockname()[1]
        secret = secrets.token_urlsafe(24)
        say(_address(host, port, secret))
        guarded = guards(host, secret, f"foreload-{port}", private=token or not is_loopback(host))
        # The signal that ends it, such as SIGINT, is raised again when everything is closed.
        with suppress(KeyboardInterrupt):
            _Server(guarded).run([listener])


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (socket.gaierror, UnicodeError) as error:
        raise ValueError(f"host: {host!r}: {error}; give a name or address of this machine") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(64)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise ValueError(
                f"host: {host!r} is not an address of this machine; give one of its own, such as 127.0.0.1"
            ) from None
        why = os.strerror(error.errno or 0)
        raise OSError(
            f"cannot listen on {host}, port {port}: {why}; choose another (--port 0 takes any)"
        ) from None
    return listener


def _address(host: str, port: int, secret: str) -> str:
    name = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/?token={secret}"


class _Server(uvicorn.Server):
    """The page's server, which disconnects viewers when it ends."""

    def __init__(self, guards: list[Middleware]) -> None:
        self._discovery = LoaderDiscovery(lambda: {"bench": self._bench_run.state})
        self._bench_run = BenchRun(self._discovery.notify)
        app = Starlette(
            routes=[
                Route("/events", self._events),
                Route("/state.json", self._state),
                Route("/bench", self._bench, methods=["POST"]),
                Route("/bench/stop", self._stop, methods=["POST"]),
                Mount("/plotly", StaticFiles(packages=[("plotly", "package_data")])),
                Mount("/", StaticFiles(packages=[("foreload.cli.serve", "page")], html=True)),
            ],
            middleware=[*guards, Middleware(GZipMiddleware)],
            lifespan=self._while_up,
        )
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",  # which limits what comes before the body
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                ws="none",
                log_level="warning",
                server_header=False,
                timeout_graceful_shutdown=2,
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all event streams, then the rest."""
        await self._discovery.end()
        await super().shutdown(sockets)

    @asynccontextmanager
    async def _while_up(self, _: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(self._discovery.run())
        try:
            yield
        finally:
            await self._bench_run.stop()
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    async def _events(self, _: Request) -> Response:
        return StreamingResponse(self._discovery.events(), media_type="text/event-stream")

    async def _state(self, _: Request) -> Response:
        return Response(await self._discovery.state(), media_type="application/json")

    async def _bench(self, request: Request) -> Response:
        if self._bench_run.running:
            return JSONResponse({"error": "a benchmark is running already"}, 409)
        try:
            wanted = arguments(json.loads(await _body(request)))
        except RecursionError:
            return JSONResponse({"error": "the request is nested too deeply"}, 400)
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 400)
        self._bench_run.start(wanted)
        await self._discovery.notify()
        return JSONResponse({}, 202)

    async def _stop(self, _: Request) -> Response:
        await self._bench_run.stop()
        return JSONResponse({})


async def _body(request: Request) -> bytes:
    read = b""
    try:
        async with asyncio.timeout(_BODY_TIMEOUT):
            async for part in request.stream():
                read += part
                if len(read) > _MAX_BODY_BYTES:
                    raise HTTPException(413, f"The request is longer than {_MAX_BODY_BYTES:,} bytes.\n")
    except TimeoutError:
        raise HTTPException(408, f"The request did not arrive within {_BODY_TIMEOUT:.0f} seconds.\n") from None
    return read
