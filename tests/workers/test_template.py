"""Workers started by spawn and forkserver are forked from one template, and are what they would have been."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import foreload as fl
from foreload.workers.start import template
from tests import leftovers
from tests.programs import python

METHODS = ["spawn", "forkserver"]

calls = 0  # of this process


class Facts(Dataset[Any]):
    """Samples that say where they are loaded."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        global calls
        calls += 1
        return {
            "parent": os.getppid(),
            "method": multiprocessing.get_start_method(),
            "setting": os.environ.get("FORELOAD_TEST_SETTING", ""),
            "cores": sorted(os.sched_getaffinity(0)),
            "calls": calls,
            "numpy": np.random.rand(),
            "umask": umask(),
            "ignored": signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN,
            "blocked": signal.SIGUSR1 in signal.pthread_sigmask(signal.SIG_BLOCK, []),
        }


def umask() -> int:
    """The present mask for new files."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def first(samples: list[Any]) -> Any:
    return samples[0]


def epoch(method: str, **options: Any) -> list[Any]:
    return list(
        fl.DataLoader(
            Facts(), batch_size=1, num_workers=2, multiprocessing_context=method, collate_fn=first, **options
        )
    )


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", METHODS)
def test_each_epoch_has_new_workers_of_one_template(method: str) -> None:
    epochs = [epoch(method) for _ in range(2)]
    for samples in epochs:
        assert {sample["parent"] for sample in samples} == {template.template_process_id()}
        assert {sample["method"] for sample in samples} == {method}
        assert [sample["calls"] for sample in samples] == [1, 1, 2, 2]


@pytest.mark.slow
def test_what_a_new_process_would_inherit_is_that_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {sample["setting"] for sample in epoch("spawn")} == {""}
    monkeypatch.setenv("FORELOAD_TEST_SETTING", "other")
    assert {sample["setting"] for sample in epoch("spawn")} == {"other"}
    cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(cores)})
        assert all(sample["cores"] == [min(cores)] for sample in epoch("spawn"))
    finally:
        os.sched_setaffinity(0, cores)
    assert all(sample["cores"] == sorted(cores) for sample in epoch("spawn"))


@pytest.mark.slow
def test_files_and_signals_are_as_the_program_sets_them() -> None:
    def found() -> set[Any]:
        return {(sample["umask"], sample["ignored"], sample["blocked"]) for sample in epoch("spawn")}

    usual, ignored = found(), signal.getsignal(signal.SIGUSR2)
    mask = os.umask(0o077)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        assert found() == {(0o077, True, True)} != usual
    finally:
        os.umask(mask)
        signal.signal(signal.SIGUSR2, ignored)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    assert found() == usual == {(mask, False, False)}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_workers_go_on_without_their_template(method: str) -> None:
    loader = fl.DataLoader(Slow(), batch_size=1, num_workers=2, multiprocessing_context=method)
    batches = iter(loader)
    found = [int(next(batches))]
    ended = template.template_process_id()
    assert ended is not None
    os.kill(ended, signal.SIGKILL)
    os.waitpid(ended, 0)
    found += map(int, batches)
    assert found == list(range(12))
    assert loader.restarts == []
    # A worker that is killed now is noticed all the same.
    batches, left = iter(loader), iter(loader)
    next(batches), next(left)
    (first, second), others = batches._workers, left._workers  # type: ignore[attr-defined]
    os.kill(template.template_process_id() or 0, signal.SIGKILL)
    os.kill(first.pid, signal.SIGKILL)
    assert [int(batch) for batch in batches] == list(range(1, 12))
    assert [restart.pid for restart in loader.restarts] == [first.pid]
    del batches, left
    assert not leftovers.wait_until_none(
        lambda: {worker.pid for worker in (second, *others) if not leftovers.has_ended(worker.pid)}
    )


class Slow(Dataset[int]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        time.sleep(0.05)
        return index


def imported(into: Any) -> None:
    import helper_beside_the_script

    into.send((sys.path, Path(helper_beside_the_script.__file__)))


@pytest.mark.slow
def test_modules_come_from_where_the_program_finds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "numpy.py").write_text("raise ImportError('not this one')")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "helper_beside_the_script.py").touch()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend(tmp_path / "there")
    out, into = multiprocessing.Pipe(duplex=False)
    process = template.process_class(multiprocessing.get_context("spawn"))(target=imported, args=(into,))
    process.start()
    into.close()
    path, found = out.recv()
    process.join()
    assert path[0] == str(tmp_path / "there")
    assert found.parent == tmp_path / "there"


def draw(into: Any) -> None:
    into.send((np.random.rand(), torch.initial_seed()))


FORKED = """
import importlib, os, pkgutil, threading
import numpy, foreload

for module in pkgutil.walk_packages(foreload.__path__, "foreload."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ImportError:  # of a package that is not installed here
            pass
thread = threading.Thread(target=numpy.random.get_bit_generator().lock.acquire)  # as one that draws numbers does
thread.start()
thread.join()
pid = os.fork()
if not pid:
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.slow
def test_importing_has_no_effect_on_what_is_forked() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("7\n", "")


@pytest.mark.slow
def test_random_numbers_are_those_of_a_new_process() -> None:
    """Each process that imports NumPy and torch draws others."""
    drawn = []
    for _ in range(2):
        out, into = multiprocessing.Pipe(duplex=False)
        process = template.process_class(multiprocessing.get_context("spawn"))(target=draw, args=(into,))
        process.start()
        into.close()
        drawn.append(out.recv())
        process.join()
    assert drawn[0][0] != drawn[1][0]
    assert drawn[0][1] != drawn[1][1]


@pytest.mark.slow
def test_numbers_and_samples_are_torchs() -> None:
    for method in METHODS:
        ours, theirs = [
            [
                (sample["numpy"], sample["calls"])
                for sample in kind(
                    Facts(),
                    batch_size=1,
                    num_workers=2,
                    multiprocessing_context=method,
                    collate_fn=first,
                    generator=torch.Generator().manual_seed(7),
                )
            ]
            for kind in (fl.DataLoader, torch.utils.data.DataLoader)
        ]
        assert ours == theirs


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_known", [True, False], ids=["child", "waited for by others"])
def test_a_template_that_has_ended_is_replaced(is_known: bool) -> None:
    epoch("spawn")
    ended = template.template_process_id()
    assert ended is not None
    os.kill(ended, signal.SIGKILL)
    if not is_known:
        os.waitpid(ended, 0)
    assert {sample["parent"] for sample in epoch("spawn")} == {template.template_process_id()} != {ended}


@pytest.mark.slow
def test_templates_that_are_not_needed_leave_no_zombies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may change its environment in each epoch."""
    used: list[int] = []
    for setting in range(3):
        monkeypatch.setenv("FORELOAD_TEST_SETTING", str(setting))
        epoch("spawn")
        last = used[-1:]
        assert not leftovers.wait_until_none(
            lambda last=last: {pid for pid in last if not leftovers.has_ended(pid)}
        )
        used.append(template.template_process_id() or 0)
    left = [pid for pid in used[:-2] if Path(f"/proc/{pid}").exists()]
    assert left == []


DEFAULT = """
import os, sys, torch, foreload as fl
from foreload.workers.start.template import template_process_id

class Parents(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return os.getppid()

if __name__ == "__main__":
    torch.multiprocessing.set_start_method(sys.argv[1])
    parents = set(torch.cat(list(fl.DataLoader(Parents(), 2, num_workers=2))).tolist())
    print(parents == {template_process_id()})
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_the_default_start_method_has_a_template_too(method: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(DEFAULT)
    assert python(tmp_path / "script.py", method).stdout.strip() == "True"


@pytest.mark.slow
def test_a_fork_has_a_template_of_its_own() -> None:
    epoch("spawn")
    own = template.template_process_id()
    out, into = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        try:
            into.send({sample["parent"] for sample in epoch("spawn")} | {template.template_process_id()})
        finally:
            os._exit(0)
    into.close()
    (other,) = out.recv()
    os.waitpid(child, 0)
    assert other != own == template.template_process_id()
    assert not leftovers.wait_until_none(lambda: set() if leftovers.has_ended(other) else {other})
    assert {sample["parent"] for sample in epoch("spawn")} == {own}


def test_other_contexts_start_their_own_processes() -> None:
    class Own(type(multiprocessing.get_context("spawn"))):  # type: ignore[misc]
        """A context of the user's."""

    own = Own()
    assert template.process_class(own) == own.Process
    fork = multiprocessing.get_context("fork")
    assert template.process_class(fork) is fork.Process
    assert issubclass(template.process_class(multiprocessing.get_context("spawn")), template.TemplateProcess)


SCRIPT = """
import torch, foreload as fl
from foreload.workers.start.template import template_process_id

class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return index

if __name__ == "__main__":
    for _ in range(2):
        batches = list(fl.DataLoader(Numbers(), 2, num_workers=2, multiprocessing_context="spawn"))
    print(template_process_id(), torch.cat(batches).tolist())
"""


@pytest.mark.slow
def test_it_ends_with_the_program(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = python(tmp_path / "script.py", finalize=True)
    pid, numbers = done.stdout.split(" ", 1)
    assert numbers.strip() == str(list(range(8)))
    assert not leftovers.wait_until_none(lambda: set() if leftovers.has_ended(int(pid)) else {pid})
