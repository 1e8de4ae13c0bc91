"""A base class for datasets of samples in files: an index, a way to read a sample, and a loading mode."""

from __future__ import annotations

import copy
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, Self

from torch.utils.data import Dataset

from foreload.cache.budget import Pressure
from foreload.cache.store import SampleStore
from foreload.checks import Indices, check_callable, check_index
from foreload.datasets.folders import absolute
from foreload.datasets.stream import Streamable, runs_of
from foreload.forks.per_process import PerProcess
from foreload.machine import granted_memory
from foreload.options import Keep, LoadingMode
from foreload.protocol import UserCode
from foreload.record.progress import track, track_threads

__all__ = ["EAGER_SHARE", "BaseDataset"]

# The default share of the memory granted to this process that a dataset may keep.
EAGER_SHARE = 0.9
_CACHED_SHARE = 0.5


class BaseDataset(Dataset[Any], Streamable, UserCode):
    """A dataset in two methods: :meth:`index` lists the samples, :meth:`read` loads one.

    A sample is whatever :meth:`read` returns, or a tuple (sample, target). The loading mode keeps what it
    returned, in memory that forked and spawned workers share; the transforms come after that.

    If the samples are in memory anyway, one method is enough: ``_load_data`` fills ``self.data``, and
    ``self.targets`` if there are any, with as many entries. They may be lists, arrays, tensors or pandas objects
    (of which rows are taken by position), and may be changed later. Loading modes make no difference then.

    Args:
        data_path: the file or folder, which must exist, unless ``_load_data`` decides what it means.
        transform: called with each sample.
        target_transform: called with each target.
        loading_mode: when samples are read, and which are kept: ``LAZY`` none, ``EAGER`` all from the start,
            ``CACHED`` as many as fit into half of the memory that this process may use, ``STREAMING`` none, in
            constant memory. For reading in the order of storage, see :meth:`stream`.

    Attributes:
        entries: what :meth:`index` returned.
        decisions: what was done because memory was short, in words: ``CACHED`` then gives memory back.

    Raises:
        FileNotFoundError: ``data_path`` does not exist.
        MemoryError: ``EAGER`` needs more than the memory that this process may use.

    >>> class Squares(BaseDataset):
    ...     def index(self):
    ...         return range(10)
    ...     def read(self, index):
    ...         return index * index, index % 2
    >>> squares = Squares(".", transform=float, loading_mode=LoadingMode.CACHED)
    >>> len(squares), squares[3]
    (10, (9.0, 1))
    >>> class Cubes(BaseDataset):
    ...     def _load_data(self):
    ...         self.data = [i**3 for i in range(10)]
    ...         self.targets = [i % 2 for i in range(10)]
    >>> Cubes("in memory")[3]
    (27, 1)
    """

    _num_entries: int | None = None  # not known before __init__

    def __init__(
        self,
        data_path: str | Path,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        loading_mode: LoadingMode = LoadingMode.LAZY,
    ) -> None:
        check_callable("transform", transform)
        check_callable("target_transform", target_transform)
        self.data_path = self._locate(data_path)
        self.transform = transform
        self.target_transform = target_transform
        self.loading_mode = LoadingMode(loading_mode)
        self.entries: Any = self.index()
        self._num_entries = self._counted()
        self.decisions: list[str] = []
        self._pressure = Pressure(self.decisions.append)
        self._kept = self._keep()

    def _counted(self) -> int:
        if isinstance(self.entries, Sized):
            return len(self.entries)
        must = f"{type(self).__name__}.index() must return the samples, or how many there are"
        try:
            count = operator.index(self.entries)
        except TypeError:
            raise TypeError(f"{must}, got {type(self.entries).__name__}") from None
        if count < 0:
            raise ValueError(f"{must}, got {count}")
        return count

    def _locate(self, data_path: Any) -> Any:
        if not isinstance(data_path, (str, os.PathLike)):
            raise TypeError(f"data_path must be a str or a Path, got {type(data_path).__name__}")
        if not self._loads_data and not os.path.exists(data_path):
            raise FileNotFoundError(f"data_path: there is nothing at {str(data_path)!r}")
        # (What _load_data makes of it, nobody else knows.)
        return Path(data_path if self._loads_data else absolute(data_path))

    @property
    def _loads_data(self) -> bool:
        kind = type(self)
        return kind._load_data is not BaseDataset._load_data and kind.index is BaseDataset.index

    @property
    def _count(self) -> int:
        if self._loads_data:
            return len(self._loaded()[0])
        if self._num_entries is None:
            raise RuntimeError(
                f"{type(self).__name__}.__init__ must call super().__init__(data_path), which finds the samples"
            )
        return self._num_entries

    def _load_data(self) -> Any:
        """Fill ``self.data`` and ``self.targets``, in place of :meth:`index` and :meth:`read`. Called once."""

    def _loaded(self) -> tuple[Any, Any]:
        """Return ``data``, and ``targets`` or None, as they are now."""
        data: Any = getattr(self, "data", None)
        targets: Any = getattr(self, "targets", None)
        for name, values in (("data", data), ("targets", () if targets is None else targets)):
            if not isinstance(values, Sized) or not hasattr(values, "__getitem__") or isinstance(values, Mapping):
                raise TypeError(
                    f"{type(self).__name__}._load_data() must fill self.{name} with a list, an array or a tensor, "
                    f"but it is of the type {type(values).__name__}"
                )
        if targets is None or (len(targets) == 0 and len(data) > 0):
            return data, None
        if len(targets) != len(data):
            raise ValueError(
                f"{type(self).__name__} has {len(data)} entries in self.data, but {len(targets)} in self.targets; "
                "there must be one target per sample"
            )
        return data, targets

    def index(self) -> Sequence[Any] | int:
        """List the samples, or count them. Called once, at the start; see :attr:`entries`."""
        if not self._loads_data:
            raise NotImplementedError(
                f"{type(self).__name__} must have a method index(self): the samples, or how many; or a method "
                "_load_data(self) that fills self.data and self.targets"
            )
        # (They are no attributes of the class: other datasets have properties of these names.)
        for name in ("data", "targets"):
            vars(self).setdefault(name, [])
        returned = self._load_data()
        if returned is not None:
            raise TypeError(
                f"{type(self).__name__}._load_data() must fill self.data and self.targets, and return nothing, "
                f"but it returned a {type(returned).__name__}"
            )
        return len(self)

    def read(self, index: int) -> Any:
        """Load sample ``index``, from 0 to ``len(self) - 1``.

        Called by several threads at once only if the class or the object says ``thread_safe = True``.
        """
        if not self._loads_data:
            raise NotImplementedError(f"{type(self).__name__} must have a method read(self, index)")
        data, targets = self._loaded()
        # (The index of a pandas object is its label, not its position.)
        sample = getattr(data, "iloc", data)[index]
        return sample if targets is None else (sample, getattr(targets, "iloc", targets)[index])

    def __copy__(self) -> Self:
        """Return a dataset that keeps what it reads itself, since it may be changed to read other samples."""
        other = type(self).__new__(type(self))
        state: dict[str, Any] = {**self.__getstate__(), "_kept": copy.copy(self._kept)}  # type: ignore[dict-item]
        state |= {name: PerProcess() for name, value in state.items() if isinstance(value, PerProcess)}
        getattr(other, "__setstate__", vars(other).update)(state)
        return other

    @property
    def memory(self) -> int:
        """The most bytes that the loading mode may keep."""
        share = {LoadingMode.EAGER: EAGER_SHARE, LoadingMode.CACHED: _CACHED_SHARE}
        return int(share.get(self.loading_mode, 0) * granted_memory())

    def _keep(self) -> SampleStore | None:
        is_in_memory = self._loads_data and type(self).read is BaseDataset.read
        if is_in_memory or self.loading_mode not in (LoadingMode.EAGER, LoadingMode.CACHED):
            return None
        store = SampleStore(self._count, self.memory)
        store.native.follow_rule("all")
        if self.loading_mode is LoadingMode.EAGER:

            def load(index: int) -> None:
                try:
                    store.load(index, self.read)
                except Exception as error:
                    error.add_note(f"foreload: while loading sample {index} of {str(self.data_path)!r}")
                    raise

            for _ in (
                track_threads(load, range(self._count), "reading samples", after=1)
                if self._allows_threads
                else track(map(load, range(self._count)), "reading samples", total=self._count, after=1)
            ):
                pass
            missing = self._count - int(store.residents().sum()) - len(store.uncacheable)
            if missing > 0:
                self._too_large(missing)
            elif store.uncacheable:
                self._has_uncacheable(min(store.uncacheable))
        return store

    @property
    def _allows_threads(self) -> bool:
        """Whether several threads may call :meth:`read`: it is foreload's own, or its author says so."""
        is_own = type(self).read.__module__.partition(".")[0] == BaseDataset.__module__.partition(".")[0]
        return is_own or getattr(self, "thread_safe", None) is True

    def user_code(self) -> Iterable[Any]:
        """Return the transforms; see :class:`foreload.protocol.UserCode`."""
        return self.transform, self.target_transform

    def _too_large(self, missing: int) -> None:
        raise MemoryError(
            f"{missing} of {self._count} samples of {str(self.data_path)!r} do not fit into {self.memory:,} "
            "bytes; use LoadingMode.CACHED, which keeps what fits"
        )

    def _has_uncacheable(self, index: int) -> None:
        raise TypeError(
            f"EAGER keeps all samples, but sample {index} of {str(self.data_path)!r} cannot be kept (a warning "
            "says why); return something else from read(), or use LoadingMode.LAZY"
        )

    def __len__(self) -> int:
        """Count the samples."""
        return self._count

    def __getitem__(self, index: int) -> Any:
        """Load one sample and transform it."""
        position = check_index(index, self._count)
        return self.finish_sample(position, self.prepare_sample(position))

    def prepare_sample(self, index: int, keep: Keep = "auto") -> Any:
        """Load the part of a sample that is the same in each epoch, for the cache."""
        if self._kept is None:
            return self.read(index)
        if self.loading_mode is LoadingMode.CACHED:
            self._pressure.check(self._kept)
        return self._kept.load(index, self.read)

    def finish_sample(self, index: int, prepared: Any) -> Any:
        """Apply the transforms."""
        if self.transform is None and self.target_transform is None:
            return prepared
        if not (isinstance(prepared, tuple) and len(prepared) == 2):
            if self.target_transform is not None:
                raise TypeError(
                    f"target_transform needs read() to return (sample, target), got {type(prepared).__name__}"
                )
            return self.transform(prepared) if self.transform is not None else prepared
        sample, target = prepared
        if self.transform is not None:
            sample = self.transform(sample)
        return sample, target if self.target_transform is None else self.target_transform(target)

    def read_many(self, indices: Sequence[int]) -> Sequence[Any]:
        """Load several samples, before the transforms, or the exceptions that kept them from being loaded.

        Override it where neighbours are better read together; :meth:`stream` asks for these.
        """
        found: list[Any] = []
        for index in map(int, indices):
            try:
                found.append(self.prepare_sample(index))
            except Exception as error:
                found.append(error)
        return found

    def storage_blocks(self, size: int) -> Sequence[int] | Indices:
        """Return the first sample of each block that :meth:`stream` should read as a whole: numbers from 0 on.

        Blocks of ``size`` samples or fewer are shuffled well; larger ones should have a reason.
        """
        return runs_of(0, len(self), size)
