"""A record of all that samples are made from, as it was when worker processes got copies of it."""

from __future__ import annotations

from typing import Any

from foreload.dataset_state.digest import digest
from foreload.dataset_state.gathered import Gathered
from foreload.dataset_state.outputs import Outputs
from foreload.dataset_state.probes.fills import Fills, contents_of, may_fill
from foreload.dataset_state.probes.numbers import Numbers
from foreload.dataset_state.probes.path import ValuePath
from foreload.dataset_state.probes.probe import Probe
from foreload.dataset_state.probes.references import References
from foreload.dataset_state.program.state import ProgramState
from foreload.dataset_state.settings import Settings

__all__ = ["CopiedState"]


class CopiedState:
    """The values that samples are made from: a dataset's attributes, and what its containers, tensors and arrays
    hold; the global variables and attributes of classes that its code uses.

    Each batch can be preceded by a probe of them, so large arrays are compared only if they are written to, or
    in part where the system does not tell.

    Args:
        parts: the dataset, and what is applied to its samples.
        fills: what loading is known to make where nothing was, whichever sample is the first.

    Attributes:
        untold: a sentence that says why not all of them can be looked at; None if they can.
        differs: a sentence that says what the parts use that is not what it was in the process that they were sent
            from; None if all is.
        makes: whether what was loaded last has made something where nothing was.

    >>> class Scaled:
    ...     factor, weights = 1, [1, 2]
    >>> dataset = Scaled(); dataset.weights = [1, 2]
    >>> held = CopiedState(dataset)
    >>> held.changed(), dataset.weights.append(3), held.changed()
    (None, None, 'weights')
    """

    def __init__(self, *parts: Any, fills: Fills | None = None) -> None:
        self._parts = parts
        self.fills: Fills = fills or {}
        self.differs: str | None = None
        self.makes = False
        self._program: ProgramState | None = None  # is the same for all that are sent at once
        self._by_loading: str | None = None
        self._is_first = True
        self._lackable: tuple[int, list[tuple[Probe, ValuePath]]] | None = None
        self._gathered = Gathered()
        self._gathered.follow((((type(part).__name__, place),), part) for place, part in enumerate(parts))
        self._probes = self._gathered.probes
        self._references: References | None = References(self._probes)  # before copies of this are made
        self._settings = Settings(environment=self._gathered.environment)
        self._outputs = Outputs()

    def __reduce__(self) -> Any:
        """Let a process that gets copies of the parts look at these."""
        self._program = self._program or ProgramState(*self._parts)
        return _in_other_process, (self._parts, self.fills, self._program)

    def sent(self) -> None:
        """Follow tensors that sending them has moved to memory that processes share.

        All else is compared with what it was before: another thread may have set it since.
        """
        self._program = self._references = None
        for probe in self._probes:
            if isinstance(probe, Numbers):
                probe.sent()

    def begin(self) -> None:
        """Begin to look in a process that has been forked since this was made."""
        for probe in self._probes:
            if isinstance(probe, Numbers):
                probe.begin()

    def has_held_lock(self) -> bool:
        """Whether a lock is held by a thread that has not come with a fork to this process."""
        return not all(map(_is_free, self._gathered.locks))

    @property
    def untold(self) -> str | None:
        return self._gathered.untold

    def changed(self) -> str | None:
        """Return the name of what has been changed since; None if nothing has."""
        return self._changed() or self._settings.changed() or self._outputs.redirected()

    def _changed(self) -> str | None:
        if self._are_same():
            return None
        return next((name for probe in self._probes if (name := probe.changed()) is not None), None)

    def _are_same(self) -> bool:
        """Whether all is the very same; if not, it may be equal."""
        self._references = self._references or References(self._probes)
        return self._references.hold()

    def made(self) -> Fills:
        """Return hashes of what has been made since where nothing was."""
        made = (self._made(number) for number, probe in enumerate(self._probes) if probe.changed() is not None)
        return contents_of(pair for each in made for pair in each or ())

    def _made(self, number: int) -> list[tuple[ValuePath, Any]] | None:
        probe = self._probes[number]
        made = probe.made()
        if made is None:
            return None
        path = self._gathered.path(number)
        return [(ValuePath(path, type(probe).__name__, *place), value) for place, value in made]

    def changed_by_loading(self) -> str | None:
        """Return the name of what loading has changed, once and for ever; None if nothing.

        What was nothing, and is something now, was made when it was first needed. That each copy may do if it is
        a file that it opens, or if it is the same whichever sample is the first.
        """
        is_first, self._is_first = self._is_first, False
        if is_first:  # what libraries set when they are first used, each process sets for itself
            self._by_loading = self._settings.changed_by_code()
            self._settings = Settings(environment=self._gathered.environment)
        if self._by_loading is None:
            self._by_loading = self.settled() or self._apart() or self.untold
        return self._by_loading

    def settled(self) -> str | None:
        """Go on from what was made where nothing was, and may be; return the name of what else has changed."""
        probes = () if self._are_same() else self._probes
        changed = [number for number, probe in enumerate(probes) if probe.changed() is not None]
        self.makes = bool(changed)
        made = [self._made(number) for number in changed]
        if not all(each is not None and self._may_be_made(each) for each in made):
            return self._changed()
        if not changed:
            return None
        self._references = None
        for number in changed:
            self._probes[number].renew()
        found = (pair for each in made for pair in each or ())
        self._gathered.follow(((*place.path, (place.name, place.number)), value) for place, value in found)
        return None

    def lacks(self) -> bool:
        """Whether there is nothing yet in some place where loading makes something."""
        if self._lackable is None or self._lackable[0] != len(self._probes):
            self._lackable = len(self._probes), self._gathered.probes_at(self.fills)
        return any(probe.lacks((place.name, place.number)) for probe, place in self._lackable[1])

    def _may_be_made(self, made: list[tuple[ValuePath, Any]]) -> bool:
        return all(may_fill(place, value, self.fills) for place, value in made)

    def _apart(self) -> str | None:
        """Return the name of a generator that has been drawn from, of a setting, or of what has been written."""
        drawn = (name for name, value, before in self._gathered.generators if digest(value) != before)
        written = self._outputs.changed() or self._outputs.redirected()
        return next(drawn, None) or self._settings.changed() or written


def _in_other_process(parts: tuple[Any, ...], fills: Fills, program: ProgramState) -> CopiedState:
    held = CopiedState(*parts, fills=fills)
    held.differs = program.differs()
    return held


def _is_free(lock: Any) -> bool:
    if not lock.acquire(blocking=False):
        return False
    lock.release()
    return True
