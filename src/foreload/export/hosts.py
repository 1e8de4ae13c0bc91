"""The names by which a server on this machine may be addressed."""

from __future__ import annotations

import ipaddress

__all__ = ["is_addressed", "is_loopback"]


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the host.

    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "10.0.0.7")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_addressed(server: str, header: str | None) -> bool:
    """Return whether a request that has this ``Host`` header is meant for a server that listens on ``server``.

    On loopback, the header must be a name of loopback: a foreign page whose own name resolves to this machine (DNS
    rebinding) has that name in it. A server beyond loopback does not know all of its names, so any will do.

    >>> [is_addressed("127.0.0.1", name) for name in ("localhost:5000", "[::1]", "evil.example", None)]
    [True, True, False, False]
    >>> is_addressed("0.0.0.0", "trainer-3:9464")
    True
    """
    if not is_loopback(server):
        return True
    name, colon, port = (header or "").rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()):
        name = header or ""
    return is_loopback(name[1:-1] if name.startswith("[") and name.endswith("]") else name.lower())
