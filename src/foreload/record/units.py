"""Numbers, times and sizes as readable text."""

from __future__ import annotations

__all__ = ["number", "percent", "quantity", "seconds", "size", "workers"]


def percent(share: float) -> str:
    """Format a share as a percentage.

    >>> percent(0.123), percent(0.004), percent(0.0), percent(0.998)
    ('12%', 'under 1%', '0%', '99.8%')
    """
    if 0 < share < 0.01:
        return "under 1%"
    if 0.99 < share < 1:
        return f"{int(share * 1000) / 10}%"
    return f"{100 * share:.0f}%"


def seconds(value: float) -> str:
    """Format a time with a fitting unit.

    >>> seconds(75), seconds(1.5), seconds(0.0123), seconds(4.2e-6), seconds(0)
    ('75 s', '1.5 s', '12 ms', '4.2 us', '0 s')
    """
    if value <= 0:
        return "0 s"
    units = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
    unit, scale = next((each for each in units if value >= each[1]), units[-1])
    return f"{number(value / scale)} {unit}"


def number(value: float) -> str:
    """Format a number with two or three significant digits.

    >>> number(12345.6), number(12.3), number(1.26), number(4)
    ('12,346', '12', '1.3', '4')
    """
    if value >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}".removesuffix(".0") if value >= 0.095 else f"{value:.2g}"


def quantity(value: float, one: str, many: str) -> str:
    """Format a number with a noun in the singular or plural.

    >>> quantity(1, "core", "cores"), quantity(3, "core", "cores")
    ('1 core', '3 cores')
    """
    return f"{number(value)} {one if value == 1 else many}"


def workers(count: int, kind: str) -> str:
    """Format a number of workers.

    >>> workers(2, "threads"), workers(1, "processes"), workers(0, "threads")
    ('2 threads', '1 process', 'none')
    """
    one, many = {
        "threads": ("thread", "threads"),
        "processes": ("process", "processes"),
        "ray": ("Ray worker", "Ray workers"),
    }[kind]
    return quantity(count, one, many) if count else "none"


def size(value: float) -> str:
    """Format a number of bytes.

    >>> size(3 << 20), size(1 << 30), size(100)
    ('3 MiB', '1 GiB', '100 B')
    """
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= scale:
            return f"{number(value / scale)} {unit}"
    return f"{value:.0f} B"
