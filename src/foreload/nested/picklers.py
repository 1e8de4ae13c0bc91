"""Picklers of samples and batches: as plain copies, as torch's workers send them, or exactly as they are."""

from __future__ import annotations

import copyreg
import io
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from foreload._libraries import registered_reducers
from foreload.nested.constants import FILE_OF_MAP
from foreload.nested.containers import attributes, has_own_rules, is_image, reduced
from foreload.nested.memory import Memory, is_packed, is_spread_out, span_of
from foreload.nested.tensors import NUMPY_DTYPES, bytes_of, is_masked_array, is_plain, tensors

Array = np.ndarray[Any, Any]

__all__ = ["ExactPickler", "SamplePickler", "TorchPickler", "WholePickler", "registered"]


class SamplePickler(pickle.Pickler):
    """A pickler that keeps the memory of tensors out of the stream, as numpy does for arrays."""

    _is_exact = False  # whether what a class leaves out where it is pickled is kept, if possible

    def __init__(self, sample: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._sample = sample
        self._first: dict[tuple[int, int], torch.Tensor] = {}  # over each storage that is taken as a whole
        self._memories: dict[tuple[int, int], Memory] | None = None
        self._parts: set[int] = set()  # tensors of these, that several of the sample's overlap in

    def reducer_override(self, value: Any) -> Any:
        if type(value) is torch.Tensor and is_plain(value):
            return self._reduce(value)
        if type(value) is np.ndarray and not value.flags.writeable:
            return value.__reduce__()  # by value, for a copy may be written to
        if isinstance(value, np.ndarray) and _loses_attributes(value):
            if not (self._is_exact or _can_pickle(vars(value))):
                return NotImplemented  # without them, as torch sends it
            plain, kind = value.view(np.ndarray), type(value)
            return _view_as, (plain, kind), vars(value), None, None, _set_attributes
        if type(value) is torch.UntypedStorage and value.device.type == "cpu":
            return torch.Tensor.untyped_storage, (torch.empty(0, dtype=torch.uint8, device="cpu").set_(value),)
        if type(value) is torch.storage.TypedStorage:
            return _reduce_storage(value)
        if isinstance(value, torch.Tensor) and value.requires_grad and not value.is_leaf:
            # Torch refuses it between processes too: no gradient would reach what it was computed from.
            raise pickle.PicklingError(
                "a tensor that requires a gradient and was computed from others cannot be copied with these; call "
                "detach() on it in the dataset, or load in the training process without a cache"
            )
        return reduced(value, whole=self._is_exact) or NotImplemented

    def _reduce(self, value: torch.Tensor) -> Any:
        dtype, shape, strides, start = value.dtype, tuple(value.shape), value.stride(), value.storage_offset()
        if 0 in shape:
            return _empty, (dtype, shape, strides)
        if id(value) in self._parts:
            return _tensor, (pickle.PickleBuffer(_memory(value).data), dtype, shape)
        storage = value.untyped_storage()
        size = storage.nbytes()
        place = storage.data_ptr(), size  # two that begin at one address may be of one array
        first = self._first.get(place, value)
        if first is not value:
            return _like, (first, dtype, shape, strides, start)
        if start == 0 and size == value.nbytes and is_packed(value):
            self._first[place] = value
            return _tensor, (pickle.PickleBuffer(_memory(value).data), dtype, shape)
        span, is_spread, begin = span_of(value), is_spread_out(value), int(start) * dtype.itemsize
        others = self._memory_at(place)
        if others is not None and others.whole is not None:
            whole = self._first[place] = others.whole
            return _like, (whole, dtype, shape, strides, start)
        common = None if others is None or is_spread else others.part_around(begin)
        if common is not None:
            self._parts.add(id(common.tensor))
            return _like, (common.tensor, dtype, shape, strides, (begin - common.begin) // dtype.itemsize)
        # In the same form, unless nearly all of it would be gaps.
        if is_spread:
            return _tensor, (pickle.PickleBuffer(_memory(value.contiguous()).data), dtype, shape)
        if size <= 2 * span * dtype.itemsize:
            self._first[place] = value
            memory = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy()
            return _strided, (pickle.PickleBuffer(memory.data), dtype, shape, strides, start)
        # A small part of something larger: only that part.
        part = value.as_strided((span,), (1,), start)
        return _strided, (pickle.PickleBuffer(_memory(part).data), dtype, shape, strides, 0)

    def _memory_at(self, place: tuple[int, int]) -> Memory | None:
        """Return what the tensors of the sample take up of the storage at an address."""
        if self._memories is None:  # looked for once: there may be as many as samples in a batch
            self._memories = {}
            for tensor in tensors(self._sample):
                if type(tensor) is torch.Tensor and is_plain(tensor) and tensor.numel():
                    storage = tensor.untyped_storage()
                    at = storage.data_ptr(), storage.nbytes()
                    self._memories.setdefault(at, Memory(storage)).add(tensor)
        return self._memories.get(place)


def _loses_attributes(array: Array) -> bool:
    """Whether an array has attributes, and its class leaves pickling to numpy, which drops them."""
    # (Those of a memmap are its file, which its rows are copied from.)
    own = vars(array).keys() - FILE_OF_MAP if isinstance(array, np.memmap) else getattr(array, "__dict__", None)
    if type(array) is np.ndarray or not own:
        return False
    return all(
        getattr(type(array), name) is getattr(np.ndarray, name)
        for name in ("__reduce__", "__reduce_ex__", "__setstate__")
    )


def _view_as(array: Array, kind: type[Array]) -> Array:
    return array.view(kind)


def _read_only(make: Callable[..., Array], arguments: Any) -> Array:
    (array := make(*arguments)).flags.writeable = False
    return array


def _set_attributes(array: Array, attributes: dict[str, Any]) -> None:
    vars(array).update(attributes)


def _reduce_storage(storage: torch.storage.TypedStorage) -> Any:
    """Reduce the storage of a tensor with attributes, a gradient or the like, in the same way wherever it lies.

    (Torch writes its place in memory, too.)
    """
    if storage.dtype in _QUANTISED:
        return NotImplemented
    try:
        whole = torch.empty(0, dtype=storage.dtype, device="cpu").set_(storage)
    except RuntimeError:  # it lies on another device
        return NotImplemented
    return _typed, (whole.untyped_storage(), storage.dtype)


# Torch has no tensors of these that are as simple.
_QUANTISED = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)


def _typed(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.storage.TypedStorage:
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]


def _memory(tensor: torch.Tensor) -> Array:
    """Return the memory of a contiguous tensor as an array."""
    try:
        return tensor.numpy()
    except TypeError:  # numpy lacks bfloat16 and some others
        return bytes_of(tensor)


def _tensor(memory: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    known = NUMPY_DTYPES.get(dtype)
    if known is None:
        storage = torch.frombuffer(memory, dtype=dtype).untyped_storage()
        fresh = torch.empty(0, dtype=dtype, device="cpu")  # which is a view of no other tensor
        return fresh.set_(storage, 0, shape)  # type: ignore[call-overload,no-any-return]
    # Faster in worker threads, where code in Python is called for most functions of torch, but not for this one.
    return torch.from_numpy(np.frombuffer(memory, known).reshape(shape))


def _strided(
    memory: Any, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], start: int
) -> torch.Tensor:
    known = NUMPY_DTYPES.get(dtype)
    if known is not None and start == 0 and _fills(shape, strides, len(memory) // known.itemsize):
        steps = tuple(stride * known.itemsize for stride in strides)
        return torch.from_numpy(np.ndarray(shape, known, memory, 0, steps))  # faster, as above
    return _like(torch.frombuffer(memory, dtype=torch.uint8), dtype, shape, strides, start)


def _fills(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> bool:
    """Whether a tensor is spread over the whole of a memory of this size, so that NumPy's array is as long."""
    # (NumPy refuses the strides that torch leaves in a side of one.)
    is_within = size > 0 and max(strides, default=0) <= size
    return is_within and 1 + sum(stride * (side - 1) for stride, side in zip(strides, shape, strict=True)) == size


def _like(
    first: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], start: int
) -> torch.Tensor:
    """Return a tensor over the same storage."""
    return torch.empty(0, dtype=dtype, device="cpu").set_(first.untyped_storage(), start, shape, strides)


def _empty(dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="cpu")


def _can_pickle(value: Any) -> bool:
    try:
        pickle.dumps(value, protocol=5)
    except Exception:  # whatever the pickling of a user's object may raise
        return False
    return True


# Torch's workers send by the default protocol, which from Python 3.14 on is one that keeps what an array is like.
_KEEPS_FORM = pickle.DEFAULT_PROTOCOL >= 5


class TorchPickler(SamplePickler):
    """Sends arrays as torch's workers do: before Python 3.14, in the machine's byte order, and without gaps."""

    def __init__(self, sample: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(sample, *arguments, **options)
        self._registered = registered()
        if self._registered:
            self.dispatch_table = {**copyreg.dispatch_table, **self._registered}

    def reducer_override(self, value: Any) -> Any:
        if type(value) in self._registered:
            return NotImplemented
        if type(value) is np.ndarray and not value.dtype.hasobject:
            flags = value.flags
            if _KEEPS_FORM:
                made: Any = value.__reduce_ex__(5)
                return NotImplemented if flags.writeable or len(made) != 2 else (_read_only, made)
            is_native = value.dtype.isnative or value.dtype.fields is not None
            if not is_native or not (flags.c_contiguous or flags.f_contiguous):
                order: Any = "F" if flags.fnc else "C"
                kind = value.dtype if is_native else value.dtype.newbyteorder("=")
                return _itself, (value.astype(kind, order=order),)
        return super().reducer_override(value)


class _Registered:
    """The reducers that users have registered for processes, without torch's, which send memory by its place."""

    def __init__(self) -> None:
        self._all: dict[type, Any] = {}
        self._own: dict[type, Any] = {}

    def own(self) -> dict[type, Any]:
        """Return them; looking through all takes longer than to pickle a small batch."""
        if registered_reducers != self._all:
            self._all = dict(registered_reducers)
            self._own = {
                kind: reduce
                for kind, reduce in self._all.items()
                if not str(getattr(reduce, "__module__", "")).startswith(("torch.", "multiprocessing."))
            }
        return self._own


_registered = _Registered()


def registered() -> dict[type, Any]:
    """Return what users have registered with ``multiprocessing`` for the objects of a class to be sent by."""
    return _registered.own()


def _itself(array: Array) -> Array:
    return array


class WholePickler(SamplePickler):
    """Sends containers with what their classes leave out where they are pickled."""

    _is_exact = True


class ExactPickler(WholePickler):
    """Refuses what would come back as another object than it was, for nobody asked for it to be sent.

    Attributes:
        ruled: the objects whose classes say how they are pickled, and may leave something out.
    """

    def __init__(self, sample: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(sample, *arguments, **options)
        self.ruled: list[Any] = []
        self._plain: set[type] = {np.ndarray}  # classes of which nothing is left out

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind not in self._plain and not isinstance(value, type):
            if (what := _lost(value)) is not None:
                raise pickle.PicklingError(what)
            if has_own_rules(kind):
                self.ruled.append(value)
            elif not (is_image(kind) or issubclass(kind, (torch.Tensor, np.ndarray, BaseException))):
                self._plain.add(kind)
        return super().reducer_override(value)


# What an image of Pillow consists of, or is not to be told by.
_OF_IMAGES = {"_im", "im", "_mode", "_size", "info", "palette", "_readonly", "readonly", "pyaccess", "_exif"}


def _lost_of_image(held: dict[Any, Any]) -> str | None:
    if (palette := held.get("palette")) is not None and palette.mode != "RGB":
        return "the transparency of an image's palette is not sent"
    extra = held.keys() - _OF_IMAGES
    if (exif := held.get("_exif")) is not None:
        there = type(exif)()
        there.load(held["info"].get("exif"))  # from which the image that comes back reads it
        inner: dict[int, Any] = vars(exif).get("_ifds", {})  # directories within it that were asked for
        is_same = dict(there) == dict(exif) and all(there.get_ifd(tag) == inner[tag] for tag in inner)
        extra |= set() if is_same else {"_exif"}
    return f"{min(map(str, extra))!r} of an image is not sent" if extra else None


def _lost(value: Any) -> str | None:
    """Say what no copy of an object has; None if nothing is known of it."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        if value.requires_grad and value.layout is not torch.strided:
            return "that a sparse tensor requires a gradient is not sent"
        if value.is_inference():
            return "that a tensor was made in inference mode is not sent"
        return "the gradient of a tensor is not sent" if value.is_leaf and value.grad is not None else None
    if isinstance(value, BaseException):
        parts = (value.__traceback__, value.__cause__, value.__context__)
        return None if parts == (None, None, None) else "the traceback of an exception is not sent"
    if is_masked_array(value):
        if np.ma.getmask(value) is np.ma.nomask:
            return "that an array has no mask is not sent"
        return "the hard mask of an array is not sent" if value.hardmask else None
    if kind in weakref.ProxyTypes:
        return "what a weak proxy refers to is not sent"
    if is_image(kind):
        return _lost_of_image(dict(attributes(value)))
    if kind is object:
        return "an object() is known by its identity, which no copy has"
    ends = kind is weakref.finalize or (hasattr(kind, "__del__") and kind not in (io.BytesIO, io.StringIO))
    return f"the end of a {kind.__name__} would come twice" if ends else None
