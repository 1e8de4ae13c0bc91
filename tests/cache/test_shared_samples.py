"""The store with samples of all kinds, failing reads, killed processes, and systems that give little."""

from __future__ import annotations

import array
import collections
import contextlib
import dataclasses
import decimal
import gc
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from foreload.cache.serialize import deserialize, serialize
from foreload.cache.store import SampleStore
from tests.programs import python


class Typed(NamedTuple):
    image: torch.Tensor
    label: int = 3


@dataclasses.dataclass(frozen=True)
class Frozen:
    boxes: np.ndarray[Any, Any]
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)


class Slotted:
    __slots__ = ("rows",)

    def __init__(self, rows: Any) -> None:
        self.rows = rows


def there_and_back(sample: Any) -> Any:
    """Through a store, as any worker would have it."""
    store = SampleStore(1, 1 << 22)
    store.load(0, lambda _: sample)
    return store.load(0, lambda _: pytest.fail("it is cached"))


DTYPES = [
    value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
    and value.itemsize
    and not str(value).startswith(("torch.q", "torch.bits", "torch.int1", "torch.uint1"))
]
DTYPES = [
    dtype
    for dtype in dict.fromkeys(DTYPES)
    if dtype in (torch.int16, torch.uint16) or not any(f"int{bits}" == str(dtype)[-4:] for bits in range(1, 8))
]


def filled(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Any bits at all (NaN with a payload among them)."""
    size = int(np.prod(shape)) * dtype.itemsize
    content = np.random.default_rng(seed).integers(0, 2 if dtype is torch.bool else 256, size, np.uint8)
    memory = torch.from_numpy(content)
    return memory.view(dtype).view(shape) if memory.numel() else torch.empty(shape, dtype=dtype)


def bits(tensor: torch.Tensor) -> bytes:
    rows = tensor.clone(memory_format=torch.contiguous_format)
    return rows.view(-1).view(torch.uint8).numpy().tobytes() if rows.numel() else b""


@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 4), max_size=4),
    st.data(),
)
def test_tensors_of_all_types_and_strides_come_back_bit_for_bit(
    dtype: torch.dtype, shape: list[int], data: st.DataObject
) -> None:
    whole = filled(dtype, tuple(shape), 3)
    order = data.draw(st.permutations(range(len(shape))))
    view = whole.permute(*order) if order else whole
    for axis in range(view.dim()):
        step = data.draw(st.integers(1, 3))
        view = view[(slice(None),) * axis + (slice(data.draw(st.integers(0, 2)), None, step),)]
    if view.dim() and data.draw(st.booleans()):
        view = view.unsqueeze(0).expand(3, *view.shape)
    back = there_and_back([view])[0]
    assert (back.dtype, back.shape, back.layout) == (view.dtype, view.shape, view.layout)
    assert bits(back) == bits(view)
    if back.numel():
        torch.empty(0, dtype=torch.uint8).set_(back.untyped_storage()).fill_(1)  # writable
        assert set(bits(back)) == {1}


STRUCTURE = np.dtype([("box", "<f4", (4,)), ("name", "S5"), ("wide", "U3"), ("big", ">i8")])


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(3, STRUCTURE),
        np.zeros((2, 0), STRUCTURE),
        np.rec.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
        np.array([{"a": 1}, None, [1, 2]], object),
        np.array("one word"),
        np.array(["2020-01-01", "NaT"], "M8[s]"),
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(24).reshape(2, 3, 4)[::-1, :, ::2],
        np.broadcast_to(np.arange(3), (4, 3)),
        np.ma.masked_array([1, 2, 3], mask=[0, 1, 0]),
        np.float16(2.5),
        np.datetime64("2020-01-01"),
        np.zeros((0, 5), np.longdouble),
    ],
    ids=lambda values: f"{type(values).__name__} {values.dtype} {values.shape}",
)
def test_arrays_of_all_kinds_come_back(values: Any) -> None:
    values_back, again = there_and_back((values, {"again": values}))
    for back in (values_back, again["again"]):
        assert type(back) is type(values)
        assert (back.dtype, back.shape) == (values.dtype, values.shape)
        assert str(back) == str(values)
        if isinstance(back, np.ndarray):
            assert back.flags.writeable


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I", "F", "I;16"])
def test_images_of_all_modes_come_back(mode: str) -> None:
    image = Image.effect_noise((7, 5), 50)
    image = image.convert(mode) if mode != "I;16" else image.convert("I").convert("I;16")
    back = there_and_back((image, 1))[0]
    assert (back.mode, back.size, back.getpalette()) == (image.mode, image.size, image.getpalette())
    assert back.tobytes() == image.tobytes()


def test_other_values_come_back() -> None:
    sample = {
        "typed": Typed(torch.ones(2)),
        "frozen": Frozen(np.arange(4), {"x": torch.zeros(0)}),
        "ordered": collections.OrderedDict(b=1, a=2),
        "counted": collections.Counter("hello"),
        "words": ("", "ä\0ö", b"", bytearray(b"\0\1")),
        "path": pathlib.PurePosixPath("/a"),
        "numbers": [1 << 80, -0.0, 1e400, 1j, decimal.Decimal("1.1"), True, None, ...],
        "sets": [{1, 2}, frozenset({3})],
        "array": array.array("d", [1, 2]),
        "class": Typed,
        "size": torch.Size([1, 2]),
        "dtype": torch.bfloat16,
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "sparse": torch.eye(3).to_sparse_csr(),
        "meta": torch.empty(2, 3, device="meta"),
    }
    back = there_and_back(sample)
    assert list(back) == list(sample)
    assert isinstance(back["typed"], Typed)
    assert torch.equal(back["typed"].image, torch.ones(2))
    assert isinstance(back["frozen"], Frozen)
    assert back["frozen"].extra["x"].shape == (0,)
    for key in ("ordered", "counted", "words", "path", "numbers", "sets", "array", "class", "size", "dtype"):
        assert back[key] == sample[key]
        assert type(back[key]) is type(sample[key])
    assert isinstance(back["parameter"], torch.nn.Parameter)
    assert torch.equal(back["sparse"].to_dense(), torch.eye(3))
    assert back["meta"].shape == (2, 3)
    assert back["meta"].device.type == "meta"
    assert there_and_back(Slotted([1])).rows == [1]


def test_a_row_of_something_large_takes_what_the_row_takes() -> None:
    large = torch.zeros(1000, 1000)
    for row in (large[3], large[:, 3], large.numpy()[3]):
        assert sum(map(len, serialize(row))) < 6000


def test_what_was_given_outlives_the_store() -> None:
    store = SampleStore(60, 20 * 900)
    store.native.follow_rule("recent")
    given_out = []
    for index in [*range(60), *range(60)]:
        for _ in range(2):
            sample = store.load(index, lambda index: (np.full(100, index), torch.full((5,), index)))
            given_out.append((index, sample))
    del store
    gc.collect()
    for index, (x, y) in given_out:
        assert (x == index).all()
        assert (y == index).all()
        x += 1


def test_each_hit_is_a_copy_of_its_own() -> None:
    store = SampleStore(1, 1 << 16)
    store.load(0, lambda _: (torch.zeros(4), [1]))
    one, other = (store.load(0, lambda _: None) for _ in range(2))
    one[0].fill_(7)
    one[1].append(2)
    assert other[0].sum() == 0
    assert other[1] == [1]


def test_the_sample_that_is_kept_is_the_one_that_was_loaded() -> None:
    store = SampleStore(1, 1 << 16)
    first = store.load(0, lambda _: torch.zeros(4))
    first += 1  # as a transform in place does
    assert store.load(0, lambda _: None).sum() == 0


# Samples that pickle has nothing to say to, or says the wrong thing.


def generator_sample(index: int) -> Any:
    return (i for i in [index])


def file_sample(index: int) -> Any:
    return open(os.devnull)


def lock_sample(index: int) -> Any:
    return threading.Lock()


def local_sample(index: int) -> Any:
    class Local:
        pass

    return Local()


@pytest.mark.parametrize("read", [generator_sample, file_sample, lock_sample, local_sample])
def test_samples_that_cannot_be_pickled_are_loaded_each_time(read: Callable[[int], Any]) -> None:
    store = SampleStore(3, 1 << 16)
    calls = []

    def counted(index: int) -> Any:
        calls.append(index)
        return read(index)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", UserWarning)
        for index in [1, 1, 2, 1]:
            sample = store.load(index, counted)
            assert type(sample).__name__ == type(read(index)).__name__
            with contextlib.suppress(AttributeError):
                sample.close()
        samples = store.load_many([0, 1], lambda indices: [counted(index) for index in indices])
        assert len(samples) == 2
    said = [str(warning.message) for warning in warned if "cannot be cached" in str(warning.message)]
    assert len(said) == 1
    assert "sample 1" in said[0]
    assert calls == [1, 1, 2, 1, 0, 1]
    counts = store.native.counts()
    assert (counts["hits"], counts["misses"], counts["used"]) == (0, 6, 0)


class Refuses:
    """What a class of somebody's may do when it is asked for its state."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error


def within(seconds: float, work: Callable[[], Any]) -> Any:
    """The result, or a failure where it does not come."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert results, "it hangs, or failed"
    return results[0]


@pytest.mark.parametrize(
    "error", [KeyError("x"), OSError("x"), AssertionError(), MemoryError(), EOFError("x")], ids=repr
)
def test_whatever_a_sample_raises_when_it_is_pickled_it_is_loaded_each_time(error: Exception) -> None:
    store = SampleStore(2, 1 << 16)
    with pytest.warns(UserWarning, match="cannot be cached"):
        for _ in range(2):
            assert isinstance(within(5, lambda: store.load(1, lambda _: Refuses(error))), Refuses)


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_an_interrupt_while_a_sample_is_packed_leaves_nothing_claimed(many: bool) -> None:
    store = SampleStore(4, 1 << 16)
    with pytest.raises(KeyboardInterrupt):
        if many:
            store.load_many([0, 1, 2], lambda indices: [Refuses(KeyboardInterrupt()) for _ in indices])
        else:
            store.load(0, lambda _: Refuses(KeyboardInterrupt()))
    for index in range(3):
        assert within(5, lambda index=index: store.load(index, lambda index: index)) == index


class Awkward(Exception):
    """Pickles, but cannot be made again from its args: common among exceptions and C extensions."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


def test_samples_that_cannot_be_unpickled_are_loaded_each_time() -> None:
    store = SampleStore(2, 1 << 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            assert isinstance(store.load(1, lambda _: Awkward(1, "x")), Awkward)


# Failures of reading, and what they do to others.


def full(index: int) -> np.ndarray[Any, Any]:
    return np.full(1000, index)


def fail(index: int) -> Any:
    raise OSError("the network is away")


def die(index: int) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def keep_only(store: SampleStore, *members: int) -> None:
    chosen = np.zeros(len(store), np.uint8)
    chosen[list(members)] = 1
    store.native.follow_members(chosen)


@pytest.fixture
def reused() -> SampleStore:
    """A store in which sample 3 lies where sample 0 was."""
    store = SampleStore(6, 27_000)  # for three
    keep_only(store, 0, 1, 2)
    for index in (0, 1, 2):
        store.load(index, full)
    keep_only(store, 1, 2, 3)
    store.load(3, full)
    assert store.residents().tolist() == [False, True, True, True, False, False]
    keep_only(store, 0, 1, 2, 3)
    return store


def test_a_failed_read_does_not_give_away_the_memory_of_another_sample(reused: SampleStore) -> None:
    with pytest.raises(OSError, match="the network is away"):
        reused.load(0, fail)
    keep_only(reused, 0, 1, 2, 3, 4)
    for index in (4, 0, 1, 2, 3):
        assert np.unique(reused.load(index, full)).tolist() == [index]


def test_a_killed_reader_does_not_give_away_the_memory_of_another_sample(reused: SampleStore) -> None:
    worker: Any = multiprocessing.get_context("fork").Process(target=reused.load, args=(0, die))
    worker.start()
    worker.join(20)
    assert worker.exitcode == -signal.SIGKILL
    for index in (0, 4, 1, 2, 3):
        assert np.unique(reused.load(index, full)).tolist() == [index]


FLAKY = """
    import sys, numpy as np, torch
    from torch.utils.data import Dataset, RandomSampler
    import foreload as fl

    class Flaky(Dataset):
        random = np.random.default_rng(0)
        def __len__(self): return 60
        def __getitem__(self, index):
            if self.random.random() < 0.05:
                raise OSError("flaky")
            return torch.full((500 + index * 37 % 500,), index)

    dataset = Flaky()
    sampler = RandomSampler(dataset, replacement=True, generator=torch.Generator().manual_seed(0))
    workers = {"num_workers": int(sys.argv[1]), "workers": "threads"}
    loader = fl.DataLoader(dataset, batch_size=None, sampler=sampler, cache=195_000, **workers)
    failures = 0
    for epoch in range(20):
        iterator = iter(loader)
        while True:
            try:
                sample = next(iterator)
            except StopIteration:
                break
            except OSError:
                failures += 1
                continue
            index = int(sample[0])
            assert (sample == index).all() and len(sample) == 500 + index * 37 % 500
    counts = loader.stats()["cache"]
    assert failures > 10 and counts["hits"] > 300 and counts["peak"] <= counts["room"], (failures, counts)
    print("fine")
"""


def run_python(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: what fails here may crash, or forbid itself something."""
    return python("-c", textwrap.dedent(program), *arguments)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_dataset_that_fails_now_and_then_gives_right_samples(workers: str) -> None:
    done = run_python(FLAKY, workers)
    assert done.stdout == "fine\n", done.stderr[-2000:]


# Many at once.


def size_of(index: int, turn: int) -> int:
    return 1 + (index * 7919 + turn * 104_729) % 4000


def varied(index: int) -> np.ndarray[Any, Any]:
    return np.full(size_of(index, int(time.monotonic() * 1000)), index)


def stress(store: SampleStore, seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    for index in random.integers(0, len(store), count).tolist():
        sample = store.load(index, varied)
        assert len(sample)
        assert (sample == index).all()


@pytest.mark.parametrize("rule", ["all", "recent", "members", "accesses"])
@pytest.mark.parametrize("budget", [50_000, 400_000])
def test_threads_and_processes_never_take_more_than_the_budget(rule: str, budget: int) -> None:
    samples = 80
    store = SampleStore(samples, budget, accesses=20_000)
    random = np.random.default_rng(0)
    if rule == "members":
        keep_only(store, *random.permutation(samples)[:40].tolist())
    elif rule == "accesses":
        store.native.follow_accesses(
            random.integers(0, samples, 20_000),
            random.integers(0, 2, 20_000).astype(np.uint8),
            np.ones(samples, np.uint8),
        )
    else:
        store.native.follow_rule(rule)
    context: Any = multiprocessing.get_context("fork")
    workers = [context.Process(target=stress, args=(store, seed, 1500)) for seed in range(3)]
    for worker in workers:
        worker.start()
    errors: list[BaseException] = []

    def thread(seed: int) -> None:
        try:
            stress(store, seed, 1500)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=thread, args=(seed,)) for seed in (10, 11)]
    for each in threads:
        each.start()
    seen = 0
    while any(worker.is_alive() for worker in workers) or any(each.is_alive() for each in threads):
        counts = store.native.counts()
        seen = max(seen, counts["used"])
        assert counts["used"] <= counts["room"]
        time.sleep(0.001)
    for each in [*threads, *workers]:
        each.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert not errors
    counts = store.native.counts()
    assert seen <= counts["peak"] <= counts["room"] <= budget
    assert counts["hits"] + counts["misses"] == 5 * 1500
    assert counts["hits"] > 0


def stress_for_ever(store: SampleStore, seed: int) -> None:
    while True:
        stress(store, seed, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["all", "recent", "accesses"])
def test_processes_killed_at_any_moment_do_no_harm(rule: str) -> None:
    samples = 50
    store = SampleStore(samples, 300_000, accesses=100_000)
    random = np.random.default_rng(0)
    if rule == "accesses":
        store.native.follow_accesses(
            random.integers(0, samples, 100_000),
            random.integers(0, 2, 100_000).astype(np.uint8),
            np.ones(samples, np.uint8),
        )
    else:
        store.native.follow_rule(rule)
    context: Any = multiprocessing.get_context("fork")
    for seed in range(12):
        workers = [context.Process(target=stress_for_ever, args=(store, 10 * seed + i)) for i in range(3)]
        for worker in workers:
            worker.start()
        time.sleep(0.01 + 0.03 * random.random())
        within(20, lambda seed=seed: stress(store, 1000 + seed, 200) or True)
        for worker in workers:
            assert worker.is_alive(), f"it found a wrong sample, exit code {worker.exitcode}"
            os.kill(worker.pid, signal.SIGKILL)
        # Some are not yet waited for.
        within(20, lambda seed=seed: stress(store, 2000 + seed, 200) or True)
        for worker in workers:
            worker.join(20)
    counts = store.native.counts()
    assert counts["used"] <= counts["peak"] <= counts["room"] <= 300_000
    for index in range(samples):
        assert (within(20, lambda index=index: store.load(index, varied)) == index).all()


def test_a_fork_after_use_shares_and_a_parent_that_ends_first_is_no_harm() -> None:
    program = """
        import os, sys, time
        import numpy as np
        from foreload.cache.store import SampleStore
        store = SampleStore(5, 1 << 16)
        for index in range(3):
            store.load(index, lambda index: np.full(9, index))
        out, into = os.pipe()
        if os.fork() == 0:
            os.close(into)
            os.read(out, 1)  # the parent is gone
            assert store.residents().tolist() == [True, True, True, False, False]
            for index in range(5):
                assert (store.load(index, lambda index: np.full(9, index)) == index).all()
            counts = store.native.counts()
            assert (counts["hits"], counts["misses"]) == (3, 5), counts
            os.write(1, b"fine")
            os._exit(0)
        os.close(out)
        os._exit(0)
    """
    # Not until the pipe is closed by the last that has it open.
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert done.stdout == "fine", done.stderr


@pytest.mark.parametrize("method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_whoever_shares_a_store_leaves_nothing_behind(method: str) -> None:
    def left() -> tuple[int, list[str], int]:
        gc.collect()
        maps = pathlib.Path("/proc/self/maps").read_text().count("memfd:foreload")
        return (
            len(os.listdir("/proc/self/fd")),
            sorted(name for name in os.listdir("/dev/shm") if "foreload" in name),
            maps,
        )

    context: Any = multiprocessing.get_context(method)
    warm = context.Process(target=int)  # starts the fork server and the like
    warm.start()
    warm.join(60)
    del warm
    before = left()
    store = SampleStore(80, 1 << 20)
    workers = [context.Process(target=stress, args=(store, seed, 50)) for seed in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert store.native.counts()["misses"] < 200
    del store, worker, workers
    assert left() == before


def test_a_reader_killed_in_the_middle_of_a_copy_holds_nothing() -> None:
    # Samples so large that a kill meets a copy nearly every time.
    store = SampleStore(3, 67 << 20)  # for two

    def large(index: int) -> np.ndarray[Any, Any]:
        return np.full(4 << 20, index, np.int64)

    def read_for_ever() -> None:
        while True:
            store.load(0, large)

    store.load(0, large)
    for _ in range(4):
        worker: Any = multiprocessing.get_context("fork").Process(target=read_for_ever)
        worker.start()
        time.sleep(0.05)
        os.kill(worker.pid, signal.SIGKILL)
        keep_only(store, 1, 2)
        # Not without the memory of sample 0, which the process was reading. It is not yet waited for.
        for index in (1, 2):
            assert within(20, lambda index=index: store.load(index, large))[5] == index
        assert store.residents().tolist() == [False, True, True]
        worker.join(20)
        keep_only(store, 0)
        assert within(20, lambda: store.load(0, large))[5] == 0
        assert store.residents().tolist() == [True, False, False]


# Systems that give little.

FORBID_MEMFD = """
    import ctypes, errno, os, platform, struct, sys, warnings

    def forbid_memfd():
        number = {"x86_64": 319, "aarch64": 279}[platform.machine()]
        libc = ctypes.CDLL(None, use_errno=True)
        def step(code, k, yes=0, no=0):
            return struct.pack("HBBI", code, yes, no, k)
        program = (step(0x20, 0) + step(0x15, number, 0, 1) + step(0x06, 0x00050000 | errno.ENOSYS)
                   + step(0x06, 0x7FFF0000))
        memory = ctypes.create_string_buffer(program)
        class Filter(ctypes.Structure):
            _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_void_p)]
        filter = Filter(4, ctypes.cast(memory, ctypes.c_void_p))
        libc.prctl(38, 1, 0, 0, 0)
        if libc.prctl(22, 2, ctypes.byref(filter), 0, 0):
            sys.exit(77)
        try:
            os.memfd_create("x")
        except OSError:
            return
        sys.exit(77)

    import torch
    import foreload as fl
    from torch.utils.data import Dataset

    class Rows(Dataset):
        def __len__(self): return 20
        def __getitem__(self, index): return torch.full((100,), index)

    forbid_memfd()
    for workers in (None, "threads", "processes"):
        arguments = {"num_workers": 2, "workers": workers} if workers else {"num_workers": 0}
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            loader = fl.DataLoader(Rows(), batch_size=5, cache="1MiB", **arguments)
            for _ in range(2):
                assert [batch.tolist() for batch in loader] == [
                    [[i] * 100 for i in range(start, start + 5)] for start in range(0, 20, 5)]
        said = [str(w.message) for w in warned if "memfd_create" in str(w.message)]
        assert len(said) == 1, said
        hits = loader.stats()["cache"]["hits"]
        assert hits == (0 if workers == "processes" else 20), hits
    print("fine")
"""


def test_without_memfd_threads_still_share_and_it_is_said() -> None:
    done = run_python(FORBID_MEMFD)
    if done.returncode == 77:
        pytest.skip("no seccomp filters here")
    assert done.stdout == "fine\n", done.stderr[-2000:]


LITTLE_MEMORY = """
    import resource
    import torch
    import foreload as fl
    from torch.utils.data import TensorDataset

    used = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
    rows = torch.utils.data.Subset(list(range(20)), range(20))
    try:
        list(fl.DataLoader(rows, num_workers=0, cache="256MiB"))
    except OSError as error:
        print(error)
    assert len(list(fl.DataLoader(rows, num_workers=0, cache="1MiB"))) == 20
"""


def test_without_room_in_the_address_space_the_error_is_clear() -> None:
    done = run_python(LITTLE_MEMORY)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "no memory for a cache of 268" in done.stdout


def test_the_error_of_too_little_memory_names_no_file() -> None:
    assert not run_python(LITTLE_MEMORY).stdout.strip().endswith("''")


def test_packed_samples_are_aligned_for_any_type() -> None:
    memory = np.concatenate(
        serialize([torch.ones(3, dtype=torch.uint8), torch.ones(5, dtype=torch.complex128), np.ones(2)])
    )
    first, second, third = deserialize(memory)
    offsets = [value.data_ptr() - memory.ctypes.data for value in (first, second)]
    assert all(offset % 64 == 0 for offset in offsets)
    assert (third.ctypes.data - memory.ctypes.data) % 64 == 0
