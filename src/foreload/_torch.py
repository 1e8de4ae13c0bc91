"""Private parts of torch that foreload reads or patches, in one place for when torch changes them."""

from __future__ import annotations

import ctypes
import functools
import inspect
import math
import random
import sys
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as distributed
from torch.autograd import forward_ad, profiler
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh
from torch.overrides import _get_current_function_mode
from torch.utils._device import DeviceContext
from torch.utils.data import BatchSampler, ConcatDataset, StackDataset, Subset, TensorDataset
from torch.utils.data import DataLoader as TorchDataLoader  # as it was when foreload was imported
from torch.utils.data import dataset as torch_dataset
from torch.utils.data._utils import collate as torch_collate
from torch.utils.data._utils import fetch, signal_handling
from torch.utils.data._utils import pin_memory as torch_pin
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data.dataloader import _BaseDataLoaderIter as TorchIterator
from torch.utils.data.dataloader import _DatasetKind

from foreload._libraries import bit_generator, leave_fork_lock

__all__ = [
    "COLLATE",
    "FETCH",
    "FILE_WRITER",
    "TorchDataLoader",
    "TorchIterator",
    "address_of",
    "auto_collates",
    "base_of",
    "begins_again",
    "compute_alone",
    "coo_parts",
    "default_store",
    "draw_seed",
    "expected_length",
    "has_own_randperm",
    "has_plain_tensors",
    "index_sampler",
    "innermost_function_mode",
    "is_collating_tensors",
    "is_defined_in",
    "is_forked_from_cuda",
    "is_of_streams",
    "is_profiled",
    "is_whole_mesh",
    "item_sampler",
    "name_worker_process",
    "new_shared_tensor",
    "only_cuda_device",
    "patch_seed_functions",
    "patch_worker_info",
    "plain_torch_function",
    "seed_worker",
    "set_process_worker_info",
    "set_worker_signal_handlers",
    "storage_uses",
    "tensor_over_file",
    "tensor_version",
    "torch_collate",
    "torch_pin",
    "uses_of",
    "worker_info",
    "worker_rng",
    "wrapper_kind",
]

# The ``__torch_function__`` of a subclass of Tensor whose operations return plain tensors.
plain_torch_function = torch._C._disabled_torch_function_impl
# Where the C++ object of a CPU generator or a storage lies in memory; and what a tensor is a view of, or None.
address_of, base_of = attrgetter("_cdata"), attrgetter("_base")
# Count what refers to a tensor in C++, its Python object and views of it included; the same for a storage.
uses_of = getattr(torch._C.TensorBase, "_use_count", lambda _: 1)
storage_uses = getattr(torch._C, "_storage_Use_Count", None)  # which earlier builds without CUDA lack
# What writes files for ``torch.save()``, which only C++ does: its module and its name.
FILE_WRITER = "torch.serialization", "_open_zipfile_writer_file"
# The code of torch's loader that loads a batch of a map-style dataset, and the code that collates one.
FETCH, COLLATE = fetch._MapDatasetFetcher.fetch.__code__, torch_collate.collate.__code__


def is_defined_in(module: ModuleType, function: Any) -> bool:
    """Whether a module defines a function; ``__module__`` says nothing, as functools.wraps() copies it."""
    return isinstance(function, FunctionType) and function.__globals__ is vars(module)


def is_forked_from_cuda() -> bool:
    """Whether this process was forked from one that had begun to use CUDA, which it therefore cannot."""
    is_bad: Callable[[], bool] | None = getattr(torch._C, "_cuda_isInBadFork", None)  # builds with CUDA have it
    return is_bad is not None and is_bad()


def only_cuda_device() -> int | None:
    """Return the CUDA device that this process uses; None if there are several, or it cannot be known."""
    is_used: Callable[[int], bool] = getattr(torch._C, "_cuda_hasPrimaryContext", lambda number: False)
    used = [number for number in range(torch.cuda.device_count()) if is_used(number)]
    return used[0] if len(used) == 1 else None


def wrapper_kind(dataset: Any) -> type | None:
    """Return which of torch's ``TensorDataset``, ``Subset``, ``ConcatDataset`` and ``StackDataset`` a dataset is.

    None for any other dataset, a class derived from one of them, or one whose methods somebody has replaced.

    >>> wrapper_kind(Subset([10, 20], [1])) is Subset, wrapper_kind([10, 20])
    (True, None)
    """
    kind = type(dataset)
    if kind not in (ConcatDataset, StackDataset, Subset, TensorDataset) or "__getitems__" in vars(dataset):
        return None
    one, many = kind.__getitem__, getattr(kind, "__getitems__", kind.__getitem__)
    is_own = is_defined_in(torch_dataset, one) and (many is one or is_defined_in(torch_dataset, many))
    return kind if is_own else None


_TensorBase, _randperm, _transform = torch._C.TensorBase, torch.randperm, torch._C._functorch.maybe_current_level
_num_dispatch_modes, _num_function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack


def has_plain_tensors() -> bool:
    """Whether torch itself indexes and stacks tensors in the calling thread, as they are in memory.

    Not by a mode (but that of ``set_default_device``), ``torch.func``, dual numbers or a replaced method.
    """
    is_transformed = _transform() is not None or forward_ad._current_level >= 0
    if is_transformed or _num_dispatch_modes() or torch.Tensor.__getitem__ is not _TensorBase.__getitem__:
        return False
    depth: int = _num_function_modes()
    return not depth or all(
        type(torch._C._get_function_stack_at(place)) is DeviceContext for place in range(depth)
    )


def innermost_function_mode() -> Any:
    """Return the mode that the calling thread's calls of torch's functions go to first; None: there is none."""
    return _get_current_function_mode()  # type: ignore[no-untyped-call]


def has_own_randperm() -> bool:
    """Whether ``torch.randperm`` is torch's own, with no mode around that may put something else in its place."""
    return torch.randperm is _randperm and not (_num_dispatch_modes() or _num_function_modes())


def draw_seed(generator: torch.Generator | None = None) -> int:
    """Draw 63 random bits from torch's generator, as its DataLoader draws its base seed."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def index_sampler(loader: Any) -> Any:
    """Return what a DataLoader asks its dataset for: its batch sampler, or its sampler without batching."""
    return loader._index_sampler


def item_sampler(sampler: Any) -> Any:
    """Return the sampler of single samples within an index sampler, if that is torch's own BatchSampler."""
    return sampler.sampler if type(sampler) is BatchSampler else sampler


def auto_collates(loader: Any) -> bool:
    """Whether a DataLoader puts samples together in batches (``batch_size=None`` switches that off)."""
    return bool(loader._auto_collation)


def is_of_streams(loader: Any) -> bool:
    """Whether torch takes a DataLoader's dataset for an iterable one."""
    return getattr(loader, "_dataset_kind", None) == _DatasetKind.Iterable


def begins_again(iterator: Any) -> bool:
    """Whether an iterator of a loader with persistent workers is one that torch begins again for each epoch."""
    return hasattr(iterator, "_reset")


def expected_length(loader: Any) -> int | None:
    """Return the length of an iterable dataset as it said it when ``len(loader)`` was called; None before."""
    return cast("int | None", loader._IterableDataset_len_called)


def worker_info(**fields: Any) -> Any:
    """Make a torch ``WorkerInfo``; from torch 2.13 on it also has the method of the worker and its generators."""
    known = getattr(torch_worker.WorkerInfo, "__dataclass_fields__", ())
    unknown = {"worker_method", "rng"}.difference(known)
    return torch_worker.WorkerInfo(**{name: value for name, value in fields.items() if name not in unknown})


def worker_rng(generators: tuple[random.Random, np.random.RandomState, torch.Generator]) -> Any:
    """Return the ``rng`` of a worker thread's ``WorkerInfo``; None before torch 2.13.

    ``torch.thread_safe_generator()`` returns torch's. NumPy's draws from the same bits as the ``RandomState``.
    """
    kind = getattr(torch_worker, "_RNG", None)
    if kind is None:
        return None
    python, numpy, generator = generators
    own = np.random.Generator(bit_generator(numpy))
    return kind(random_generator=python, torch_generator=generator, numpy_generator=own)


def set_process_worker_info(info: Any) -> None:
    """Set the answer of ``get_worker_info()`` for this whole process."""
    torch_worker._worker_info = info


def _get_worker_info():  # type: ignore[no-untyped-def]
    # Runs with the globals of torch's module.
    return _foreload_info() or _worker_info  # type: ignore[name-defined]  # noqa: F821


def patch_worker_info(lookup: Callable[[], Any]) -> None:
    """Let ``get_worker_info()`` ask ``lookup`` first, wherever user code holds that function by name.

    Its answer is a global of the process otherwise, which is right for worker processes only.
    """
    function = cast(FunctionType, torch_worker.get_worker_info)
    vars(torch_worker)["_foreload_info"] = lookup
    if function.__code__ is not _get_worker_info.__code__:
        function.__code__ = _get_worker_info.__code__


class _PresentGenerator:
    """Stands for torch's global generator in the functions of ``torch.random``."""

    def __init__(self, present: Callable[[], torch.Generator | None]) -> None:
        self._present = present

    def __getattr__(self, name: str) -> Any:
        return getattr(self._present() or torch.default_generator, name)


def patch_seed_functions(present: Callable[[], torch.Generator | None]) -> None:
    """Let ``torch.manual_seed()``, ``get_rng_state()`` and the like be about the generator of the calling thread.

    Wherever user code holds them by name; ``present`` returns that generator, None for the global one.
    """
    names = vars(torch.random)
    names["_foreload_generator"] = _PresentGenerator(present)
    for function in map(inspect.unwrap, filter(inspect.isfunction, list(names.values()))):
        code = function.__code__
        if function.__globals__ is names and "default_generator" in code.co_names:
            renamed = ("_foreload_generator" if name == "default_generator" else name for name in code.co_names)
            function.__code__ = code.replace(co_names=tuple(renamed))


def is_collating_tensors(depth: int) -> bool:
    """Whether the function ``depth`` frames above the caller is torch's own collation of tensors."""
    return sys._getframe(depth + 1).f_code is torch_collate.collate_tensor_fn.__code__


def seed_worker(base: int, worker: int) -> None:
    """Seed the generators of Python, torch and NumPy in a worker process as torch does."""
    random.seed(base + worker)
    # For devices that may be used later, torch notes the seed with the present stack, whose files it reads.
    try:
        is_without_devices = torch.accelerator.current_accelerator() is None
    except RuntimeError:  # in torch 2.6
        is_without_devices = True
    (torch.default_generator if is_without_devices else torch).manual_seed(base + worker)
    leave_fork_lock()
    np.random.seed(torch_worker._generate_state(base, worker))  # type: ignore[no-untyped-call]


def set_worker_signal_handlers() -> None:
    """Let a worker process say what killed it (bus error, segmentation fault), as torch's workers do."""
    signal_handling._set_worker_signal_handlers()  # type: ignore[attr-defined]


def is_whole_mesh(mesh: DeviceMesh) -> bool:
    """Whether a device mesh is not a part of another one."""
    if not hasattr(mesh, "_get_root_mesh"):  # torch 2.6
        return vars(device_mesh)["_mesh_resources"].get_root_mesh(mesh) is mesh
    return mesh._get_root_mesh() is mesh


def is_profiled() -> bool:
    """Whether torch's profiler runs."""
    return bool(profiler._is_profiler_enabled)


def default_store() -> Any:
    """Return the key-value store that all ranks of ``torch.distributed`` reach."""
    return distributed.distributed_c10d._get_default_store()


def tensor_version(tensor: torch.Tensor) -> int | None:
    """Return how often torch changed a tensor in place; None for one of inference mode, which is not counted."""
    return None if tensor.is_inference() else int(tensor._version)


def coo_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return indices and values of a sparse COO tensor as they are; the public methods want it coalesced."""
    return tensor._indices(), tensor._values()


def new_shared_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised tensor in memory that processes share, as torch's workers collate into."""
    size = math.prod(shape) * dtype.itemsize
    storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, tuple(shape))  # type: ignore[call-overload,no-any-return]


def tensor_over_file(file: int, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same shape over the beginning of a file in memory, which torch sends without a copy.

    Torch's ``file_descriptor`` strategy sends the file that a storage was made of; this makes one of ``file``.
    """
    storage = torch.UntypedStorage._new_shared_fd_cpu(file, like.untyped_storage().nbytes())  # type: ignore[attr-defined]
    empty = torch.empty(0, dtype=like.dtype, device="cpu")
    return empty.set_(storage, like.storage_offset(), like.shape, like.stride())


def name_worker_process() -> None:
    """Name the calling process, in ``ps`` and the like, as torch names its workers."""
    torch.multiprocessing._set_thread_name("pt_data_worker")


def compute_alone() -> None:
    """Let what torch computes in the calling thread be computed by that thread alone.

    For OpenMP (5.2, nthreads-var), and for MKL, which has a number of its own once ``torch.set_num_threads`` was
    called. That function would change it for later threads too, which are not all foreload's.
    """
    torch.get_num_threads()  # sets it in a thread that has not computed yet
    for name in ("omp_set_num_threads", "MKL_Set_Num_Threads_Local"):
        if (set_num_threads := getattr(_torch_cpu(), name, None)) is not None:  # torch may be built without
            set_num_threads(1)


@functools.cache
def _torch_cpu() -> ctypes.CDLL:
    # Its own OpenMP and MKL: another library may have brought others.
    found = [path for path in Path(torch.__file__).parent.glob("lib/libtorch_cpu.*") if path.suffix != ".lib"]
    return ctypes.CDLL(str(found[0]) if found else None)
