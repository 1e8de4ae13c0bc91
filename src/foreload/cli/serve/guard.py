"""Access control: only browsers that opened this page by its own address, with its token where it is needed."""

from __future__ import annotations

import hmac

from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foreload.export.hosts import is_addressed

__all__ = ["MAX_HEAD_BYTES", "guards"]

# The longest request before its body, and the longest address in it.
MAX_HEAD_BYTES = 16_384
_MAX_ADDRESS_BYTES = 4096

_HEADERS = {
    # Plotly's script adds inline styles.
    "content-security-policy": "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",  # the token may be in the address
    "cache-control": "no-cache",
}


def guards(host: str, token: str, cookie: str, *, private: bool) -> list[Middleware]:
    """Return the middleware that refuses foreign requests before they reach the app.

    - On loopback, the ``Host`` header must be a name of loopback: a foreign page whose own name resolves to this
      machine (DNS rebinding) is refused. Beyond loopback, such a page lacks the cookie of this host.
    - A browser must send the token once in the address (``?token=``), and then has it in a cookie. Without it,
      everything is refused if the page is private; otherwise, all but looking.
    - Requests that change something must come from this page (``Origin``, ``Sec-Fetch-Site``), and as JSON, which
      foreign pages cannot send without permission.

    Args:
        host: the address that the server is bound to.
        token: the token.
        cookie: the name of the cookie, as browsers share cookies between ports.
        private: whether the page is only shown to those who have the token.
    """
    return [Middleware(_Guard, host=host, token=token, cookie=cookie, private=private)]


class _Guard:
    def __init__(self, app: ASGIApp, *, host: str, token: str, cookie: str, private: bool) -> None:
        self._app = app
        self._host = host
        self._token = token
        self._cookie = cookie
        self._private = private

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # there is no WebSocket
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        request = Request(scope)
        answer = self._check(request) or self._app
        await answer(scope, receive, send_guarded)

    def _check(self, request: Request) -> Response | None:
        return (
            _refuse_long(request.scope)
            or self._refuse_host(request)
            or self._admit(request)
            or _refuse_foreign(request)
        )

    def _refuse_host(self, request: Request) -> Response | None:
        if is_addressed(self._host, request.headers.get("host")):
            return None
        return PlainTextResponse("This page must be opened under a name of this machine: http://127.0.0.1\n", 400)

    def _admit(self, request: Request) -> Response | None:
        """Return the response to a request without the token, or to one that sends it first; else None."""
        given = request.query_params.get("token")
        if given is not None and self._knows(given) and request.scope["path"] == "/":
            answer = RedirectResponse("/", 303)
            # Not strict: the address may have been opened from a message or a notebook.
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="lax")
            return answer
        if not self._private and _looks(request):
            return None
        if self._knows(request.cookies.get(self._cookie, "") if given is None else given):
            return None
        what = "This page needs its" if self._private else "Starting and stopping benchmarks needs the page's"
        return PlainTextResponse(
            f"{what} token: open the address that foreload serve printed, including ?token=.\n", 401
        )

    def _knows(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


def _refuse_long(scope: Scope) -> Response | None:
    # The server's own limit is for what comes in several parts.
    if len(scope["raw_path"]) + len(scope["query_string"]) > _MAX_ADDRESS_BYTES:
        return PlainTextResponse("The address is too long.\n", 414)
    if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEAD_BYTES:
        return PlainTextResponse("The headers are too long.\n", 431)
    return None


def _looks(request: Request) -> bool:
    return request.method in ("GET", "HEAD")


def _refuse_foreign(request: Request) -> Response | None:
    headers = request.headers
    # Without its scheme; a page elsewhere has another name or port.
    origin = headers.get("origin", "//" + headers.get("host", "")).partition("//")[2]
    if _looks(request) or (
        origin == headers.get("host", "")
        and headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
        and headers.get("content-type", "").partition(";")[0].strip() == "application/json"
    ):
        return None
    return PlainTextResponse("Only this page itself may send this request, as JSON.\n", 403)
