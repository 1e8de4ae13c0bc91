"""Functions that ``atexit`` calls after foreload's, because they were registered before foreload was imported."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.programs import python

pytestmark = pytest.mark.slow

PROGRAM = """
    import atexit

    def last():
        try:
            batches = {loads}
            print([batch.tolist() for batch in batches])
        except RuntimeError as error:
            print(error)

    atexit.latest.append(last)  # as atexit.register() before anything is imported
    import torch
    import foreload as fl

    class Numbers(torch.utils.data.Dataset):
        def __init__(self, size=6): self.size = size
        def __len__(self): return self.size
        def __getitem__(self, i): return torch.tensor(i)

    class Stream(Numbers, torch.utils.data.IterableDataset):
        def __iter__(self): yield from map(torch.tensor, range(self.size))

    make = lambda: fl.DataLoader({dataset}, 4, {arguments})
    loader = make()
    {before}
"""

WHOLE = "[[0, 1, 2, 3], [4, 5]]\n"
TWICE = "[[0, 1, 2, 3], [0, 1, 2, 3], [4, 5], [4, 5]]\n"


def printed(dataset: str, arguments: str, loads: str, before: str = "") -> str:
    """Return what a program prints that loads in such a function; it must end as any other."""
    program = textwrap.dedent(PROGRAM).format(dataset=dataset, arguments=arguments, loads=loads, before=before)
    ended = python("-c", program, finalize=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


@pytest.mark.sampled(1)
@pytest.mark.parametrize("loads", ["make()", "loader"])
@pytest.mark.parametrize(
    ("dataset", "arguments", "expected"),
    [
        ("Numbers()", "", WHOLE),
        ("Numbers()", "num_workers=2", WHOLE),
        ("Numbers()", "num_workers=2, persistent_workers=True", WHOLE),
        ("Numbers()", "num_workers=2, workers='threads'", WHOLE),
        ("Numbers()", "num_workers=2, workers='threads', persistent_workers=True", WHOLE),
        ("Stream()", "", WHOLE),
        ("Stream()", "num_workers=2", TWICE),
        ("torch.arange(6)", "num_workers=2", WHOLE),
    ],
)
def test_a_late_function_loads_what_any_other_does(
    dataset: str, arguments: str, expected: str, loads: str
) -> None:
    assert printed(dataset, arguments, loads, "list(loader)") == expected


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["workers='threads', num_workers=2", "workers='threads', num_workers=1"])
def test_threads_with_parts_of_a_stream_are_refused(arguments: str) -> None:
    said = printed("Stream()", arguments, "loader")
    assert said.startswith("the interpreter exits, and has ended all threads")


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["Numbers(60)", "Stream(60)"])
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_an_epoch_whose_workers_have_ended_says_so(dataset: str, workers: str) -> None:
    arguments = f"num_workers=2, workers={workers!r}"
    said = printed(dataset, arguments, "begun", "begun = iter(loader); next(begun)")
    assert "have ended" in said
    assert "begin another epoch" in said


def test_what_is_raised_at_the_very_end_is_shown_as_without_foreload() -> None:
    """Python clears foreload's modules before those that were imported earlier, such as ``os``."""
    program = """
        import os

        class Late:
            def __del__(self): raise ValueError("raised late")

        os.late = Late()
        import torch, foreload as fl
        list(fl.DataLoader(torch.utils.data.TensorDataset(torch.arange(8)), num_workers=2, workers="threads"))
    """
    program = textwrap.dedent(program)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr.endswith("ValueError: raised late\n")
    assert "foreload" not in ended.stderr


HELD = """
    import sys
    import torch
    import foreload as fl

    class Rows(torch.utils.data.Dataset):
        def __len__(self): return 16
        def __getitem__(self, i): return torch.full((3000,), i)

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self): yield from (torch.ones(3000) for _ in range(16))

    held = []
    for dataset, arguments in (
        (Rows(), {}), (Rows(), {"num_workers": 2}), (Rows(), {"num_workers": 2, "persistent_workers": True}),
        (Rows(), {"num_workers": 2, "workers": "threads"}), (Stream(), {"num_workers": 1}),
        (Rows(), {"num_workers": 2, "cache": fl.Cache("1MiB", spill=sys.argv[1])}),
        (torch.utils.data.TensorDataset(torch.ones(16, 3000)), {}), (fl.AsyncPrefetchDataset(Rows()), {}),
    ):
        loader = fl.DataLoader(dataset, 4, **arguments)
        held += [loader, list(loader), begun := iter(loader), next(begun)]
"""


def test_what_is_held_when_the_interpreter_ends_says_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(HELD), str(tmp_path / "spill")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_an_epoch_that_outlives_foreloads_modules_says_nothing() -> None:
    """Objects in modules imported before (registries of frameworks) go when other modules are cleared."""
    program = textwrap.dedent(HELD).replace("held = []", "import os; held = os.held = []")
    program = program.replace("sys.argv[1]", "None")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, "")
