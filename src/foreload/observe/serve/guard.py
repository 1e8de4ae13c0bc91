"""Who is answered: browsers that opened this page by its own address, and know its token where there is one."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Guard", "is_loopback"]

_HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",  # the token may be in the address
    "cache-control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach the host.

    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "10.0.0.7")]
    [True, True, True, False, False]
    """
    if host == "localhost":
        return True
    address = _address(host)
    return address is not None and address.is_loopback


class Guard:
    """Refuses strangers before the app sees them.

    - The ``Host`` header must be one that this server goes by: a page of somebody else that makes its own name
      point here (DNS rebinding) is refused.
    - With a token, a browser must bring it once in the address (``?token=``) and then has it in a cookie.
    - What changes something must come from this page (``Origin``, ``Sec-Fetch-Site``), and as JSON, which pages of
      others cannot send without asking first.

    Args:
        app: what answers those who are let in.
        host: what the server is bound to.
        token: None: none is asked for.
        cookie: the name of the cookie; cookies are not told apart by port.
    """

    def __init__(self, app: ASGIApp, *, host: str, token: str | None, cookie: str) -> None:
        self._app = app
        self._local = is_loopback(host)
        self._names = {host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
        self._token = token
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        answer = self._judge(Request(scope)) or self._app
        await answer(scope, receive, send_guarded)

    def _judge(self, request: Request) -> Response | None:
        """Give what to answer instead of the app; None where it may."""
        host = request.headers.get("host", "")
        if not self._goes_by(host):
            return PlainTextResponse(
                f"This is not {host or 'a server without a name'}. Open the address that foreload serve printed.\n", 403
            )
        if self._token is not None:
            given = request.query_params.get("token")
            if given is not None and request.url.path == "/" and self._knows(given):
                answer = RedirectResponse("/", 303)
                # Not strict: the address may have been opened from a message or a notebook.
                answer.set_cookie(self._cookie, self._token, httponly=True, samesite="lax")
                return answer
            if not self._knows(given or request.cookies.get(self._cookie, "")):
                return PlainTextResponse(
                    "This page needs its token. Open the whole address that foreload serve printed, "
                    "with ?token= at its end.\n",
                    401,
                )
        if request.method not in ("GET", "HEAD") and not _from_own_page(request, host):
            return PlainTextResponse("Only this page itself may do that, with JSON.\n", 403)
        return None

    def _goes_by(self, host: str) -> bool:
        name = (urlsplit(f"//{host}").hostname or "") if host else ""
        if self._local:
            return is_loopback(name)
        # Addresses in numbers have no name that somebody could point here.
        return name == "localhost" or _address(name) is not None or name in self._names

    def _knows(self, given: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(given.encode(), self._token.encode())


def _from_own_page(request: Request, host: str) -> bool:
    origin = request.headers.get("origin")
    return (
        (origin is None or urlsplit(origin).netloc == host)
        and request.headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
        and request.headers.get("content-type", "").partition(";")[0].strip() == "application/json"
    )


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
