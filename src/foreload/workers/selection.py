"""Selection of the workers of a loader: those that are sure to load the right samples, and the fastest of them.

Threads share the dataset, so they are used only if none of its code is the user's, or if the user says that they
may share it. Anything else is loaded as torch loads it: by processes with a copy each for ``num_workers > 0``. If
the number is left to the loader, processes or the calling thread load, whichever is faster, unless loading changes
the dataset: then copies would go different ways, and the calling thread loads.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import MethodType
from typing import Any

from torch.utils.data import Sampler, default_convert

from foreload.batch.buffers import Buffers
from foreload.batch.collate import is_default_collate
from foreload.batch.columns import ColumnAssembly
from foreload.batch.spec import BatchSpec
from foreload.cache.view import holds_values
from foreload.cache.wrappers import has_remote_samples
from foreload.checks import known_length
from foreload.dataset_state.digest import made_of
from foreload.datasets.native import native_assembly
from foreload.errors import warn_user
from foreload.forks.garbage import uncollected
from foreload.machine import granted_cores
from foreload.options import WorkerKind
from foreload.protocol import Assembly
from foreload.tune.choice import Choice
from foreload.workers.spec import CrewSpec
from foreload.workers.start.method import start_method, why_not_started
from foreload.workers.thread_safety import find_user_code, is_declared

__all__ = ["TrialLoading", "is_outdated", "is_selected", "select_workers", "sent_parts", "watched_parts"]

# An epoch must take this long in one thread for processes to be worth starting by other methods than a fork.
_MIN_SPAWNED_SECONDS = 20.0

# The samples of a batch that a sampler of batches makes, whose size nobody knows.
_UNKNOWN_BATCH = 16


@dataclass(frozen=True)
class TrialLoading:
    """Loading that can be measured.

    Attributes:
        begin: begins to load with the kind and number of workers and the sampler given, a batch sampler or not.
        meanwhile: called while a fork measures it.
    """

    begin: Callable[[WorkerKind, int, Sampler[Any], bool], Any]
    meanwhile: Callable[[], None]


class _Parts:
    """The objects that load samples, compared by identity: the user's ``==`` and ``hash()`` may do anything.

    They are not kept alive.
    """

    def __init__(self, parts: list[Any]) -> None:
        self._ids = tuple(map(id, parts))
        self._alive = [weakref.ref(part, self._forget) for part in parts]

    @classmethod
    def of(cls, *parts: Any) -> _Parts | None:
        """Return the parts; None if one of them cannot be referred to weakly."""
        held = [inner for part in parts for inner in _held(part)]
        try:
            return cls(held)
        except TypeError:
            return None

    # (When the interpreter ends, the module's variables may be gone before the parts are.)
    def _forget(self, _: Any) -> None:
        for known in [known for known in list(_chosen or ()) if known[0] is self]:
            del _chosen[known]

    def __hash__(self) -> int:
        return hash(self._ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Parts) and self._ids == other._ids


def _held(part: Any) -> list[Any]:
    if part is None:
        return [type(None)]
    return [part.__self__, part.__func__] if isinstance(part, MethodType) else [part]


# What was chosen, by what loads samples and the settings that it depends on.
_chosen: dict[tuple[_Parts | None, Any], Choice] = {}


def select_workers(spec: CrewSpec, trial: TrialLoading, *, may_measure: bool = True) -> Choice:
    """Select the kind and number of workers as far as they are left to the loader.

    Args:
        spec: the loader's needs.
        trial: loading with trial workers.
        may_measure: whether loading can be measured now; if it would have to be, the calling thread loads.
    """
    if spec.workers == "threads":
        return _remote(spec)
    assembly = _native_assembly(spec)
    is_native = assembly is not None
    user_code = find_user_code(spec.dataset, spec.batches, is_native=is_native)
    if spec.count == 0 and not spec.is_auto:
        return Choice("threads", 0, "as requested")
    if spec.is_stream and spec.is_auto:  # several workers might each read all of it
        return _for_stream(spec, user_code)
    if spec.init is not None or (not spec.is_auto and user_code is not None):
        return _processes(spec, "each worker has a copy of the dataset, as in torch")
    if spec.is_stream:
        return _for_stream(spec, user_code)
    if user_code is None and has_remote_samples(spec.dataset):
        return _remote(spec)
    if user_code is None and spec.is_auto and _is_in_memory(spec, assembly):
        return Choice("threads", 0, "the samples are in memory already, where the loop may change them")
    if user_code is None and (is_native or not spec.is_auto):
        return Choice("threads", spec.count, _native_why(spec) if is_native else "threads may share the dataset")
    if known_length(spec.dataset) is None:
        return Choice("threads", 0, "the dataset has no length, so loading cannot be measured")
    choice = _measured(spec, trial if may_measure else None, user_code)
    return replace(choice, is_open=True)


def is_selected(spec: CrewSpec) -> bool:
    """Whether the kind of workers is left to the loader, or the number of threads that wait for a server."""
    return spec.workers == "auto" or (
        spec.workers == "threads" and spec.is_auto and has_remote_samples(spec.dataset)
    )


def _remote(spec: CrewSpec) -> Choice:
    from foreload.tune.choose import remote_threads

    count = remote_threads(spec.batches.batch_size) if spec.is_auto else spec.count
    return Choice("threads", count, "samples come from a server, and waiting takes no core")


def is_outdated(spec: CrewSpec, choice: Choice) -> bool:
    """Whether the reasons for a choice have gone: the dataset has got other code since, or holds a file open."""
    if spec.workers != "auto" or spec.persistent or holds_values(spec.dataset):
        return False
    if choice.made_of:
        return made_of(*watched_parts(spec.dataset, spec.batches)) != choice.made_of
    if choice.kind != "threads" or choice.count == 0:
        return False
    is_native = _native_assembly(spec) is not None
    return find_user_code(spec.dataset, spec.batches, is_native=is_native) is not None


def _native_assembly(spec: CrewSpec) -> Assembly | None:
    return None if spec.is_stream else native_assembly(spec.batches, spec.dataset, (0, 0), Buffers())


def _is_in_memory(spec: CrewSpec, assembly: Assembly | None) -> bool:
    """Whether samples are values in memory, of which the next batch has what the loop writes to them."""
    from foreload.datasets.tensors import TensorAssembly

    if isinstance(assembly, ColumnAssembly):
        return assembly.in_memory
    return isinstance(assembly, TensorAssembly) or (spec.batches.transform is None and holds_values(spec.dataset))


def _native_why(spec: CrewSpec) -> str:
    why = "native code needs no processes"
    return f"{why}, one per core before any tuning" if spec.is_auto else why


def _processes(spec: CrewSpec, why: str) -> Choice:
    if not spec.is_auto:
        return Choice("processes", spec.count, why)  # torch's errors, if they cannot be started
    trouble = why_not_started(spec.context, sent_parts(spec))
    if trouble is not None:
        why = f"the calling thread loads, without worker_init_fn, because {trouble}"
        warn_user(f"{why}; num_workers=0 says that this is meant")
        return Choice("threads", 0, why)
    return Choice("processes", granted_cores(), f"{why}; one per core")


def sent_parts(spec: CrewSpec) -> tuple[Any, ...]:
    """Return the user's objects that worker processes are sent."""
    return spec.dataset, spec.batches.collate_fn, spec.batches.transform, spec.init


def _for_stream(spec: CrewSpec, user_code: str | None) -> Choice:
    if user_code is None:
        return Choice("threads", spec.count, "one stream, read ahead" if spec.is_auto else "as requested")
    how = (
        "processes read it ahead" if spec.init is None else "processes read it ahead, and worker_init_fn is called"
    )
    why = f"{user_code} yields the samples; with num_workers=1 or more, {how}"
    return Choice("threads", 0, why)


def _measured(spec: CrewSpec, trial: TrialLoading | None, user_code: str | None) -> Choice:
    """Return the fastest workers of those that load the same samples; measured once for a dataset and settings.

    Without a trial, and not known yet, they are the calling thread.
    """
    with uncollected():
        from foreload.tune.choose import choose_workers
        from foreload.tune.workload import Workload

    trouble = why_not_started(spec.context, sent_parts(spec))
    # Threads would load ahead from values that the loop may change; what processes have copies of is watched.
    may_share = user_code is None and not holds_values(spec.dataset)
    kinds: tuple[WorkerKind, ...] = ("threads",) if may_share else ()
    kinds = kinds if trouble is not None else (*kinds, "processes")
    size = (spec.batches.batch_size or _UNKNOWN_BATCH) if spec.batches.auto_collation else None
    key = (size, kinds, start_method(spec.context), spec.prefetch_factor, spec.memory.limit)
    parts = _Parts.of(spec.dataset, spec.batches.collate_fn, spec.batches.transform)
    is_watched = user_code is not None or is_declared(spec.dataset)
    watched = watched_parts(spec.dataset, spec.batches) if is_watched else ()
    present = made_of(*watched)
    known = _chosen.get((parts, key))
    if known is not None and (not known.made_of or known.made_of == present):
        return replace(known, seconds=0.0)
    if known is not None and known.count == 0:  # which is right for any code
        return replace(known, seconds=0.0, is_pure=False, made_of={})
    if trial is None:
        why = "its cache holds samples already, so loading cannot be measured; make another loader for that"
        return Choice("threads", 0, why)
    own = (
        _own_collate(spec.batches)
        if spec.batches.auto_collation
        else partial(_collate_one, spec.batches.collate_fn)
    )
    amounts = size, spec.prefetch_factor, spec.memory.limit
    work = Workload(spec.view, *amounts, trial.begin, kinds, watched, own, meanwhile=trial.meanwhile)
    choice = choose_workers(work)
    if choice.is_pure:
        choice = replace(choice, made_of=present)
    if choice.kind == "processes" and choice.count and start_method(spec.context) != "fork":
        choice = _unless_too_short(spec, choice)
    if trouble is not None:
        choice = replace(choice, why="; ".join(filter(None, [choice.why, f"no processes: {trouble}"])))
    if user_code is not None and len(choice.rates) > 1:  # an epoch is not so short that it does not matter
        choice = replace(choice, why=f"{choice.why}; {_threads_advice(user_code, choice)}")
    if parts is not None:
        _chosen[parts, key] = choice
    return choice


def _own_collate(batches: BatchSpec) -> Any:
    collate = batches.collate_fn
    is_torchs = is_default_collate(collate) if batches.auto_collation else collate is default_convert
    return None if is_torchs else collate


def _collate_one(collate: Callable[[Any], Any], samples: list[Any]) -> Any:
    return collate(samples[0])


def watched_parts(dataset: Any, batches: BatchSpec) -> tuple[Any, ...]:
    """Return a dataset and the user's code that is applied to its samples."""
    return dataset, *(part for part in (batches.transform, _own_collate(batches)) if part is not None)


def _unless_too_short(spec: CrewSpec, choice: Choice) -> Choice:
    seconds = len(spec.view) / choice.rates["none"]
    if seconds >= _MIN_SPAWNED_SECONDS:
        return choice
    why = f"an epoch takes {seconds:.2g} s in one thread, too short to start processes by other means than a fork"
    return replace(choice, kind="threads", count=0, why=why)


def _threads_advice(user_code: str, choice: Choice) -> str:
    most = max((rate for name, rate in choice.rates.items() if name.endswith("threads")), default=None)
    present = choice.rates.get(f"{choice.count} {choice.kind}" if choice.count else "none")
    gain = f" (they would load {most / present:.2g} times as much)" if most and present else ""
    return (
        f"threads are not used{gain}, because {user_code} may not allow for them: foreload.check_threads(dataset) "
        "tries it, and thread_safe = True on the dataset allows it"
    )
