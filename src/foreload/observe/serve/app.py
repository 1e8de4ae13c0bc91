"""What answers at which path, and the server."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from foreload.observe.serve.guard import Guard, is_loopback
from foreload.observe.serve.trial import Trial, arguments
from foreload.observe.serve.watch import Watch

__all__ = ["serve"]

_FILES = {"/": "page.html", "/page.css": "page.css", "/page.js": "page.js", "/draw.js": "draw.js"}
_LONGEST = 10_000  # bytes of what the page may ask for


def serve(host: str, port: int, *, token: bool, say: Callable[[str], object]) -> None:
    """Serve the page until the process is told to end.

    Args:
        host: a name or address of this machine; beyond loopback a token is asked for in any case.
        port: 0: any that is free.
        token: ask for one on loopback too.
        say: is told the address to open.

    Raises:
        OSError: the port is in use, or the host is not this machine.
    """
    with _bind(host, port) as listener:
        port = listener.getsockname()[1]
        secret = secrets.token_urlsafe(24) if token or not is_loopback(host) else None
        say(_address(host, port, secret))
        server = _Server(host, port, secret)
        # What it ends by, such as SIGINT, is raised again when everything is closed.
        with suppress(KeyboardInterrupt):
            server.run([listener])


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except socket.gaierror as error:
        raise OSError(f"--host {host}: {error.strerror}; give a name or address of this machine") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(64)
    except OSError as error:
        listener.close()
        raise OSError(
            f"cannot listen at {host}, port {port}: {os.strerror(error.errno or 0)}; choose another: --port {port + 1}"
        ) from None
    return listener


def _address(host: str, port: int, secret: str | None) -> str:
    name = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/" + (f"?token={secret}" if secret else "")


class _Server(uvicorn.Server):
    """The page's server; lets viewers go when it ends, who would never go by themselves."""

    def __init__(self, host: str, port: int, secret: str | None) -> None:
        self._page = _Page()
        app = Starlette(
            routes=self._page.routes(),
            middleware=[Middleware(Guard, host=host, token=secret, cookie=f"foreload-{port}")],
            lifespan=self._page.lifespan,
        )
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=2
        )
        super().__init__(config)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all event streams, then the rest."""
        await self._page.watch.end()
        await super().shutdown(sockets)


class _Page:
    def __init__(self) -> None:
        self.watch = Watch(lambda: {"bench": self.trial.state()})
        self.trial = Trial(self.watch.tell)

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(self.watch.run())
        yield
        await self.trial.stop()
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching

    def routes(self) -> list[Route]:
        return [
            *(Route(path, _file(name)) for path, name in _FILES.items()),
            Route("/events", self._events),
            Route("/state.json", self._state),
            Route("/bench", self._bench, methods=["POST"]),
            Route("/bench/stop", self._stop, methods=["POST"]),
        ]

    async def _events(self, _: Request) -> Response:
        return StreamingResponse(
            self.watch.events(), media_type="text/event-stream", headers={"x-accel-buffering": "no"}
        )

    async def _state(self, _: Request) -> Response:
        return Response(self.watch.text, media_type="application/json")

    async def _bench(self, request: Request) -> Response:
        if self.trial.running:
            return JSONResponse({"error": "a benchmark is running already"}, 409)
        try:
            wanted = arguments(json.loads(await _body(request)))
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 400)
        self.trial.start(wanted)
        await self.watch.tell()
        return JSONResponse({}, 202)

    async def _stop(self, _: Request) -> Response:
        await self.trial.stop()
        await self.watch.tell()
        return JSONResponse({})


async def _body(request: Request) -> bytes:
    read = b""
    async for part in request.stream():
        read += part
        if len(read) > _LONGEST:
            raise ValueError(f"a wish has at most {_LONGEST:,} bytes")
    return read


def _file(name: str) -> Callable[[Request], Response]:
    def answer(_: Request) -> Response:
        return FileResponse(Path(__file__).with_name(name))

    return answer
