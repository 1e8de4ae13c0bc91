"""Workers and a consumer, event by event: what the queueing model's formulas are held against."""

from __future__ import annotations

import random
from collections import deque

from foreload.tune.queueing import Demand, Servers

Steps = deque[tuple[str, float]]


class Simulation:
    """Runs until so many samples are taken; services vary evenly by half of their mean."""

    def __init__(self, demand: Demand, servers: Servers, *, seed: int = 0) -> None:
        self.demand, self.servers = demand, servers
        self.random = random.Random(seed)
        self.room = 2 * servers.workers + 4  # samples made and not taken
        self.consumer = servers.workers
        self.todo: list[Steps] = [deque() for _ in range(servers.workers + 1)]
        self.doing: list[list[object] | None] = [None] * (
            servers.workers + 1
        )  # a kind of step, and what is left of it
        self.queue: deque[int] = deque()  # for the lock
        self.holder: int | None = None
        self.begun = self.ready = self.taken = 0
        self.clock = 0.0

    def run(self, samples: int) -> float:
        """Give the samples per second."""
        while self.taken < samples:
            while any(self.advance(who) for who in range(self.consumer + 1)):
                pass  # somebody may go on where another one has begun
            running = sum(step is not None and step[0] != "away" for step in self.doing)
            rate = min(1.0, self.servers.cores / running) if running else 1.0
            speeds = [0.0 if step is None else 1.0 if step[0] == "away" else rate for step in self.doing]
            passed = min(step[1] / speed for step, speed in zip(self.doing, speeds, strict=True) if step)  # type: ignore[operator]
            self.clock += passed
            for who, (step, speed) in enumerate(zip(self.doing, speeds, strict=True)):
                if step is None:
                    continue
                step[1] -= speed * passed  # type: ignore[operator]
                if step[1] <= 1e-12:  # type: ignore[operator]
                    self.doing[who] = None
                    if step[0] == "held":
                        self.holder = None
        return self.taken / self.clock

    def advance(self, who: int) -> bool:
        """Let somebody begin what comes next; False where there is nothing."""
        if self.holder is None and self.queue:
            self.holder = self.queue.popleft()
            self.doing[self.holder] = ["held", self.todo[self.holder].popleft()[1]]
            return True
        if self.doing[who] is not None or who in self.queue:
            return False
        if not self.todo[who] and not self.new(who):
            return False
        kind, left = self.todo[who][0]
        if kind == "lock":
            self.queue.append(who)
            return True
        self.todo[who].popleft()
        if kind == "made":
            self.ready += 1
        elif kind == "taken":
            self.taken += 1
            self.begun -= 1
        else:
            self.doing[who] = [kind, left]
        return True

    def new(self, who: int) -> bool:
        demand, lock = self.demand, "lock" if self.servers.one_lock else "core"
        if who == self.consumer:
            if not self.ready:
                return False
            self.ready -= 1
            parts = [(lock, demand.handing), ("core", demand.loop), ("away", demand.away), ("taken", 0.0)]
        else:
            if self.begun >= self.room:
                return False
            self.begun += 1
            parts = [("away", demand.blocked), (lock, demand.locked), ("core", demand.free), ("made", 0.0)]
        for kind, mean in parts:
            if mean > 0 or kind in ("made", "taken"):
                self.todo[who].append((kind, mean * self.random.uniform(0.5, 1.5)))
        return True
