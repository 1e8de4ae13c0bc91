"""The cache of a loader: a store of samples, and a plan of each epoch for it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler, DistributedSampler

from foreload.cache.budget import MemoryBudget, has_tables
from foreload.cache.fingerprint import content_hash
from foreload.cache.forms import choose_forms, fitted, forms_of, option
from foreload.cache.plan import Plan, compile_plan, fixed_set
from foreload.cache.sharing import SharedStore, place_in_order
from foreload.cache.spill import SpillFolder
from foreload.cache.store import SampleStore
from foreload.cache.view import first_stage, has_two_stages
from foreload.cache.wrappers import require_length, unwrap
from foreload.checks import Indices
from foreload.errors import warn_user
from foreload.options import Cache
from foreload.order.epoch_order import EpochOrder
from foreload.order.generator_states import generators_set_back
from foreload.order.lookahead import asks_once, look_ahead
from foreload.order.ranks import Router, present_rank
from foreload.order.samplers import KeyedSampler
from foreload.protocol import ImageForms

__all__ = ["CacheSpec", "LoaderCache"]

# The most epochs to look ahead, and the most accesses in them.
_MAX_EPOCHS_AHEAD = 8
_MAX_ACCESSES_AHEAD = 1 << 22

# A fixed set is only exchanged for one that saves this many times as much: samples that are there cost nothing.
_MIN_GAIN_RATIO = 1.1

# A smaller gain, as a share of the time to load all images, may be measurement noise.
_MIN_GAIN_OF_TOTAL = 0.02

# The epochs within which a change must pay for itself; how many there will be is not known.
_PAYBACK_EPOCHS = 5


@dataclass(frozen=True)
class CacheSpec:
    """The settings of a loader that its cache depends on.

    Attributes:
        dataset: as the user gave it.
        sampler: its batch sampler, or its sampler without batching.
        memory: the budget that the cache shares with the batches made ahead.
        batch_size: samples per batch; None if that is not known.
        num_workers: the number of workers.
        by_processes: whether they are processes.
        draws_seed: whether each epoch draws a base seed.
    """

    dataset: Any
    sampler: Any
    memory: MemoryBudget
    batch_size: int | None
    num_workers: int
    by_processes: bool
    draws_seed: bool


class LoaderCache:
    """The cache of one loader: the store, and the plan of each epoch.

    Attributes:
        store: the samples that are kept.
        plan: of the present epoch; None if the samples to keep are chosen without one.
        forms: the form in which each image of an ImageDataset is kept, if it is kept.
        order: what is known of the order: ``"once"`` (each sample once per epoch), ``"known"``, ``"unknown"``.
    """

    def __init__(self, spec: CacheSpec, options: Cache) -> None:
        self.options = options
        sampler = _samples_of(spec.sampler)
        self._accesses = len(sampler) if isinstance(sampler, Sized) else 0
        self._root, self._places = unwrap(spec.dataset)
        samples = len(require_length(self._root))
        self._router = _router(spec) if options.route else None

        place = place_in_order(sampler)
        kind = f"{type(spec.dataset).__qualname__} {samples} {options.bytes} {options.keep}"
        self._own_rank = place[0]
        # The store knows where in its one folder a sample lies.
        place_of_spill = "" if options.spill is None else os.path.realpath(options.spill)
        same = (kind, lambda: content_hash(self._root) + place_of_spill)
        self._shared = SharedStore(*same, *place) if options.share else None

        def make(stores: int) -> SampleStore:
            room = spec.memory.cache_room(options.bytes // stores)
            accesses = self._accesses * max(place[1], len(self._ranks()))
            is_routed = self._router is not None
            tables = has_tables(self._root, self._places, options, sampler, self._ranks(), is_routed=is_routed)
            return SampleStore(samples, room, accesses=accesses, hashed=not tables)

        self.store, self._plans = (make(1), True) if self._shared is None else self._shared.open(make)
        if options.spill is not None:
            folder = SpillFolder(options.spill, self._root)
            if folder.usable:
                self.store.spill_to(folder)
        self.plan: Plan | None = None
        self._is_of_images = isinstance(self._root, ImageForms) and has_two_stages(self._root)
        images = samples if self._is_of_images else 0
        self.forms = np.full(images, forms_of(options.keep)[-1], np.uint8)
        self.order = "unknown"
        self._is_native: bool | None = None  # not known before the first epoch
        self._epochs = 0
        self._has_warned_of_rejected = False

    @property
    def room(self) -> int:
        """The bytes that samples may take at present."""
        return int(self.store.native.counts()["room"])

    def serve(self, *, natively: bool) -> None:
        """Tell whether native code loads in the next epoch: it cannot read what Python kept, nor the reverse."""
        if self._is_of_images and natively is not self._is_native is not None:
            self.store.native.clear()
        self._is_native = natively

    def begin(self, spec: CacheSpec, order: EpochOrder) -> None:
        """Plan the epoch whose order is about to be drawn.

        For an epoch that is resumed, only a plan that is the same in every epoch is made.
        """
        self._epochs += 1
        self._warn_of_spill()
        if not self._plans:
            return  # the rank that made the store plans
        samples = len(self.store)
        if self._router is not None:
            self._keep_own_samples(spec, self._router)
            return
        self.plan = None
        policy, ranks = self.options.policy, self._ranks()
        if self._keeps_one_set(order.item_sampler):
            self.order = "once"
            self._keep_best(self._root)
            return
        known = (
            None
            if order.is_resumed or self.store.native.is_hashed
            else look_ahead(
                order,
                max(1, min(_MAX_EPOCHS_AHEAD, _MAX_ACCESSES_AHEAD // max(1, samples))),
                draws_seed=spec.draws_seed,
                ranks=ranks,
            )
        )
        self.order = "unknown" if known is None else "known"
        if known is None or (policy == "lru" and len(known) == 1):
            # Keeping what comes first is as good as any policy if nothing is known, and best for permutations.
            self.store.native.follow_rule("recent" if policy == "lru" else "all")
            return
        self._compile(spec, [self._in_store(epoch) for epoch in known])

    def _in_store(self, indices: Indices) -> Indices:
        """Return the positions in the store of samples of the loader's dataset."""
        places = self._places
        if places is None or (len(indices) and not 0 <= indices.min() <= indices.max() < len(places)):
            return indices
        return places[indices]

    def _warn_of_spill(self) -> None:
        self.store.warn_of_spill()
        if self.store.spill is None:
            return
        folder, rejected = self.store.spill.path, self.store.native.spill_rejected()
        if rejected and not self._has_warned_of_rejected:
            self._has_warned_of_rejected = True
            warn_user(
                f"{rejected} samples or files in the spill folder {folder!r} are not used: they are damaged, "
                "or were not written by this user; these samples are loaded from the dataset, and written anew"
            )
        failure = self.store.native.spill_failure()
        if failure and self.store.native.first_to_tell():
            warn_user(f"nothing more is written to the spill folder {folder!r}: {os.strerror(failure)}")

    def _keeps_one_set(self, sampler: Any) -> bool:
        """Whether no plan is better than keeping the same samples in every epoch."""
        return self.options.policy in ("opt", "fixed") and asks_once(sampler, self._ranks())

    def _ranks(self) -> list[int]:
        """Return the ranks that share the store, each as often as processes have it."""
        return [self._own_rank] if self._shared is None else self._shared.ranks()

    def follow_ranks(self, spec: CacheSpec) -> Router | None:
        """Serve the present ranks, which may be others than those that were there when the cache was made.

        Returns:
            What swaps samples between them, with ``Cache(route=True)``.
        """
        self._router = _router(spec) if self.options.route else None
        self._own_rank, ranks = place_in_order(_samples_of(spec.sampler))
        if self._shared is not None:
            self._shared.follow(self._own_rank, ranks)
        return self._router

    def _keep_own_samples(self, spec: CacheSpec, router: Router) -> None:
        """Keep as many of each rank's own samples as fit, in the order of the router."""
        ranks = sorted(set(self._ranks()))
        self.order = "known"
        own = self._in_store(router.owned_by(ranks[0], 1))  # if it owns none, the others of them do not either
        if self.store.native.is_hashed:
            counts = self.store.native.counts()
            size = counts["used"] // max(1, counts["samples"])
            size = size or (self._size_of_sample(spec, int(own[0])) if len(own) else 0)
            each = self.room // len(ranks) // size if size else len(self.store)
            self.store.native.follow_owned(router.seed, router.ranks, np.array(ranks), each * router.ranks)
            return
        sizes = self.store.sizes()
        if not sizes.any() and len(own):
            sizes = np.full(len(self.store), self._size_of_sample(spec, int(own[0])), np.int64)
        sizes = np.where(sizes > 0, sizes, int(sizes[sizes > 0].mean()) if sizes.any() else 0)
        members = np.zeros(len(self.store), np.bool_)
        for rank in ranks:
            own = self._in_store(router.owned_by(rank))
            members[own[np.cumsum(sizes[own]) <= self.room // len(ranks)]] = True
        self.store.native.follow_members(members.view(np.uint8))

    def _keep_best(self, dataset: Any) -> None:
        """Keep the samples that save most time per byte, once that is known; until then, the first ones."""
        if self.store.native.is_hashed:
            self.store.native.follow_rule("all")  # what others cost is not known
            return
        resident = self.store.residents()
        if self._is_of_images and (image_costs := dataset.form_costs())[2].any():
            self._keep_best_images(image_costs, resident)
            return
        sizes, costs = self.store.sizes(), self.store.costs()
        known = (sizes > 0) & (costs > 0)
        if self._epochs > 1 and known.any():
            members = fixed_set(np.where(known, costs, 0.0), np.where(known, sizes, 1 << 62), self.room)
            if costs[members].sum() > _MIN_GAIN_RATIO * costs[resident].sum():
                self.store.native.follow_members(members.view(np.uint8))
                return
        self.store.native.follow_rule("all")

    def _keep_best_images(self, costs: np.ndarray[Any, Any], resident: np.ndarray[Any, Any]) -> None:
        costs = fitted(costs)
        best = choose_forms(costs, forms_of(self.options.keep), self.room)
        saves = np.zeros(len(resident))
        for form in forms_of(self.options.keep):
            saves = np.where(self.forms == form, option(form, costs)[1], saves)
        now = saves[resident].sum()
        stays = resident & best.members
        same = stays & (self.forms == best.forms)
        # An image that is to be kept in another form has to be loaded once more.
        again = (costs[0] + costs[1])[stays & ~same].sum()
        in_all = (costs[0] + costs[1]).sum()
        if (
            best.saved - now <= max((_MIN_GAIN_RATIO - 1) * now, _MIN_GAIN_OF_TOTAL * in_all)
            or _PAYBACK_EPOCHS * (best.saved - now) <= again
        ):
            self.store.native.follow_rule("all")
            return
        self.store.native.follow_members(same.view(np.uint8))
        self.forms = best.forms
        self.store.native.follow_members(best.members.view(np.uint8))

    def _compile(self, spec: CacheSpec, epochs: Sequence[np.ndarray[Any, Any]]) -> None:
        now = epochs[0]
        if not len(now):
            return
        samples, most = len(self.store), self.store.arguments[2]
        if len(now) > max(most, samples) or not 0 <= now.min() <= now.max() < samples:
            self.store.native.follow_rule("all")  # the dataset raises the error for such indices
            return
        sizes = self.store.sizes()
        if not sizes.any():
            sizes = np.full(len(self.store), self._size_of_sample(spec, int(now[0])), np.int64)
        if not sizes.any():
            self.store.native.follow_rule("all")
            return
        sizes = np.where(sizes > 0, sizes, int(sizes[sizes > 0].mean()))
        window = compile_plan(
            np.concatenate(epochs),
            samples,
            self._room(spec, int(sizes.mean())),
            self.options.policy,
            sizes=sizes,
            resident=self.store.residents(),
            tail=True,
        )
        self.plan = Plan(now, window.hits[: len(now)], window.keep[: len(now)], window.retained)
        self.store.native.follow_accesses(now, self.plan.keep.view(np.uint8), self.plan.retained.view(np.uint8))

    def _size_of_sample(self, spec: CacheSpec, index: int) -> int:
        """Return the room that a sample takes that is loaded now, ahead of the epoch, which then uses it.

        It is 0 if workers load, or if that fails.
        """
        size = 0
        if not spec.by_processes:
            # A failure is raised again in the epoch, where it can be reported.
            with generators_set_back(), contextlib.suppress(Exception):
                dataset = self._root
                if self._is_of_images:
                    pixels, _ = dataset.prepare_sample(index, "decoded")
                    size = option(int(self.forms[index]), np.array([[0], [0], [0], [pixels.size // 3], [1]]))[0][0]
                else:
                    together = type(spec.sampler) is BatchSampler
                    size = self.store.load_ahead(index, first_stage(dataset, self.options.keep, together=together))
        return int(size)

    def _room(self, spec: CacheSpec, size: int) -> int:
        """Return the bytes to plan with: workers are not quite in step, so some memory is freed late."""
        room = self.store.native.counts()["room"]
        if spec.num_workers == 0:
            return room
        batches = spec.num_workers if spec.by_processes else 1
        return room - min(room // 8, (spec.batch_size or 1) * batches * size)

    def stats(self) -> dict[str, Any]:
        """Return the counters since the start."""
        counts: dict[str, Any] = self.store.native.counts()
        requests = counts["hits"] + counts["misses"]
        counts["hit_rate"] = counts["hits"] / requests if requests else 0.0
        counts["order"] = self.order
        counts["predicted_hit_rate"] = None if self.plan is None else self.plan.hit_rate
        return counts


def _samples_of(sampler: Any) -> Any:
    """Return the sampler of single samples within a batch sampler, if it has one."""
    return getattr(sampler, "sampler", sampler)


def _router(spec: CacheSpec) -> Router | None:
    """Return what swaps samples between ranks; None if there is one rank."""
    sampler = _samples_of(spec.sampler)
    if present_rank()[1] == 1 and getattr(sampler, "num_replicas", 1) == 1:
        return None
    if type(sampler) not in (DistributedSampler, KeyedSampler) or type(spec.sampler) is not BatchSampler:
        raise ValueError(
            "cache: route=True needs an order that ranks can share: that of seed= with shuffle=True, or torch's "
            f"own DistributedSampler and BatchSampler, got {type(sampler).__name__}"
        )
    return None if sampler.num_replicas == 1 else Router(len(spec.dataset), sampler.num_replicas)
