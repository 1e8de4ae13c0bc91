"""Any loader's batches on a device, ahead of the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from foreload.checks import check_bool, check_int
from foreload.device.ahead import LoopPosition, MovedAhead, move_ahead
from foreload.device.stream import DeviceTransform, check_device, check_transform, side_stream

__all__ = ["PrefetchLoader"]


class PrefetchLoader:
    """Delivers the batches of any loader on a device, copied ahead of the loop on a CUDA stream of their own.

    Copies go on while the loop works on batches before them. Batches from ordinary memory are first copied to
    page-locked memory, by the loop's thread; a loader with ``pin_memory=True`` saves it that work.

    Tensors may be nested in tuples, lists, mappings, named tuples, dataclasses and objects that have ``.to`` (such
    an object must hold its tensors in attributes, or have ``record_stream``). Types stay what they are; a tensor
    that occurs twice is copied once; strides stay as ``tensor.to(device)`` keeps them. A tensor that requires a
    gradient stays part of its graph, like the result of ``.to``. NumPy arrays stay on the CPU; those that can be
    written to are copied, for a loader may fill the same buffers again. On the CPU, batches are passed on
    unchanged.

    The wrapped loader's attributes (``dataset``, ``set_epoch``, ...) are available here too. ``state_dict()`` is
    that of the batch that the loop has, or had when it was left, not of those that are copied ahead. If ``loader``
    is an iterator, the next loop goes on with it where the last one was left.

    Args:
        loader: anything that can be iterated: foreload's DataLoader, torch's, a generator, a list.
        device: the device to copy to, such as ``"cuda"`` or ``"cuda:1"``.
        non_blocking: False makes the caller wait for each copy.
        depth: the number of batches on the device ahead of the one that the loop has.
        device_transform: called with each batch on the device, such as a :class:`foreload.transforms.Normalize`;
            what it returns is delivered. On the CPU too.

    Raises:
        TypeError: ``loader`` cannot be iterated, ``device_transform`` not called, or ``non_blocking`` is no bool.
        ValueError: ``depth`` is less than 1.
        RuntimeError: there is no such device.

    >>> loader = PrefetchLoader([{"x": torch.ones(2)}], "cpu")
    >>> len(loader), list(loader)
    (1, [{'x': tensor([1., 1.])}])
    """

    def __init__(
        self,
        loader: Iterable[Any],
        device: torch.device | str | int,
        non_blocking: bool = True,
        *,
        depth: int = 2,
        device_transform: DeviceTransform | None = None,
    ) -> None:
        if isinstance(loader, (str, torch.device)):
            raise TypeError(
                f"loader must be a loader, got {loader!r}; it comes first: PrefetchLoader(loader, device)"
            )
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise TypeError(f"loader must be something to iterate over, got {type(loader).__name__}")
        self.loader = loader
        self.device = check_device(device)
        self.non_blocking = check_bool("non_blocking", non_blocking)
        self.depth = check_int("depth", depth, least=1)
        self.device_transform = check_transform(device_transform, self.device)
        self._place: LoopPosition | None = None
        self._goes_on: Iterator[Any] | None = None  # an epoch that the next loop goes on with

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch; if ``loader`` is an iterator, go on with it."""
        if self._goes_on is not None:
            return self._goes_on
        self._place = None
        stream = side_stream(self.device, non_blocking=self.non_blocking)
        state = getattr(self.loader, "state_dict", None)
        batches = iter(self.loader)
        moving = move_ahead(
            batches,
            stream,
            state if callable(state) else None,
            depth=self.depth,
            transform=self.device_transform,
        )
        if isinstance(moving, MovedAhead):
            self._place = moving.place
        if batches is self.loader and _returns_itself(batches):
            self._goes_on = moving  # it has batches that nobody would get otherwise
        return moving

    def __repr__(self) -> str:
        """Name the wrapped loader and the device."""
        # The repr of a list of batches would show all of them.
        loader = repr(self.loader) if hasattr(self.loader, "dataset") else type(self.loader).__name__
        return f"{type(self).__name__}({loader}, device={str(self.device)!r})"

    def __len__(self) -> int:
        """Count the batches, if the wrapped loader has a length."""
        return len(self.loader)  # type: ignore[arg-type]

    @property
    def state_dict(self) -> Callable[[], Any]:
        """The wrapped loader's ``state_dict``, as of the batch that was delivered last."""
        own: Callable[[], Any] = self.loader.state_dict  # type: ignore[attr-defined]
        place = self._place
        return own if place is None or place.state is None else place.taken

    @property
    def load_state_dict(self) -> Callable[[Any], Any]:
        """The wrapped loader's ``load_state_dict``."""
        own: Callable[[Any], Any] = self.loader.load_state_dict  # type: ignore[attr-defined]

        def load(state_dict: Any) -> Any:
            loaded = own(state_dict)
            self._place = self._goes_on = None  # batches that are ahead are of another place
            return loaded

        return load

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped loader."""
        if name.startswith("__") or "loader" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __copy__(self) -> PrefetchLoader:
        """Return a loader that is in the same place, since both have the same wrapped loader."""
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the loader and the device, without the epoch under way."""
        return {**self.__dict__, "_place": None, "_goes_on": None}


def _return_self(self: Any) -> Any:
    return self


def _returns_itself(iterator: Any) -> bool:
    """Whether ``iter(iterator)`` does nothing; that of a user's class may well begin anew."""
    code = getattr(type(iterator).__iter__, "__code__", None)
    return code is None or code.co_code == _return_self.__code__.co_code
