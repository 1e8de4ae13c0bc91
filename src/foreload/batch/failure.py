"""Samples that could not be loaded, batches that go on without them, and exceptions on their way to the loop."""

from __future__ import annotations

import pickle
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, get_args

from foreload.errors import DecodeError
from foreload.options import OnError

__all__ = [
    "LOST",
    "EmptyBatch",
    "EpochErrors",
    "OnError",
    "PickledError",
    "SampleError",
    "note_source",
    "pickle_error",
    "remaining_positions",
    "repair",
    "replacement_positions",
    "stop_error",
    "unpickle_error",
]

# The pickled exception, or what it is made of, or None; a summary; its traceback as text.
PickledError = tuple[bytes | None, str, str]


def check_on_error(on_error: Any) -> OnError:
    """Return ``on_error``; raise ValueError if it is none of the three."""
    if on_error not in get_args(OnError):
        raise ValueError(f"on_error must be one of {', '.join(get_args(OnError))}, got {on_error!r}")
    policy: OnError = on_error
    return policy


# The attribute of an exception that names the file of its sample.
_SOURCE = "_foreload_source"

# Takes the place of a missing sample.
LOST = object()


class EmptyBatch(Exception):
    """Raised if no sample of a batch could be loaded; the loop then gets the next batch."""


@dataclass(frozen=True)
class SampleError:
    """A sample that failed, in ``DataLoader.errors``.

    Attributes:
        index: of the sample; the list of them if a batch could not be collated; None in a stream.
        source: the file, if the exception names one.
        error: the exception and its message, as in ``"ValueError: no such label"``.
        traceback: where it was raised.
        action: what was done about it: ``"skip"`` or ``"replace"``.
    """

    index: Any
    source: str | None
    error: str
    traceback: str
    action: OnError

    @classmethod
    def of(cls, index: Any, error: BaseException, action: OnError, source: str | None = None) -> SampleError:
        """Return the record of an exception."""
        return cls(
            index.item() if hasattr(index, "item") and getattr(index, "ndim", 1) == 0 else index,
            source or getattr(error, _SOURCE, None) or getattr(error, "filename", None),
            "".join(traceback.format_exception_only(error)).partition("\nforeload:")[0].strip(),
            "".join(traceback.format_exception(error)),
            action,
        )

    def __str__(self) -> str:
        """Return one line with the index, the file and the error."""
        return f"sample {self.index!r}{f' ({self.source})' if self.source else ''}: {self.error}"


def note_source(error: BaseException, source: str) -> None:
    """Let an error tell the file of its sample, whatever file it is about itself."""
    with suppress(AttributeError):  # a class of the user's may allow no attributes
        setattr(error, _SOURCE, source)


def stop_error(error: StopIteration) -> RuntimeError:
    """Return the error to raise if loading a batch raised StopIteration, which would end the loop silently.

    >>> error = StopIteration()
    >>> error.add_note("foreload: while loading sample 7 (position 1 of its batch)")
    >>> stop_error(error)
    RuntimeError('StopIteration was raised while loading sample 7 (position 1 of its batch), ...')
    """
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith("foreload: ")]
    where = notes[0].removeprefix("foreload: ") if notes else "while loading a batch"
    return RuntimeError(
        f"StopIteration was raised {where}, by next() of an exhausted iterator perhaps. That is not taken for the "
        "end of the epoch, which only a sampler or an iterable dataset may end"
    )


class EpochErrors(list[SampleError]):
    """The samples that failed in one epoch.

    Args:
        everything: where those of all epochs are recorded, too.

    >>> everything = []
    >>> errors = EpochErrors(everything)
    >>> errors.append(SampleError.of(7, ValueError("what?"), "skip"))
    >>> with errors.unrecorded():
    ...     errors.append(SampleError.of(8, ValueError("what?"), "skip"))
    >>> [str(error) for error in errors], everything == errors
    (['sample 7: ValueError: what?'], True)
    """

    def __init__(self, everything: list[SampleError] | None = None) -> None:
        super().__init__()
        self._everything = everything
        self._unrecorded: set[int] = set()  # threads: each may bring a copy of the dataset where it was

    def __reduce__(self) -> Any:
        """Copy what is in it: the copy records nothing elsewhere."""
        return EpochErrors, (), None, iter(self)

    def append(self, error: SampleError) -> None:
        """Record a sample that failed."""
        if threading.get_ident() in self._unrecorded:
            return
        super().append(error)
        if self._everything is not None:
            self._everything.append(error)

    def forget(self, most: int) -> None:
        """Keep the first ``most`` alone: the samples of the others are loaded again."""
        again = {id(error) for error in self[most:]}
        if self._everything is not None:
            self._everything[:] = [error for error in self._everything if id(error) not in again]
        del self[most:]

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Record nothing of this thread: all that it loads meanwhile was loaded, and recorded, before."""
        self._unrecorded.add(threading.get_ident())
        try:
            yield
        finally:
            self._unrecorded.discard(threading.get_ident())


class FailureLimit:
    """The limit on samples that fail in one epoch.

    Args:
        errors: the samples that failed so far in this epoch.
        most: the most that may fail.
        skips: whether they are left out of their batches.

    Attributes:
        skips: as given.

    >>> errors = EpochErrors()
    >>> limit = FailureLimit(errors, most=0)
    >>> errors.append(SampleError.of(7, ValueError("what?"), "skip"))
    >>> limit.check()
    Traceback (most recent call last):
    RuntimeError: 1 samples failed in this epoch, more than max_errors = 0; ...
    """

    def __init__(self, errors: list[SampleError], most: int, *, skips: bool = False) -> None:
        self.skips = skips
        self._errors = errors
        self._most = most

    @property
    def count(self) -> int:
        """The number of samples that failed so far."""
        return len(self._errors)

    def check(self) -> None:
        """Raise RuntimeError if too many samples of this epoch failed."""
        if len(self._errors) > self._most:
            last = self._errors[-1]
            raise RuntimeError(
                f"{self._most + 1} samples failed in this epoch, more than max_errors = {self._most}; "
                f"the last was {last}\n{last.traceback}"
            )


def replacement_positions(lost: Sequence[bool], on_error: OnError) -> list[int]:
    """Return the positions of the samples that make up a batch, some of which are missing.

    ``"replace"`` puts the next sample in a missing one's place; the first follows the last.

    >>> replacement_positions([False, True, True, False], "skip")
    [0, 3]
    >>> replacement_positions([False, True, False, True], "replace")
    [0, 2, 2, 0]
    """
    there = [position for position, is_lost in enumerate(lost) if not is_lost]
    if on_error == "skip" or not there:
        return there
    next_one = there[0]
    chosen = []
    for position in reversed(range(len(lost))):
        next_one = next_one if lost[position] else position
        chosen.append(next_one)
    return chosen[::-1]


def repair(samples: Sequence[Any], on_error: OnError) -> list[Any]:
    """Return the samples of a batch without those that are ``LOST``, or with others in their places."""
    return [
        samples[position] for position in replacement_positions([sample is LOST for sample in samples], on_error)
    ]


def remaining_positions(
    failures: Sequence[tuple[int, BaseException]],
    indices: Any,
    on_error: OnError,
    errors: list[SampleError],
    source_of: Callable[[int], str],
) -> list[int]:
    """Return the positions that make up a batch of the native core, some samples of which failed.

    Args:
        failures: positions in the batch, and their exceptions.
        indices: of the batch's samples.
        on_error: what to do about failures.
        errors: the failures are appended to it.
        source_of: returns the file of a sample.

    Raises:
        EmptyBatch: all failed.
        Exception: the first failure, naming the sample, if ``on_error`` is ``"raise"``.
    """
    for position, error in failures:
        index = int(indices[position])
        named = _with_index(error, index, position)
        if on_error == "raise":
            raise named
        errors.append(SampleError.of(index, named, on_error, source_of(index)))
    lost = {position for position, _ in failures}
    chosen = replacement_positions([position in lost for position in range(len(indices))], on_error)
    if not chosen:
        raise EmptyBatch
    return chosen


def _with_index(error: BaseException, index: int, position: int) -> BaseException:
    """Return an error that names the sample: in its message if the error is foreload's, else in a note."""
    place = f"sample {index} (position {position} of its batch)"
    if isinstance(error, DecodeError):
        named = DecodeError(f"{place}: {error}")
        named.__cause__ = error.__cause__
        return named
    if isinstance(error, OSError) and error.filename is not None:
        return OSError(error.errno, f"{error.strerror}, loading {place}", error.filename)
    error.add_note(f"foreload: while loading {place}")
    return error


def pickle_error(error: Exception, worker: int, dumps: Callable[[Any], bytes] = pickle.dumps) -> PickledError:
    """Return an exception that worker ``worker`` caught, to be sent to the loop."""
    text = "".join(traceback.format_exception(error))
    summary = f"Caught {type(error).__name__} in DataLoader worker process {worker}."
    # Its constructor may not take its arguments, and its attributes may be of this process alone.
    contents: tuple[Callable[[], Any], ...] = (
        (lambda: error),
        (lambda: (type(error), error.args, vars(error))),
        (lambda: (type(error), (str(error),), {})),
    )
    for content in contents:
        try:
            pickled = dumps(content())
            _unpickled(pickled)
        except Exception:  # a class may raise anything when it is pickled
            continue
        return pickled, summary, text
    return None, summary, text


def unpickle_error(error: PickledError) -> BaseException:
    """Return the exception that a worker caught, with the worker's traceback as a note."""
    pickled, summary, text = error
    try:
        if pickled is None:
            raise RuntimeError
        caught = _unpickled(pickled)
    except Exception:  # as above
        return RuntimeError(f"{summary}\nOriginal {text}")
    caught.add_note(f"{summary}\nOriginal {text}")
    return caught


def _unpickled(pickled: bytes) -> BaseException:
    content: Any = pickle.loads(pickled)
    if isinstance(content, tuple):
        kind, arguments, attributes = content
        content = kind.__new__(kind, *arguments)
        vars(content).update(attributes)
    caught: BaseException = content
    return caught
