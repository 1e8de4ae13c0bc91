"""Choice of the kind of epoch: by the calling thread, worker threads or processes, or readers of a stream."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from foreload.batch.buffers import Buffers
from foreload.batch.samples import SampleAssembly, Surroundings
from foreload.batch.spec import BatchSpec
from foreload.cache.view import CachedView, holds_values
from foreload.checks import is_instance
from foreload.dataset_state.copied import CopiedState
from foreload.dataset_state.shared import find_thread
from foreload.datasets.native import native_assembly
from foreload.datasets.rows import row_assembly
from foreload.datasets.tensors import TensorAssembly
from foreload.epochs.base import Epoch, EpochSpec
from foreload.epochs.following.foretold import why_sampler_not_copied
from foreload.epochs.inline import GatherEpoch, InlineEpoch
from foreload.epochs.threads import ThreadEpoch, TunedEpoch
from foreload.order.own_state import has_state
from foreload.protocol import Assembly, EpochListener
from foreload.threads import are_over
from foreload.workers.crew import Crew
from foreload.workers.selection import watched_parts
from foreload.workers.spec import CrewSpec
from foreload.workers.surroundings import LoopSurroundings, ProcessSurroundings, ThreadSurroundings
from foreload.workers.worker_info import WorkerIdentity

if TYPE_CHECKING:
    from foreload.workers.pool import WorkerPool

__all__ = ["open_epoch"]


# The most values of a dataset that are looked at before each epoch.
_MOST_PARTS = 2_000


def open_epoch(spec: EpochSpec, crew: Crew, workers: CrewSpec, buffers: Buffers) -> Epoch:
    """Begin an epoch.

    Args:
        spec: the loader as the epoch sees it.
        crew: the loader's workers.
        workers: the workers that the loader needs.
        buffers: the memory of batches that this process makes.

    Raises:
        AssertionError: a timeout was given with ``num_workers=0``; torch raises it, too.
    """
    if spec.timeout is not None and workers.count == 0 and not workers.is_auto:
        raise AssertionError("timeout is for batches that workers make: leave it out with num_workers=0")
    cursor, batches, count = spec.cursor, spec.batches, workers.count
    crew.count = count
    if crew.kind(workers.workers, count) == "processes":
        why = _why_inline(spec, crew)
        held = _held(spec, crew) if why is None else None
        why = why if held is None else held.untold
        if why is None:
            _announce(batches, natively=False)
            return _open_processes(spec, crew, workers, buffers, held)
        crew.stand_down(f"the calling thread loads, because {why}", None)
        count, workers = 0, replace(workers, count=0)
    if crew.kind(workers.workers, count) == "ray":
        return _open_on_ray(spec, crew, workers, buffers)
    if are_over():
        _check_threadless(workers)
        count = 0
    if is_instance(spec.dataset, IterableDataset):
        from foreload.epochs.stream import StreamEpoch

        if count == 0:
            return StreamEpoch(spec, buffers)
        identity = WorkerIdentity(count, cursor.base_seed, spec.dataset, workers.init)
        return StreamEpoch(spec, buffers, crew.copies(workers), identity, crew.recorder.spans)
    # A dataset with a state of its own, which threads would share, is loaded from in the order of its batches.
    assembly = native_assembly(batches, spec.dataset, cursor.key, buffers)
    _announce(batches, natively=assembly is not None)
    # No code of the user's could tell the calling thread from a worker; but only a worker's batch can be late.
    may_be_alone = assembly is not None and workers.workers == "auto" and spec.timeout is None
    is_alone = count == 0 and may_be_alone and crew.is_alone and workers.is_tuned
    is_inline = (count == 0 and not is_alone) or has_state(spec.dataset) or are_over()
    if assembly is None and is_inline:
        assembly = row_assembly(spec.dataset, batches, buffers)
    if assembly is None:
        assembly = _sample_assembly(spec, crew, buffers, 0 if is_inline else count)
    if is_inline:
        return _gather_or_inline(spec, assembly)
    threads, owner = crew.thread_pool(workers, cursor.base_seed)
    depth = crew.tune(workers, assembly, alone=may_be_alone and workers.is_tuned)
    if crew.tuner is None:
        return ThreadEpoch(spec, assembly, threads, depth=depth, owner=owner)
    return TunedEpoch(crew, crew.tuner, spec, assembly, threads, depth=depth, owner=owner)


def _announce(batches: BatchSpec, *, natively: bool) -> None:
    """Tell the cache whether native code makes the batches."""
    if batches.cache is not None:
        batches.cache.serve(natively=natively)


def _check_threadless(workers: CrewSpec) -> None:
    """Check that the calling thread gives what worker threads would, which cannot be started any more.

    Raises:
        RuntimeError: each of them would have its part of an iterable dataset, or be prepared.
    """
    if workers.init is not None or (workers.is_stream and not workers.is_auto and workers.count > 0):
        raise RuntimeError(
            "the interpreter exits, and has ended all threads: no worker threads can be started in a function "
            "that atexit calls after foreload's; import foreload before atexit.register(), or use num_workers=0"
        )


def _sample_assembly(spec: EpochSpec, crew: Crew, buffers: Buffers, count: int) -> SampleAssembly:
    """Return what makes batches sample by sample, in the calling thread if ``count`` is 0."""
    cursor, batches = spec.cursor, spec.batches
    surroundings: Surroundings | None = None
    if count:
        surroundings = ThreadSurroundings(cursor.key)
    elif batches.is_keyed:
        surroundings = ProcessSurroundings(cursor.key, is_pure=batches.is_pure)
    elif isinstance(spec.dataset, EpochListener):
        surroundings = LoopSurroundings(cursor.key)
    return SampleAssembly(
        batches,
        spec.view,
        count,
        buffers,
        arrays=cursor.order.is_array,
        surroundings=surroundings,
        copies=count > 0 and holds_values(spec.dataset),  # workers of torch's load from a copy of such a dataset
    )


def _why_inline(spec: EpochSpec, crew: Crew) -> str | None:
    """Return why processes that were chosen cannot load ahead such that nobody sees it; None if they can."""
    if not crew.is_open:
        return None
    if has_state(spec.dataset):
        return "the dataset has a state of its own, which follows the loop"
    if (name := find_thread(spec.dataset, _MOST_PARTS)) is not None:
        return f"{name!r} of the dataset is a running thread, which forked processes lack"
    order = spec.cursor.order
    why = why_sampler_not_copied(order.sampler) if order.may_follow else None
    return None if why is None else f"what {type(order.item_sampler).__name__} yields cannot be foretold: {why}"


def _held(spec: EpochSpec, crew: Crew) -> CopiedState | None:
    """Return what copies of the dataset are compared with, if nobody may see that they are copies."""
    if crew.held is not None and crew.held.changed() is not None:
        crew.close()  # persistent workers, which have copies of what was there before
    held: CopiedState | None = crew.held
    if held is None and crew.choice is not None and crew.is_open and not spec.draws_at_once:
        held = CopiedState(*watched_parts(spec.dataset, spec.batches), fills=crew.choice.fills)
    return held


def _open_processes(
    spec: EpochSpec, crew: Crew, workers: CrewSpec, buffers: Buffers, held: CopiedState | None
) -> Epoch:
    pool, owner, task = crew.process_pool(workers, spec.cursor.base_seed, held)
    crew.held = held if owner is not None else None
    deepens = workers.is_tuned and workers.deepens and not has_state(spec.dataset)
    return _process_epoch(spec, crew, buffers, pool, held=held, owner=owner, task=task, deepens=deepens)


def _process_epoch(
    spec: EpochSpec, crew: Crew, buffers: Buffers, pool: WorkerPool[Any], *, held: Any = None, **how: Any
) -> Epoch:
    """Begin an epoch by processes: as torch's, or such that nothing shows that the loader has chosen them."""
    if spec.draws_at_once or is_instance(spec.dataset, IterableDataset):
        from foreload.epochs.processes import ProcessEpoch

        return ProcessEpoch(spec, pool, **how)
    from foreload.epochs.following.epoch import FollowingEpoch

    # The loop may have given it other code.
    changed = replace(spec, batches=replace(spec.batches, is_pure=False))
    how["inline"] = lambda: _sample_assembly(changed, crew, buffers, 0)
    bare = spec.view.with_store(None) if isinstance(spec.view, CachedView) else spec.view
    how["alone"] = lambda: _sample_assembly(replace(changed, view=bare), crew, buffers, 0)
    how |= {"comparison": crew.comparison, "stand_down": crew.stand_down, "firsts": crew.firsts}
    return FollowingEpoch(spec, pool, held=held, **how)


def _open_on_ray(spec: EpochSpec, crew: Crew, workers: CrewSpec, buffers: Buffers) -> Epoch:
    from foreload.epochs.ray import RayEpoch

    pool, owner = crew.ray_pool(workers, spec.cursor.base_seed)
    if workers.is_stream or has_state(spec.dataset):
        # Each worker has its own part, or state, and so the batches that are its.
        return _process_epoch(spec, crew, buffers, pool, owner=owner)
    return RayEpoch(spec, crew, pool, owner=owner, grows=workers.is_auto)


def _gather_or_inline(spec: EpochSpec, assembly: Assembly) -> Epoch:
    if isinstance(assembly, TensorAssembly) and spec.batches.pin_device is None:
        return GatherEpoch(spec, assembly)
    return InlineEpoch(spec, assembly)
