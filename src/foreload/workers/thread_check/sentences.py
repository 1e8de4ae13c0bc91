"""Sentences about what happened when threads loaded samples."""

from __future__ import annotations

from collections.abc import Iterable

from foreload.workers.thread_check.threads import Threads

__all__ = ["describe_threads", "first_error", "name_samples"]

# The number of samples that are named.
_SHOWN = 5


def describe_threads(found: Threads, slowest: float) -> list[str]:
    """Return what happened with threads, in words.

    Args:
        found: by loading with threads.
        slowest: the seconds that a sample takes alone.

    >>> describe_threads(Threads(wrong={3: {"image"}, 7: set()}), 0.1)
    ['Samples 3, 7 differ (in image) when threads load them.']
    """
    said = []
    leaked = " and ".join(sorted(found.leaked))
    fields = sorted({name for names in found.wrong.values() for name in names})
    where = f" (in {', '.join(fields[:_SHOWN])})" if fields else ""
    if found.wrong and not leaked:
        said.append(f"{name_samples(found.wrong, is_first=True)} differ{where} when threads load them.")
    if leaked:
        also = f" So {name_samples(found.wrong)} differ{where} when threads load them." if found.wrong else ""
        said.append(
            f"Samples draw from {leaked} global generator, or seed it, in a way that reaches the training loop's "
            f"own, whose numbers then depend on chance.{also}"
        )
    if found.changed:
        changed = name_samples(found.changed, is_first=True)
        said.append(f"{changed} changed after a thread had loaded them, while others were loaded.")
    by_error: dict[str, dict[int, str]] = {}
    for index, error in sorted(found.errors.items()):
        by_error.setdefault(error.partition(":")[0], {})[index] = error
    said += [
        f"{name_samples(errors, is_first=True)} can be loaded alone, but not by threads: {first_error(errors)}."
        for errors in by_error.values()
    ]
    if found.stuck:
        loading = name_samples(index for index, _ in found.stuck)
        stacks = "".join(f"\nSample {index}:\n{stack}" for index, stack in found.stuck if stack)
        said.append(
            f"Threads that load {loading} did not come back for {found.seconds:.2g} s; alone, a sample takes up "
            f"to {slowest:.2g} s.{stacks}"
        )
    return said


def name_samples(indices: Iterable[int], *, is_first: bool = False) -> str:
    """Return the names of samples; ``is_first`` in a sentence.

    >>> name_samples([3]), name_samples(range(9), is_first=True)
    ('sample 3', 'Samples 0, 1, 2, 3, 4 and 4 more')
    """
    found = sorted(set(indices))
    name = f"{'S' if is_first else 's'}ample{'s' * (len(found) > 1)}"
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"{name} {', '.join(map(str, found[:_SHOWN]))}{more}"


def first_error(errors: dict[int, str]) -> str:
    """Return the exception of the first sample that has one, without a period."""
    return errors[min(errors)].rstrip(".")
