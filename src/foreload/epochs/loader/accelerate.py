"""The states and epochs of the loaders that Accelerate builds from foreload's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from foreload.epochs.loader.stateful import StatefulSource

__all__ = ["keep_states", "pass_on_epochs"]


def keep_states(accelerate: Any, is_ours: Callable[[Any], bool]) -> None:
    """Let Accelerate save the state of a foreload loader where it would build a stateful one of torchdata's.

    Where one rank loads for all (``dispatch_batches``), Accelerate takes a state when it is some batches ahead,
    and corrects that in torchdata's states; foreload's are taken before it goes ahead. All ranks write them to one
    file there, so all have that of the rank that loads.

    Args:
        accelerate: its module that builds loaders.
        is_ours: whether a number of workers is that of a foreload loader.
    """
    adapter, dispatcher = accelerate.DataLoaderAdapter, accelerate.DataLoaderDispatcher
    init, fetch, update = adapter.__init__, dispatcher._fetch_batches, dispatcher._update_state_dict

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, use_stateful_dataloader: bool = False, **kwargs: Any) -> None:
        ours = is_ours(kwargs.get("num_workers"))
        init(self, *args, use_stateful_dataloader=use_stateful_dataloader and not ours, **kwargs)
        self.use_stateful_dataloader = use_stateful_dataloader  # checkpoints then hold the state

    @functools.wraps(fetch)
    def _fetch_batches(self: Any, iterator: Any) -> Any:
        if not isinstance(self.base_dataloader, StatefulSource):
            return fetch(self, iterator)
        states: list[Any] = [self.base_dataloader.state_dict(), None]
        found = fetch(self, iterator)
        if self._stop_iteration:
            states[1] = self.base_dataloader.state_dict()
        if self.use_stateful_dataloader:
            accelerate.broadcast_object_list(states)
        self.dl_state_dict = {**states[0], "_iterator_finished": False}
        self._fl_end = states[1]
        return found

    @functools.wraps(update)
    def _update_state_dict(self: Any) -> None:
        update(self)
        if getattr(self, "_fl_end", None) is not None:
            self.dl_state_dict = {**self._fl_end, "_iterator_finished": self.end_of_dataloader}

    adapter.__init__, dispatcher._fetch_batches = __init__, _fetch_batches
    dispatcher._update_state_dict = _update_state_dict


def pass_on_epochs(accelerate: Any) -> None:
    """Let ``set_epoch`` of a prepared loader reach the foreload loader, which hears of a sampler's epoch only.

    Accelerate calls it before each epoch, too, with its own count, which begins from 0 in each run.
    """
    for prepared in (accelerate.DataLoaderShard, accelerate.DataLoaderDispatcher):
        set_epoch = prepared.set_epoch

        def chosen(self: Any, epoch: int, set_epoch: Any = set_epoch) -> None:
            if epoch != self.iteration and isinstance(self.base_dataloader, StatefulSource):
                self.base_dataloader.count_from(epoch)  # samplers are set below
            set_epoch(self, epoch)

        prepared.set_epoch = functools.wraps(set_epoch)(chosen)
