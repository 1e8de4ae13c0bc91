"""Imports of the modules that epochs need, when a loader begins its first one."""

from __future__ import annotations

from foreload.forks.garbage import uncollected

__all__ = ["import_epochs"]


def import_epochs(*, by_processes: bool = True, is_tuned: bool = True) -> None:
    """Import what epochs need.

    Args:
        by_processes: also what those by worker processes need, which are prepared for too.
        is_tuned: also what tunes the number of workers.
    """
    with uncollected():
        import foreload.epochs.open

        if by_processes:
            import foreload.epochs.following.epoch
            from foreload.workers.processes.pool import prepare_forks

            prepare_forks(is_keyed=is_tuned)
        if is_tuned:
            import psutil  # noqa: F401

            import foreload.tune.between_epochs  # noqa: F401
