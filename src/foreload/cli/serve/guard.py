"""Access control: only browsers that opened this page by its own address, with its token if it has one."""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["guards", "is_loopback"]

_HEADERS = {
    # Plotly's script adds inline styles.
    "content-security-policy": "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",  # the token may be in the address
    "cache-control": "no-cache",
}


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the host.

    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "10.0.0.7")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def guards(host: str, token: str | None, cookie: str) -> list[Middleware]:
    """Return the middleware that refuses foreign requests before they reach the app.

    - On loopback, the ``Host`` header must be a name of loopback: a foreign page whose own name resolves to this
      machine (DNS rebinding) is refused. Beyond loopback, such a page lacks the cookie of this host.
    - With a token, a browser must send it once in the address (``?token=``), and then has it in a cookie.
    - Requests that change something must come from this page (``Origin``, ``Sec-Fetch-Site``), and as JSON, which
      foreign pages cannot send without permission.

    Args:
        host: the address that the server is bound to.
        token: the token; None: none is required.
        cookie: the name of the cookie, as browsers share cookies between ports.
    """
    bracketed = f"[{host}]" if ":" in host else host
    names = ["localhost", "127.0.0.1", "::1", "[::1]", host, bracketed] if is_loopback(host) else ["*"]
    return [
        Middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False),
        Middleware(_Guard, token=token, cookie=cookie),
    ]


class _Guard:
    def __init__(self, app: ASGIApp, *, token: str | None, cookie: str) -> None:
        self._app = app
        self._token = token
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        request = Request(scope)
        answer = self._admit(request) or _refuse_foreign(request) or self._app
        await answer(scope, receive, send_guarded)

    def _admit(self, request: Request) -> Response | None:
        """Return the response to a request without the token, or to one that sends it first; else None."""
        if self._token is None:
            return None
        given = request.query_params.get("token")
        if given is not None and self._knows(given) and request.url.path == "/":
            answer = RedirectResponse("/", 303)
            # Not strict: the address may have been opened from a message or a notebook.
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="lax")
            return answer
        if self._knows(request.cookies.get(self._cookie, "") if given is None else given):
            return None
        return PlainTextResponse(
            "This page needs its token: open the address that foreload serve printed, including ?token=.\n",
            401,
        )

    def _knows(self, given: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(given.encode(), self._token.encode())


def _refuse_foreign(request: Request) -> Response | None:
    headers = request.headers
    if request.method in ("GET", "HEAD") or (
        ("origin" not in headers or urlsplit(headers["origin"]).netloc == headers.get("host"))
        and headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
        and headers.get("content-type", "").partition(";")[0].strip() == "application/json"
    ):
        return None
    return PlainTextResponse("Only this page itself may send this request, as JSON.\n", 403)
