"""The process of one contestant, in the environment of its adapter.

    python -m benchmarks.peers.contestant ADAPTER list
    python -m benchmarks.peers.contestant ADAPTER check|time '{"work": ..., "quick": ..., "settings": ...}'

``list`` prints which families it has loaders for, with their settings. ``check`` runs an epoch that is checked,
the second one if that loads in another way; ``time`` runs two epochs, the first to warm up. The answer is one line
of JSON after ``MARK``.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

from benchmarks.peers.adapters import LOADERS, Load, load_adapter
from benchmarks.peers.work import Work, WrongResult, size_of
from benchmarks.peers.workloads import find

MARK = "=== "
EPOCHS = 2


class Pass:
    """One epoch, with what it took."""

    def __init__(self, work: Work, loader: Any, began: float) -> None:
        self.work, self.loader, self.began = work, loader, began
        self.first = self.seconds = 0.0
        self.samples = self.batches = 0

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            if not self.batches:
                self.first = time.perf_counter() - self.began
            self.batches += 1
            self.samples += size_of(batch)
            yield batch
            if self.batches == self.work.batches:
                break
        self.seconds = time.perf_counter() - self.began

    def run(self) -> dict[str, float]:
        """Go through all batches."""
        for _ in self:
            pass
        if self.samples != self.work.expected and "any_size" not in self.work.options:
            raise WrongResult(f"{self.samples:,} samples came, not {self.work.expected:,}")
        return {"seconds": self.seconds, "first": self.first, "samples": self.samples, "batches": self.batches}


def run(work: Work, load: Load, *, checked: bool) -> dict[str, Any]:
    """Run the epochs, and check or time them."""
    if work.shows == "resume":
        return _resume(work, load, checked=checked)
    before = work.before or (lambda work: None)
    before(work)
    began = time.perf_counter()
    loader = load(work)
    epochs = []
    last = 0 if checked and "later_differs" not in work.options else EPOCHS - 1
    for number in range(last + 1):
        if number:
            before(work)
            began = time.perf_counter()
        one = Pass(work, loader, began)
        if checked and number == last:
            work.check(work, one)
        else:
            epochs.append(one.run())
    return {"epochs": epochs}


def _resume(work: Work, load: Load, *, checked: bool) -> dict[str, Any]:
    """Half an epoch, then the rest from a state that has become bytes and back."""
    import pickle

    halves: list[Any] = []
    half = work.count // work.batch_size // 2
    loader = load(work)
    for batch in loader:
        halves.append(_kept(batch))
        if len(halves) == half:
            break
    state = pickle.dumps(loader.state_dict())
    del loader
    began = time.perf_counter()
    loader = load(work)
    loader.load_state_dict(pickle.loads(state))
    one = Pass(work, loader, began)
    halves.extend(_kept(batch) for batch in one)
    if checked:
        work.check(work, halves)
    return {"resume": one.first, "epochs": []}


def _kept(batch: Any) -> Any:
    """A copy: memory of batches is used again."""
    import copy

    return copy.deepcopy(batch)


def main() -> None:
    adapter, what = sys.argv[1], sys.argv[2]
    answer: dict[str, Any]
    try:
        load_adapter(adapter)
        if what == "list":
            answer = {"families": {family: list(loaders) for family, loaders in LOADERS.items()}}
        else:
            wanted = json.loads(sys.argv[3])
            work = find(wanted["work"])
            work = work.shortened() if wanted["quick"] else work
            answer = run(work, LOADERS[work.family][wanted["settings"]], checked=what == "check")
    except WrongResult as error:
        answer = {"wrong": str(error)}
    except Exception as error:
        traceback.print_exc()
        answer = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
    print(f"\n{MARK}{json.dumps(answer)}", flush=True)
    # Some loaders' threads and processes outlive an epoch that is over; the runner ends what is left.
    os._exit(0)


if __name__ == "__main__":
    main()
