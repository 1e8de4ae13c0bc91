"""Wrappers that time functions while samples are loaded, invisible in tracebacks and warnings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from .lanes import Here

_F = TypeVar("_F", bound=Callable[..., Any])

__all__ = ["hide", "time_attributes", "timed", "unseen"]


def hide(error: BaseException) -> None:
    """Remove the calling function from the traceback of an exception that it will raise again."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def unseen(function: _F) -> _F:
    """Make warnings skip this function's frame, as they skip frames of the import system."""
    own: Any = function
    own.__code__ = own.__code__.replace(co_filename=f"{__file__} (like importlib._bootstrap)")
    return function


def timed(
    here: Here, stage: str, original: Callable[..., Any], when: Callable[[Any], bool] | None = None
) -> Callable[..., Any]:
    """Return a function that times ``original`` when it is called as part of loading.

    Args:
        here: state of the present thread.
        stage: the stage that the time counts for.
        original: the function to time.
        when: called with the first argument: whether there is work to do; None: always.
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
    """Time functions of a module or methods of a class, if it has them."""
    for name in names:
        original = getattr(owner, name, None)
        if original is not None:
            setattr(owner, name, timed(here, stage, original, when))
