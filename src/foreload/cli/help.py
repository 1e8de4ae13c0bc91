"""The commands' ``--help``: options that take no value are shown without one."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

__all__ = ["Command", "Group"]


class Command(TyperCommand):
    """A command whose flags are shown as they are typed; typer writes ``<bool>`` after them, like a value."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the arguments and options, ``--help`` among them."""
        return _as_typed(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands whose own flags are shown as they are typed."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options, ``--help`` among them."""
        return _as_typed(super().get_params(ctx))


def _as_typed(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters
