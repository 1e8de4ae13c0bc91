"""Worker processes start by default only where the script can stand them; otherwise the calling thread loads."""

from __future__ import annotations

import functools
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import foreload as fl
from foreload.workers.start.method import start_method, why_not_started
from tests.programs import python

SPAWN = multiprocessing.get_context("spawn")


class Rows(Dataset[Any]):
    """A dataset of the user's, with an attribute."""

    def __init__(self, attribute: Any = None) -> None:
        self.attribute = attribute

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        return index


def in_main(monkeypatch: pytest.MonkeyPatch, path: Path | None, code: str = "") -> dict[str, Any]:
    """Make ``code`` the main module, from a file at ``path`` or from a session; return its variables."""
    main = ModuleType("__main__")
    code = textwrap.dedent(code)
    if path is not None:
        path.write_text(code)
        main.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(compile(code, str(path), "exec"), vars(main))
    return vars(main)


GUARD = "if __name__ == '__main__': pass\n"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize(
    ("code", "trouble"),
    [
        ("print", "would be run again by each of them; put what it runs under: if __name__ == '__main__'"),
        ("", "would be run again"),
        ("if True:\n    if __name__ == '__main__': pass", "would be run again"),
        (GUARD, None),
        ("if '__main__' == __name__: pass", None),
        ("if (__name__ == '__main__') and True: pass", None),
    ],
)
def test_a_main_module_without_a_guard_is_not_run_again(
    method: str, code: str, trouble: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_main(monkeypatch, tmp_path / "script.py", code)
    found = why_not_started(multiprocessing.get_context(method), [Rows()])
    if trouble is None:
        assert found is None
    else:
        assert str(found).startswith(f"the start method is {method!r}, and {tmp_path}/script.py ")
        assert trouble in str(found)
    assert why_not_started(multiprocessing.get_context("fork"), [Rows(lambda: 0)]) is None


def test_a_main_module_that_is_gone_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_main(monkeypatch, tmp_path / "script.py", GUARD)
    (tmp_path / "script.py").unlink()
    assert "script.py cannot be read by them; keep the script in a file" in str(why_not_started(SPAWN, []))


class Stubborn:
    """Something that cannot be pickled, in its own words."""

    def __reduce__(self) -> Any:
        raise ArithmeticError("not this")


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (Rows(lambda: 0), "Rows cannot be pickled"),
        (Rows(multiprocessing.Lock()), "Rows cannot be pickled (RuntimeError: Lock objects should only be shared"),
        (Rows(number for number in range(9)), "Rows cannot be pickled (TypeError: cannot pickle 'generator'"),
        (Stubborn(), "Stubborn cannot be pickled (ArithmeticError: not this)"),
        (lambda sample: sample, "function cannot be pickled"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_pickled_is_not_sent(
    part: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_main(monkeypatch, tmp_path / "script.py", GUARD)
    assert words in str(why_not_started(SPAWN, [Rows(), None, part]))


def test_arrays_are_not_pickled_to_find_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(torch.Tensor):
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise AssertionError("pickled")

    in_main(monkeypatch, tmp_path / "script.py", GUARD)
    part = Rows([torch.ones(3).as_subclass(Counted), torch.ones(3)])
    assert why_not_started(SPAWN, [part, torch.utils.data.default_collate, len]) is None


CLASSES = """
    from torch.utils.data import Dataset
    class Mine(Dataset):
        class Part: pass
        def __init__(self, attribute=None): self.attribute = attribute
        def __len__(self): return 9
        def __getitem__(self, index): return index
        def again(self, sample): return sample
    def double(sample): return 2 * sample
"""


@pytest.mark.parametrize(
    "part",
    [
        lambda names: names["Mine"](),
        lambda names: names["double"],
        lambda names: Rows(names["double"]),
        lambda names: functools.partial(names["double"], 1),
        lambda names: names["Mine"]().again,
        lambda names: {"a": [names["Mine"].Part()]},
        lambda names: torch.utils.data.Subset(names["Mine"](), [1]),
    ],
)
def test_what_is_defined_in_a_session_or_under_the_guard_is_not_found(
    part: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = why_not_started(SPAWN, [part(in_main(monkeypatch, None, CLASSES))])
    assert "is defined in this session; define it in a module" in str(found)
    path = tmp_path / "script.py"
    assert why_not_started(SPAWN, [part(in_main(monkeypatch, path, textwrap.dedent(CLASSES) + GUARD))]) is None
    below = "if __name__ == '__main__':\n" + textwrap.indent(textwrap.dedent(CLASSES), "    ")
    found = why_not_started(SPAWN, [part(in_main(monkeypatch, path, below))])
    assert "is defined under: if __name__ == '__main__'; define it before" in str(found)


def test_what_is_of_a_module_is_found_from_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    in_main(monkeypatch, None)
    assert why_not_started(SPAWN, [Rows(), torch.stack, None]) is None


def test_the_start_method_is_looked_up_without_being_fixed() -> None:
    assert start_method(SPAWN) == "spawn"
    chosen = multiprocessing.get_start_method(allow_none=True)
    assert start_method(None) == (chosen or multiprocessing.get_all_start_methods()[0])
    assert multiprocessing.get_start_method(allow_none=True) == chosen


class ThreadForProcess(threading.Thread):
    @property
    def pid(self) -> int:
        return id(self)

    def run(self) -> None:
        super().run()
        torch.utils.data._utils.worker._worker_info = None


class ThreadContext(type(SPAWN)):  # type: ignore[misc]
    """A context whose processes are threads, as MONAI's ThreadDataLoader gives it."""

    Process = ThreadForProcess


class Named(Rows):
    def __getitem__(self, index: int) -> Any:
        return index, os.getpid(), type(threading.current_thread()).__name__


def test_workers_of_a_context_may_be_threads() -> None:
    context = ThreadContext()
    for kind in (torch.utils.data.DataLoader, fl.DataLoader):
        options: Any = {"num_workers": 2, "multiprocessing_context": context, "collate_fn": list}
        loader = kind(Named(), batch_size=16, **options)
        for _ in range(2):
            samples = [sample for batch in loader for sample in batch]
            assert samples == [(index, os.getpid(), "ThreadForProcess") for index in range(64)]


def load_in_daemon(pipe: Any, options: dict[str, Any]) -> None:
    loader: Any = fl.DataLoader(Rows(), batch_size=32, **options)
    batches = [batch.tolist() for batch in loader]
    pipe.send((batches, loader.stats()["workers"]))


@pytest.mark.parametrize("options", [{}, {"worker_init_fn": len}], ids=["plain", "worker_init_fn"])
def test_a_daemonic_process_loads_by_itself(options: dict[str, Any]) -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=load_in_daemon, args=(theirs, options), daemon=True)
    process.start()
    batches, workers = ours.recv()
    process.join()
    assert batches == [list(range(32)), list(range(32, 64))]
    assert (workers["kind"], workers["count"]) == ("threads", 0)
    assert "this is a daemonic process, which may start no others" in workers["why"]


# Whole scripts, as users write them.

DEFINITIONS = """
import time, torch, foreload as fl
from foreload.tune import choose
from foreload.tune.candidates import Measurement
# What the measurement says, for which a busy machine has too little time.
choose.measure_workers = lambda *_: Measurement({{("threads", 0): 25.0, ("processes", 2): 50.0}}, [], 0.0, "")
class Slow(torch.utils.data.Dataset):
    transform = None
    def __len__(self): return 1000
    def __getitem__(self, index):
        end = time.perf_counter() + 0.03  # as a whole, long enough for processes to pay
        while time.perf_counter() < end: pass
        time.sleep(0.01)
        return index
print("imported\\n", end="", flush=True)
def train(dataset, method):
    loader = fl.DataLoader(dataset, batch_size=4, multiprocessing_context=method)
    batches = iter(loader)
    print(next(batches).tolist() + next(batches).tolist())
    batches.close()
    workers = loader.stats()["workers"]
    print(workers["kind"] if workers["count"] else "calling thread", "|", workers["why"])
"""

SCRIPTS = {
    "no guard": DEFINITIONS + "train(Slow(), {method!r})\n",
    "guard": DEFINITIONS + "if __name__ == '__main__':\n    train(Slow(), {method!r})\n",
    "not pickled": DEFINITIONS
    + "if __name__ == '__main__':\n    slow = Slow(); slow.transform = lambda: 0\n    train(slow, {method!r})\n",
    "under the guard": DEFINITIONS
    + "if __name__ == '__main__':\n    class Mine(Slow): pass\n    train(Mine(), {method!r})\n",
}
AGAIN = "would be run again by each of them"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("script", "method", "loads", "why"),
    [
        ("no guard", "spawn", "calling thread", AGAIN),
        pytest.param("no guard", "fork", "processes", "", marks=pytest.mark.slow),
        ("guard", "spawn", "processes", ""),
        ("under the guard", "spawn", "calling thread", "Mine is defined under"),
        pytest.param("not pickled", "spawn", "calling thread", "Slow cannot be pickled", marks=pytest.mark.slow),
        pytest.param("no guard", "forkserver", "calling thread", AGAIN, marks=pytest.mark.slow),
        pytest.param("guard", "forkserver", "processes", "", marks=pytest.mark.slow),
        pytest.param("under the guard", "fork", "processes", "", marks=pytest.mark.slow),
    ],
)
def test_scripts(script: str, method: str, loads: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPTS[script].format(method=method))
    done = python(path)
    assert done.returncode == 0, done.stderr
    check(done, loads, why, has_imports=loads == "processes" and method != "fork")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [["-"], *(pytest.param(arguments, marks=pytest.mark.slow) for arguments in (["-i"], ["-c"]))],
    ids=["stdin", "interactive", "command"],
)
def test_sessions(arguments: list[str]) -> None:
    code = SCRIPTS["no guard"].format(method="spawn").replace("foreload as fl\n", "foreload as fl\n\n", 1)
    if arguments == ["-i"]:  # a block ends with an empty line
        code = code.replace("\nprint", "\n\nprint").replace("\ntrain", "\n\ntrain")
    if arguments == ["-c"]:
        done = python("-c", code)
    else:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, input=code, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    why = "Slow is defined in this session; define it in a module"
    if arguments == ["-"]:
        why = "<stdin> cannot be read by them; keep the script in a file"
    check(done, "calling thread", why, has_imports=False)


def check(done: subprocess.CompletedProcess[str], loads: str, why: str, *, has_imports: bool) -> None:
    lines = done.stdout.splitlines()
    imports = [line for line in lines if line == "imported"]
    assert len(imports) == 1 or has_imports, "the script was run again"
    first, last = [line for line in lines if line != "imported"]
    assert first == str(list(range(8)))
    kind, _, reason = last.partition(" | ")
    assert kind == loads
    assert why in reason


class RunsPrograms:
    """A dataset whose samples say whether a program that they run would hear of Ctrl-C."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> str:
        heard = "import signal; print(signal.getsignal(signal.SIGINT) is not signal.SIG_IGN)"
        return subprocess.run([sys.executable, "-Ic", heard], capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_programs_that_a_sample_runs_hear_of_interrupts_as_in_torch(method: str) -> None:
    ours, stock = (
        list(kind(RunsPrograms(), num_workers=1, multiprocessing_context=method))  # type: ignore[arg-type]
        for kind in (fl.DataLoader, torch.utils.data.DataLoader)
    )
    assert ours == stock
