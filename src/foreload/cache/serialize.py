"""Serialisation of samples: the memory of tensors and arrays is copied as it is, the rest is pickled."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from foreload.checks import Array
from foreload.errors import warn_user
from foreload.nested import bytes_of, reduced, snapshot, tensors

__all__ = ["SamplePickler", "TorchPickler", "deserialize", "flatten", "restore", "separate", "serialize"]

_ALIGNMENT = 64

# A tensor that is spread over more memory than this, relative to its own, is sent without the gaps.
_MAX_GAPS = 8
_MAX_GAP_BYTES = 1 << 20


class SamplePickler(pickle.Pickler):
    """A pickler that keeps the memory of tensors out of the stream, as numpy does for arrays."""

    _is_exact = False
    _is_whole = False  # whether containers of the user's classes keep what these leave out where they are pickled

    def __init__(self, sample: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._sample = sample
        self._first: dict[int, torch.Tensor] = {}  # over each storage that is taken as a whole
        self._wholes: dict[int, torch.Tensor] | None = None

    def reducer_override(self, value: Any) -> Any:
        if type(value) is torch.Tensor and _plain(value):
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
        return reduced(value, whole=self._is_whole) or NotImplemented

    def _reduce(self, value: torch.Tensor) -> Any:
        dtype, shape, strides, start = value.dtype, tuple(value.shape), value.stride(), value.storage_offset()
        if 0 in shape:
            return _empty, (dtype, shape, strides)
        storage = value.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        first = self._first.get(address, value)
        if first is not value:
            return _like, (first, dtype, shape, strides, start)
        if start == 0 and size == value.nbytes and value.is_contiguous():
            self._first[address] = value
            return _tensor, (pickle.PickleBuffer(_memory(value).data), dtype, shape)
        span = 1 + sum((side - 1) * step for side, step in zip(shape, strides, strict=True))
        # In the same form, unless nearly all of it would be gaps.
        is_spread = span > _MAX_GAPS * value.numel() and span * dtype.itemsize > _MAX_GAP_BYTES
        if size <= 2 * span * dtype.itemsize and not is_spread:
            self._first[address] = value
            memory = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy()
            return _strided, (pickle.PickleBuffer(memory.data), dtype, shape, strides, start)
        whole = self._whole_over(address)
        if whole is not None:
            self._first[address] = whole
            return _like, (whole, dtype, shape, strides, start)
        if is_spread:
            return _tensor, (pickle.PickleBuffer(_memory(value.contiguous()).data), dtype, shape)
        # A small part of something larger: only that part.
        part = value.as_strided((span,), (1,), start)
        return _strided, (pickle.PickleBuffer(_memory(part).data), dtype, shape, strides, 0)

    def _whole_over(self, address: int) -> torch.Tensor | None:
        """Return a tensor of the sample that takes up the whole storage at ``address``, if there is one."""
        if self._wholes is None:  # looked for once: there may be as many as samples in a batch
            self._wholes = {}
            for tensor in tensors(self._sample):
                if type(tensor) is torch.Tensor and _plain(tensor):
                    storage = tensor.untyped_storage()
                    if storage.nbytes() == tensor.nbytes and tensor.is_contiguous():
                        self._wholes.setdefault(storage.data_ptr(), tensor)
        return self._wholes.get(address)


def _loses_attributes(array: Array) -> bool:
    """Whether an array has attributes, and its class leaves pickling to numpy, which drops them."""
    # (Those of a memmap are its file, which its rows are copied from.)
    if type(array) is np.ndarray or isinstance(array, np.memmap) or not getattr(array, "__dict__", None):
        return False
    return all(
        getattr(type(array), name) is getattr(np.ndarray, name)
        for name in ("__reduce__", "__reduce_ex__", "__setstate__")
    )


def _view_as(array: Array, kind: type[Array]) -> Array:
    return array.view(kind)


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


def _plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and not tensor.is_nested
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.__dict__
    )


def _memory(tensor: torch.Tensor) -> Array:
    """Return the memory of a contiguous tensor as an array."""
    try:
        return tensor.numpy()
    except TypeError:  # numpy lacks bfloat16 and some others
        return bytes_of(tensor)


# The dtypes that NumPy has too.
_NUMPY_DTYPES = {torch.from_numpy(np.empty(0, kind)).dtype: np.dtype(kind) for kind in "?BbhilfdeFD"}


def _tensor(memory: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    known = _NUMPY_DTYPES.get(dtype)
    if known is None:
        storage = torch.frombuffer(memory, dtype=dtype).untyped_storage()
        fresh = torch.empty(0, dtype=dtype, device="cpu")  # which is a view of no other tensor
        return fresh.set_(storage, 0, shape)  # type: ignore[call-overload,no-any-return]
    # Faster in worker threads, where code in Python is called for most functions of torch, but not for this one.
    return torch.from_numpy(np.frombuffer(memory, known).reshape(shape))


def _strided(
    memory: Any, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], start: int
) -> torch.Tensor:
    known = _NUMPY_DTYPES.get(dtype)
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


def flatten(sample: Any, pickler: type[SamplePickler] = SamplePickler) -> list[memoryview]:
    """Return a sample as a pickle stream and the memory of its tensors and arrays, which is not copied.

    Tensors keep their strides, and those that share memory share it afterwards, as between torch's workers and
    the loop. But of a tensor in a much larger memory, which no other tensor of the sample is the whole of, only
    the part that it is spread over is taken, and it shares that with no other; if that is a MiB or more, of which
    it is less than an eighth, it becomes contiguous.

    Raises:
        Exception: the sample cannot be pickled.
    """
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    pickler(sample, stream, protocol=5, buffer_callback=buffers.append).dump(sample)
    return [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]


def restore(parts: Sequence[Any]) -> Any:
    """Return the sample of :func:`flatten`'s parts; its tensors and arrays are views of these."""
    return pickle.loads(parts[0], buffers=parts[1:])


def separate(batch: Any) -> Any:
    """Return a batch that shares nothing with what it was made of, as if a worker process had sent it.

    Objects of the user's classes are pickled for that. If they cannot be, which a process could not send either,
    they stay the same; and so does the whole batch, with a warning, if a container in it cannot be copied.

    >>> class Box: pass
    >>> box = Box()
    >>> separate([box])[0] is box  # of a class that pickle does not find
    True
    """
    others: list[Any] = []
    trouble: Exception | None = None
    copied = batch
    try:
        copied = snapshot(batch, others)
    except Exception as error:  # of the user's classes; or it is nested too deeply
        trouble = error
    if not (others or trouble):
        return copied
    for pickler in (_WholePickler, _SendingPickler):
        with suppress(Exception):  # as above
            return restore([bytearray(part) for part in flatten(batch, pickler)])
    if trouble is not None:
        warn_user(
            f"a batch is delivered as collate_fn or the dataset holds it, since copying it fails: {trouble!r}"
        )
    return copied


class TorchPickler(SamplePickler):
    """Sends arrays as torch's workers do: in the byte order of the machine, and in C order if they have gaps."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is np.ndarray and not value.dtype.hasobject:
            flags = value.flags
            is_native = value.dtype.isnative or value.dtype.fields is not None
            if not is_native or not (flags.c_contiguous or flags.f_contiguous):
                order: Any = "F" if flags.fnc else "C"
                kind = value.dtype if is_native else value.dtype.newbyteorder("=")
                return _itself, (value.astype(kind, order=order),)
        return super().reducer_override(value)


def _itself(array: Array) -> Array:
    return array


class _SendingPickler(SamplePickler):
    """Refuses tensors that processes do not send: of a device, and those that gradients lead back from."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and (value.device.type != "cpu" or not value.is_leaf):
            raise pickle.PicklingError("a tensor of a device, or of a graph")
        return super().reducer_override(value)


class _WholePickler(_SendingPickler):
    _is_whole = True


def _can_pickle(value: Any) -> bool:
    try:
        pickle.dumps(value, protocol=5)
    except Exception:  # whatever the pickling of a user's object may raise
        return False
    return True


class _CachePickler(SamplePickler):
    """Refuses what comes back as another: a cached sample is to be like a loaded one."""

    _is_exact = True

    def reducer_override(self, value: Any) -> Any:
        if type(value) is object:
            raise pickle.PicklingError("an object() is known by its identity, which no copy has")
        return super().reducer_override(value)


def serialize(sample: Any) -> list[Array]:
    """Return a sample as pieces of bytes, to be stored one after the other.

    Raises:
        Exception: the sample cannot be pickled.
    """
    parts = flatten(sample, _CachePickler)
    lengths = np.array([len(parts), *map(len, parts)], np.int64)
    pieces = [lengths.view(np.uint8)]
    at = lengths.nbytes
    for part in parts:
        gap = -at % _ALIGNMENT
        pieces += [np.zeros(gap, np.uint8), np.frombuffer(part, np.uint8)] if len(part) else []
        at += (gap + len(part)) if len(part) else 0
    return pieces


def deserialize(memory: Array) -> Any:
    """Return the sample; its tensors and arrays are views of ``memory``, which they keep alive.

    >>> deserialize(np.concatenate(serialize({"x": torch.arange(3), "y": ("cat", 1)})))
    {'x': tensor([0, 1, 2]), 'y': ('cat', 1)}
    """
    count = int(memory[:8].view(np.int64)[0])
    lengths: Sequence[int] = memory[8 : 8 + 8 * count].view(np.int64).tolist()
    at = 8 + 8 * count
    parts = []
    for length in lengths:
        at += -at % _ALIGNMENT if length else 0
        parts.append(memory[at : at + length])
        at += length
    return restore([parts[0].data, *parts[1:]])
