"""Pictures, and a watch over what tests leave behind."""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Iterator
from multiprocessing import util
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image

from tests import leftovers, programs

# The same examples every time, and no clock; more of them with --hypothesis-profile=thorough.
settings.register_profile("foreload", deadline=None, derandomize=True, database=None, max_examples=25)
settings.register_profile("thorough", settings.get_profile("foreload"), max_examples=100)
settings.load_profile("foreload")

collect_ignore = [
    "scripts",
    "normalize/interpreted.py",
    "datasets/interpreted.py",
]  # run by tests, in processes of their own

gc.disable()  # while modules are imported and thousands of tests are made, none of which becomes garbage

leftovers.interruptible()
leftovers.adopt_orphans()
# One fork server for all tests; it has imported what takes its children longest.
multiprocessing.set_forkserver_preload(["torch", "foreload", "pytest", "hypothesis", "numpy"])


def values_of(item: pytest.Item) -> set[tuple[str, tuple[int, ...]]]:
    """Return what tells a case of a test from its other cases: the values of its parameters, by identity."""
    parameters = dict(getattr(item, "callspec", SimpleNamespace(params={})).params)
    found = set()
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0] if isinstance(mark.args[0], str) else ",".join(mark.args[0])
        together = tuple(id(parameters.pop(name.strip(), None)) for name in names.split(","))
        found.add((names, together))
    return found | {(name, (id(value),)) for name, value in parameters.items()}


@pytest.hookimpl(tryfirst=True)  # before slow tests are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to the slow tests the cases that show no new value of a parameter; fewer stay if ``sampled``."""
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not item.get_closest_marker("slow"):
            groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in groups.values():
        values = {item: values_of(item) for item in cases}
        sampled = cases[0].get_closest_marker("sampled")
        most = sampled.args[0] if sampled else len(cases)
        unseen = set().union(*values.values())
        for _ in range(min(most, len(cases))):
            # The next is the one with the most values that none before it had.
            best = max(cases, key=lambda item: len(values[item] & unseen))
            unseen -= values[best]
            cases.remove(best)
            if not unseen and not sampled:
                break
        for item in cases:
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Leave what has been imported out of garbage collections, of which tests make thousands."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call() -> None:
    """Let all tests have one environment: workers are started anew for each that differs.

    (pytest gives a test's name in this variable, and removes it itself after the test's teardown.)
    """
    os.environ.pop("PYTEST_CURRENT_TEST", None)


def pytest_sessionfinish() -> None:
    """Leave no process behind, whatever happened."""
    programs.stop()
    leftovers.kill(leftovers.processes())


@pytest.fixture(scope="session", autouse=True)
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for temporary files that goes with the session; its path is short, for sockets lie in it."""
    tmp_path_factory.getbasetemp()  # pytest's own folders stay elsewhere
    folder = Path(tempfile.mkdtemp(prefix="foreload-tests-"))
    folder.chmod(0o755)  # some tests become another user
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", str(folder))
        yield folder
    # multiprocessing's own folder lies in it, and is removed when the interpreter exits.
    util.Finalize(None, shutil.rmtree, (folder, True), exitpriority=-200)


@pytest.fixture(scope="module", autouse=True)
def no_memory_or_file_is_left_behind(temporary_folder: Path) -> Iterator[None]:
    """Every module ends with the shared memory and the temporary files that it began with."""
    memory, files = leftovers.shared_memory(), leftovers.temporary_files(temporary_folder)
    yield
    assert not leftovers.wait_until_none(lambda: leftovers.shared_memory() - memory)
    assert not leftovers.wait_until_none(lambda: leftovers.temporary_files(temporary_folder) - files)


@pytest.fixture(autouse=True)
def no_thread_or_process_is_left_behind() -> Iterator[None]:
    """Every test ends with the threads and the processes that it began with."""
    threads, processes = leftovers.threads(), leftovers.processes()
    yield
    left = leftovers.wait_until_none(lambda: leftovers.running(processes))
    described = [leftovers.describe(pid) for pid in left]
    leftovers.kill(left)
    assert not described
    assert not leftovers.wait_until_none(lambda: leftovers.threads() - threads)


@pytest.fixture
def two_cores() -> Iterator[None]:
    """Let the test have two cores, whatever the machine has: what is chosen and tuned depends on them."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:2])
    yield
    os.sched_setaffinity(0, cores)


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth shapes, edges and noise, in colour."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / (7 + 9 * c) + y / (11 + 5 * c) + seed) for c in range(3)]
    image = 128 + 80 * np.stack(waves, -1) + rng.normal(0, 18, (height, width, 3))
    image[height // 3 : height // 2, width // 4 : width // 2] = rng.integers(0, 255, 3)
    return Image.fromarray(np.clip(image, 0, 255).astype(np.uint8))


def jpeg(image: Image.Image, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", **{"quality": 90, **options})
    return out.getvalue()


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders with 40 JPEGs of different sizes."""
    root = tmp_path_factory.mktemp("photos")
    for i in range(40):
        folder = root / f"class_{i % 4}"
        folder.mkdir(exist_ok=True)
        (folder / f"{i:03}.jpg").write_bytes(jpeg(photo(80 + 13 * (i % 7), 60 + 17 * (i % 5), i)))
    return root
