"""Interrupts (Ctrl-C) at each step by which a loop gets batches of worker threads, before it goes on."""

from __future__ import annotations

import itertools
import linecache
import sys
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import foreload as fl

# Steps after which the batch counts as delivered: that the loop does not have it yet, nobody can tell.
_LAST = ("return batch", "failures.check()", "self._is_torn = False", "if self._limit")
_FUNCTIONS = (
    "__next__",
    "_deliver",
    "_next",
    "_fill",
    "_submit_next",
    "_draw",
    "_await",
    "_cut",
    "_next_here",
    "_make",
)


class Numbers(Dataset[int]):
    thread_safe = True

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        return index


class _Interrupt:
    """Raises KeyboardInterrupt before a line of the loader, the n-th that is run: as Ctrl-C does."""

    def __init__(self, line: int) -> None:
        self.left = line

    def __call__(self, frame: Any, event: str, argument: Any) -> Any:
        is_ours = "/foreload/" in frame.f_code.co_filename and frame.f_code.co_name in _FUNCTIONS
        return self._trace if is_ours else None

    def _trace(self, frame: Any, event: str, argument: Any) -> Any:
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        # (Python comes to the line of a "with" once more at its end, where no signal comes.)
        if event == "line" and not line.startswith(("with ", *_LAST)):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self._trace


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": 2},
        {"num_workers": 1, "persistent_workers": True},
        {"num_workers": "auto"},
        {"shuffle": True},
    ],
    ids=str,
)
def test_no_batch_is_lost_in_silence(arguments: dict[str, Any]) -> None:
    def loader() -> Any:
        given = {"num_workers": 2, **arguments}
        generator = torch.Generator().manual_seed(3) if "shuffle" in arguments else None
        return fl.DataLoader(Numbers(), 4, workers="threads", timeout=30, generator=generator, **given)

    with loader() as whole:
        expected = [batch.tolist() for batch in whole]
    noticed = unnoticed = 0
    for line in itertools.count(1):
        with loader() as interrupted, loader() as resumed:
            epoch = iter(interrupted)
            got = [next(epoch).tolist()]
            before = sys.gettrace()
            sys.settrace(_Interrupt(line))
            try:
                got.extend(next(epoch).tolist() for _ in range(2))
            except KeyboardInterrupt:
                pass
            else:
                break
            finally:
                sys.settrace(before)
            try:
                got.extend(batch.tolist() for batch in epoch)
                unnoticed += 1
            except RuntimeError as error:
                if "iterate over the loader again" not in str(error):
                    raise
                noticed += 1
                resumed.load_state_dict(interrupted.state_dict())
                got.extend(batch.tolist() for batch in resumed)
            assert got == expected, line
    assert noticed > 10
    assert unnoticed > 10
