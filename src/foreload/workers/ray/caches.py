"""The caches of a loader on a Ray cluster: one for all workers of a node."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from foreload.cache.forms import forms_of
from foreload.cache.loader_cache import CacheSpec, LoaderCache
from foreload.cache.store import SampleStore
from foreload.cache.wrappers import require_length, unwrap
from foreload.options import Cache
from foreload.order.epoch_order import EpochOrder
from foreload.protocol import ImageForms
from foreload.workers.ray.cluster import current_job

__all__ = ["NodeCaches"]

# Seconds to wait for the counters of a node.
_COUNTS_SECONDS = 5.0


class NodeCaches(LoaderCache):
    """A cache on each node, which its workers share, and which stays there between epochs.

    Which worker loads a batch, and so on which node, is not known ahead. So a node keeps what it loads first, as
    long as there is room; with ``policy="lru"``, what it has used last.

    Args:
        spec: the loader's settings.
        options: the cache's; the budget is that of each node.
    """

    def __init__(self, spec: CacheSpec, options: Cache) -> None:
        for name, value in (("spill", options.spill), ("route", options.route)):
            if value:
                raise ValueError(f"Cache({name}=...) is not possible with workers='ray'; leave it out")
        root, _ = unwrap(spec.dataset)
        samples = len(require_length(root))
        self.options = options
        # Stands for those on the nodes: nothing is kept in it.
        self.store = SampleStore(samples, options.bytes)
        self.plan = None
        self.forms = np.full(samples if isinstance(root, ImageForms) else 0, forms_of(options.keep)[-1], np.uint8)
        self.order = "unknown"
        self._job: str | None = None
        self._keepers: dict[str, Any] = {}  # of this job, by node: the actor

    def follow_ranks(self, spec: CacheSpec) -> None:
        """Do nothing: which node loads what does not depend on ranks."""

    def begin(self, spec: CacheSpec, order: EpochOrder) -> None:
        """Do nothing: there is no plan."""

    def place_of(self, node: str) -> Any:
        """Return a reference to the place of a node's cache, for an actor there."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from foreload.workers.ray.actor import CacheKeeper

        self._forget_other_clusters()
        if node not in self._keepers:
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            rule = "recent" if self.options.policy == "lru" else "all"
            # (One that is killed begins again with nothing; its place is another one then.)
            make = ray.remote(CacheKeeper).options(
                num_cpus=0, scheduling_strategy=there, max_restarts=-1, max_task_retries=-1
            )
            self._keepers[node] = make.remote(self.store.arguments, rule)
        return self._keepers[node].place.remote()

    def _forget_other_clusters(self) -> None:
        job = current_job()
        if self._job != job:
            self._job, self._keepers = job, {}

    def forget_lost(self) -> None:
        """Forget the caches of nodes that are gone."""
        import ray

        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        for node in [node for node in self._keepers if node not in alive]:
            del self._keepers[node]

    def stats(self) -> dict[str, Any]:
        """Return the counters since the start, summed over the nodes that are there."""
        import ray

        counts: Counter[str] = Counter()
        self._forget_other_clusters()
        asked = [keeper.counts.remote() for keeper in self._keepers.values()]
        done, _ = ray.wait(asked, num_returns=len(asked), timeout=_COUNTS_SECONDS) if asked else ([], [])
        for reference in done:
            try:
                counts.update(ray.get(reference))
            except ray.exceptions.RayError:  # the node is gone
                continue
        found: dict[str, Any] = {**self.store.native.counts(), **counts}
        requests = found["hits"] + found["misses"]
        found["hit_rate"] = found["hits"] / requests if requests else 0.0
        return {**found, "order": self.order, "predicted_hit_rate": None, "nodes": len(self._keepers)}
