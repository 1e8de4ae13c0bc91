"""Functions that are measured while samples are loaded, and look the same to whoever calls them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from .lanes import Here

_F = TypeVar("_F", bound=Callable[..., Any])

__all__ = ["hide", "time_attributes", "timed", "unseen"]


def hide(error: BaseException) -> None:
    """Take the calling function out of the traceback of what it caught, and is about to raise again."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def unseen(function: _F) -> _F:
    """Let warnings name the lines that they would without it: they pass over what is the import system's."""
    own: Any = function
    own.__code__ = own.__code__.replace(co_filename=f"{__file__} (like importlib._bootstrap)")
    return function


def timed(
    here: Here, stage: str, original: Callable[..., Any], when: Callable[[Any], bool] | None = None
) -> Callable[..., Any]:
    """Give a function that counts what ``original`` takes, where that is part of loading.

    Args:
        here: the present thread.
        stage: what it counts as.
        original: what is measured.
        when: says by the first argument whether there is anything to do; None: there is.
    """

    @unseen
    @functools.wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        lane = here.lane
        if lane is None or lane.within(stage) or (when is not None and not when(args[0])):
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


def time_attributes(
    here: Here, stage: str, owner: Any, names: tuple[str, ...], when: Callable[[Any], bool] | None = None
) -> None:
    """Measure functions of a module or methods of a class, those that it has."""
    for name in names:
        original = getattr(owner, name, None)
        if original is not None:
            setattr(owner, name, timed(here, stage, original, when))
