"""The store with samples that cannot be pickled, failing reads, and systems that give little."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import textwrap
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from foreload.cache.store import SampleStore
from tests.programs import python

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
    """A class that raises when it is asked for its state."""

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
            assert isinstance(within(300, lambda: store.load(1, lambda _: Refuses(error))), Refuses)


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_an_interrupt_while_a_sample_is_packed_leaves_nothing_claimed(many: bool) -> None:
    store = SampleStore(4, 1 << 16)
    with pytest.raises(KeyboardInterrupt):
        if many:
            store.load_many([0, 1, 2], lambda indices: [Refuses(KeyboardInterrupt()) for _ in indices])
        else:
            store.load(0, lambda _: Refuses(KeyboardInterrupt()))
    for index in range(3):
        assert within(300, lambda index=index: store.load(index, lambda index: index)) == index


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
    worker.join(300)
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
        if workers == "processes":
            arguments["multiprocessing_context"] = "fork"
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
