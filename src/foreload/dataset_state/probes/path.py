"""Paths from a dataset to what it refers to, which are the same in each of its copies."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Path", "Step", "ValuePath"]

# Names, each with a number, since several may be alike.
Path = tuple[tuple[str, int], ...]


class ValuePath(NamedTuple):
    """A place in what a probe is of.

    Attributes:
        path: to that.
        probe: the kind of the probe; there may be several.
        name, number: of what is there, as the probe has it.
    """

    path: Path
    probe: str
    name: str
    number: int


class Step(NamedTuple):
    """The last step of a path, which is written out only where it is needed: a chain of objects has long ones.

    Attributes:
        before: the step before, or the path before.
        last: the name and the number of this one.
        length: the number of all steps.

    >>> Step(Step((("dataset", 0),), ("parts", 2), 2), ("size", 1), 3).path()
    (('dataset', 0), ('parts', 2), ('size', 1))
    """

    before: Step | Path
    last: tuple[str, int]
    length: int

    def path(self) -> Path:
        """Return the whole path."""
        steps, before = [self.last], self.before
        while isinstance(before, Step):
            steps.append(before.last)
            before = before.before
        return (*before, *reversed(steps))
