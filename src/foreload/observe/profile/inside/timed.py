"""Functions that are measured while samples are loaded, and look the same to whoever calls them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .lanes import Here

__all__ = ["hide", "time_attribute", "timed"]


def hide(error: BaseException) -> None:
    """Take the calling function out of the traceback of what it caught, and is about to raise again."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def timed(here: Here, stage: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function that counts what ``original`` takes, where that is part of loading."""

    @functools.wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        lane = here.lane
        if lane is None or lane.within(stage):
            return original(*args, **options)
        lane.begin(stage)
        try:
            return original(*args, **options)
        except BaseException as error:
            hide(error)
            raise
        finally:
            lane.end()

    return call


def time_attribute(here: Here, stage: str, owner: Any, *names: str) -> None:
    """Measure functions of a module or methods of a class, those that it has."""
    for name in names:
        original = getattr(owner, name, None)
        if original is not None:
            setattr(owner, name, timed(here, stage, original))
