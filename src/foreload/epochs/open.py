"""Choice of the kind of epoch: by the calling thread, worker threads or processes, or readers of a stream."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset

from foreload.batch.buffers import Buffers
from foreload.batch.samples import SampleAssembly, Surroundings
from foreload.cache.view import holds_values
from foreload.checks import is_instance
from foreload.datasets.native import native_assembly
from foreload.datasets.rows import row_assembly
from foreload.datasets.tensors import TensorAssembly
from foreload.epochs.base import Epoch, EpochSpec
from foreload.epochs.inline import GatherEpoch, InlineEpoch
from foreload.epochs.threads import ThreadEpoch, TunedEpoch
from foreload.order.resume import has_state
from foreload.protocol import EpochListener
from foreload.record.restart import Restart
from foreload.workers.crew import Crew
from foreload.workers.spec import CrewSpec
from foreload.workers.surroundings import LoopSurroundings, ProcessSurroundings, ThreadSurroundings
from foreload.workers.worker_info import WorkerIdentity

__all__ = ["open_epoch"]

# From this size on, copying a batch of rows ahead of its use pays for handing it over.
_MIN_THREAD_BYTES = 1 << 20


def open_epoch(
    spec: EpochSpec,
    crew: Crew,
    workers: CrewSpec,
    buffers: Buffers,
    *,
    restarts: list[Restart],
    max_restarts: int,
) -> Epoch:
    """Begin an epoch.

    Args:
        spec: the loader as the epoch sees it.
        crew: the loader's workers.
        workers: the workers that the loader needs.
        buffers: the memory of batches that this process makes.
        restarts: the list for worker processes that are killed and replaced.
        max_restarts: the number that may be replaced.
    """
    cursor, batches, count = spec.cursor, spec.batches, workers.count
    crew.count = count
    if crew.kind(workers.workers, count) == "processes":
        from foreload.epochs.processes import ProcessEpoch

        pool, owner = crew.process_pool(workers, cursor.base_seed)
        deepens = workers.is_tuned and workers.deepens and not has_state(spec.dataset)
        limits: dict[str, Any] = {"max_restarts": max_restarts, "deepens": deepens}
        return ProcessEpoch(spec, pool, owner=owner, restarts=restarts, **limits)
    if crew.kind(workers.workers, count) == "ray":
        return _open_on_ray(spec, crew, workers, restarts=restarts, max_restarts=max_restarts)
    if is_instance(spec.dataset, IterableDataset):
        from foreload.epochs.stream import StreamEpoch

        if count == 0:
            return StreamEpoch(spec, buffers)
        identity = WorkerIdentity(count, cursor.base_seed, spec.dataset, workers.init)
        return StreamEpoch(spec, buffers, crew.copies(workers), identity, crew.recorder.spans)
    # A dataset with a state of its own, which threads would share, is loaded from in the order of its batches.
    is_inline = count == 0 or has_state(spec.dataset)
    assembly = native_assembly(batches, spec.dataset, cursor.key, buffers)
    if assembly is None and is_inline:
        assembly = row_assembly(spec.dataset, batches, buffers)
    if assembly is None:
        surroundings: Surroundings | None = None
        if not is_inline:
            surroundings = ThreadSurroundings(cursor.key)
        elif batches.is_keyed:
            surroundings = ProcessSurroundings(cursor.key, is_pure=batches.is_pure)
        elif isinstance(spec.dataset, EpochListener):
            surroundings = LoopSurroundings(cursor.key)
        assembly = SampleAssembly(
            batches,
            spec.view,
            count,
            buffers,
            arrays=cursor.order.is_array,
            surroundings=surroundings,
            # Workers of torch's load from a copy of such a dataset. Those that were chosen must not be seen.
            copies=crew.is_open if is_inline else holds_values(spec.dataset),
        )
    if isinstance(assembly, TensorAssembly) and _is_cheap(assembly, spec, workers):
        return GatherEpoch(spec, assembly)
    if is_inline:
        return InlineEpoch(spec, assembly)
    threads, owner = crew.thread_pool(workers, cursor.base_seed)
    depth = crew.tune(workers, assembly)
    if crew.tuner is None:
        return ThreadEpoch(spec, assembly, threads, depth=depth, owner=owner)
    return TunedEpoch(crew, crew.tuner, spec, assembly, threads, depth=depth, owner=owner)


def _open_on_ray(
    spec: EpochSpec, crew: Crew, workers: CrewSpec, *, restarts: list[Restart], max_restarts: int
) -> Epoch:
    from foreload.epochs.ray import RayEpoch

    pool, owner = crew.ray_pool(workers, spec.cursor.base_seed)
    if workers.is_stream or has_state(spec.dataset):
        from foreload.epochs.processes import ProcessEpoch

        # Each worker has its own part, or state, and so the batches that are its.
        same: Any = pool
        return ProcessEpoch(spec, same, owner=owner, restarts=restarts, max_restarts=max_restarts)
    how: dict[str, Any] = {"restarts": restarts, "max_restarts": max_restarts, "grows": workers.is_auto}
    return RayEpoch(spec, crew, pool, owner=owner, **how)


def _is_cheap(assembly: TensorAssembly, spec: EpochSpec, workers: CrewSpec) -> bool:
    """Whether gathering a batch costs less than handing it from thread to thread."""
    if spec.batches.pin_device is not None:
        return False
    size = (spec.batches.batch_size or 1) * assembly.sample_bytes
    return workers.count == 0 or (workers.is_auto and size < _MIN_THREAD_BYTES)
