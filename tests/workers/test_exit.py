"""The interpreter exits while daemon threads iterate: quietly, with its own code, and before long."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

import foreload as fl
from foreload.epochs.turn import Turn
from tests.programs import python
from tests.workers.kinds import Count, Numbers, flat

# Seconds that an exit may take, on a machine with much else to do. Samples that it must not wait for take longer.
_BOUND = 300

PROGRAM = """
    import atexit, os, sys, threading, time
    import torch
    import foreload as fl

    class Numbers(torch.utils.data.Dataset):
        def __len__(self): return 64
        def __getitem__(self, i): return torch.full((50, 50), float(i))

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            for i in range(64): yield torch.full((50, 50), float(i))

    class Slow(Numbers):
        def __init__(self, seconds): self.seconds = seconds
        def __getitem__(self, i):
            time.sleep(self.seconds)
            return torch.full((50, 50), float(i)).sum()

    rows = torch.utils.data.TensorDataset(torch.rand(64, 50_000))
    arguments = {arguments}
    first = threading.Event()

    def go():
        while True:
            for _ in loader: first.set()

    def begin(count=1):
        for _ in range(count): threading.Thread(target=go, daemon=True).start()
"""

# Other start methods, which are the default of later Pythons, do not find the classes of a program given by -c.
FORK = {"multiprocessing_context": "fork"}

BY = {
    "inline": ("Numbers()", {"num_workers": 0}),
    "gathered": ("rows", {"num_workers": 0}),
    "threads": ("Numbers()", {"num_workers": 2, "workers": "threads"}),
    "native": ("rows", {"num_workers": 2, "workers": "threads"}),
    "processes": ("Numbers()", {"num_workers": 2, "workers": "processes", **FORK}),
    "stream": ("Stream()", {"num_workers": 0}),
    "stream, threads": ("Stream()", {"num_workers": 2, "workers": "threads"}),
    "stream, processes": ("Stream()", {"num_workers": 2, "workers": "processes", **FORK}),
    "auto": ("Numbers()", {}),
}


def exits(body: str, kind: str = "inline", dataset: str | None = None, **arguments: Any) -> str:
    """Run a program that must exit with code 0 and no message; return what it printed."""
    made, options = BY[kind]
    options = {"batch_size": 8, **options, **arguments}
    program = textwrap.dedent(PROGRAM.format(arguments=options))
    program += f"loader = fl.DataLoader({dataset or made}, **arguments)\n" + textwrap.dedent(body)
    ended = python("-c", program, timeout=_BOUND, finalize=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


FAST = ("inline", "native", "processes", "stream, threads")


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "kind", [kind if kind in FAST else pytest.param(kind, marks=pytest.mark.slow) for kind in BY]
)
def test_while_daemon_threads_iterate(kind: str) -> None:
    exits("begin(2); first.wait(); time.sleep(0.1)", kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threads", "native", "processes", "stream, processes"])
@pytest.mark.parametrize("arguments", [{"persistent_workers": True}, {"cache": "20MiB"}], ids=str)
def test_with_persistent_workers_and_with_a_cache(kind: str, arguments: dict[str, Any]) -> None:
    if "stream" in kind and "cache" in arguments:
        pytest.skip("streams are not cached")
    exits("begin(); first.wait(); time.sleep(0.1)", kind, **arguments)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["inline", "threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_in_the_middle_of_the_first_batch(kind: str) -> None:
    exits("begin(); time.sleep(0.2)", kind, "Slow(0.1)")


@pytest.mark.parametrize("kind", ["inline", pytest.param("processes", marks=pytest.mark.slow)])
def test_at_once(kind: str) -> None:
    exits("begin()", kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["inline", "threads", "processes"])
def test_in_a_sample_that_takes_longer_than_the_exit_waits(kind: str) -> None:
    exits("begin(); time.sleep(0.2)", kind, "Slow(600)")


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [5.1, 5.2, 5.3])
def test_in_a_sample_that_ends_while_modules_are_taken_apart(seconds: float) -> None:
    body = """
        iterator = iter(loader)
        threading.Thread(target=next, args=(iterator,), daemon=True).start()
    """
    exits(body, "threads", f"Slow({seconds})", batch_size=1, num_workers=4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threads", "stream, threads"])
def test_in_a_sample_that_computes_without_end(kind: str) -> None:
    body = """
        def compute():
            square = torch.rand(100, 100)
            while True:
                square = square @ torch.rand(100, 100)
                square /= square.norm()
                first.set()

        Numbers.__getitem__ = lambda self, i: compute()
        Stream.__iter__ = lambda self: iter([0, compute()])
        begin(); first.wait()
    """
    exits(body, kind, num_workers=4)


def test_threads_that_share_an_iterator() -> None:
    body = """
        def share():
            for _ in iterator: first.set()

        iterator = iter(loader)
        for _ in range(3): threading.Thread(target=share, daemon=True).start()
        first.wait()
    """
    exits(body, "threads", "Slow(0.02)")


def test_a_thread_of_the_users_that_ends_at_exit_is_joined() -> None:
    body = """
        stopped = threading.Event()
        def go():
            try:
                while not stopped.is_set():
                    for _ in loader: first.set()
            finally:
                print("cleaned up", flush=True)
        thread = threading.Thread(target=go, daemon=True)
        thread.start()
        atexit.register(lambda: (stopped.set(), thread.join(200), print(thread.is_alive())))
        first.wait()
    """
    assert exits(body) == "cleaned up\nFalse\n"


def test_the_loop_of_a_daemon_thread_is_left_by_an_exception_that_cleans_up() -> None:
    body = """
        def go():
            try:
                while True:
                    for _ in loader: first.set()
            finally:
                print("cleaned up", flush=True)
        begin(); first.wait()
    """
    assert exits(body) == "cleaned up\n"


@pytest.mark.parametrize("kind", ["inline", "threads", "processes"])
def test_a_handler_at_exit_may_iterate(kind: str) -> None:
    # Not by print(): a worker that the other thread starts meanwhile would have its buffer too, and print it.
    body = """
        atexit.register(lambda: os.write(1, str(sum(len(batch) for batch in loader)).encode()))
        begin(); first.wait()
    """
    assert exits(body, kind) == "64"


def test_a_handler_that_is_older_than_the_import_may_iterate_inline() -> None:
    """It runs after the loops of daemon threads have been ended."""
    body = """
        from foreload.epochs import turn
        atexit.unregister(turn._interpreter.exit)
        atexit.register(lambda: print(sum(len(batch) for batch in loader)))
        atexit.register(turn._interpreter.exit)
        begin(); first.wait()
    """
    assert exits(body) == "64\n"


def test_a_daemon_thread_that_waits_for_the_main_thread_delays_the_exit_by_a_second_at_most() -> None:
    body = """
        import queue
        batches = queue.Queue(1)
        def go():
            for batch in loader: batches.put(batch)
        begin(); batches.get()
    """
    exits(body)


def test_an_open_iterator_of_the_main_thread_and_a_failing_loop_leave_the_code_as_it_is() -> None:
    ended = python(
        "-c",
        textwrap.dedent(PROGRAM.format(arguments={"batch_size": 8, "num_workers": 0}))
        + "loader = fl.DataLoader(Numbers(), **arguments)\nbegin(); first.wait(); sys.exit(7)",
        timeout=_BOUND,
        finalize=True,
    )
    assert (ended.returncode, ended.stderr) == (7, "")


@pytest.mark.parametrize("dataset", [Numbers(12), Count(12)], ids=["samples", "stream"])
@pytest.mark.parametrize(
    "options", [{"num_workers": 0}, {"workers": "threads"}, {"workers": "processes"}], ids=str
)
def test_while_an_epoch_begins(dataset: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    class Woken(Turn):
        """A turn that the exit of the interpreter finds, and wakes, as soon as it is made."""

        def __init__(self, owner: Any = None) -> None:
            super().__init__(owner)
            self.wake()

    monkeypatch.setattr("foreload.epochs.base.Turn", Woken)
    loader = fl.DataLoader(dataset, batch_size=4, **{"num_workers": 2, **options})
    assert sorted(flat(loader)) == list(range(12))
