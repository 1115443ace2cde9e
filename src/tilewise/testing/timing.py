"""Timing that a busy machine disturbs little: rivals take turns in one run, and ratios are taken round by round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Call = Callable[[], object]


@dataclass(frozen=True)
class Timings:
    """Seconds a call: of each name, a number a round, in the order of the rounds.

    clock: "cpu" (time of this process on all its threads: preemption does not count) or "wall".
    """

    seconds: dict[str, list[float]]
    clock: str

    def median(self, name: str) -> float:
        """Median seconds a call."""
        return statistics.median(self.seconds[name])

    def best(self, name: str) -> float:
        """Fewest seconds a call."""
        return min(self.seconds[name])

    def ratio(self, slow: str, fast: str) -> float:
        """How many times longer `slow` takes than `fast`: the median of the ratios of each round."""
        return statistics.median(a / b for a, b in zip(self.seconds[slow], self.seconds[fast], strict=True))

    def spread(self, name: str) -> float:
        """Middle half of the rounds, as a part of the median: how far the median may be trusted."""
        rounds = self.seconds[name]
        if len(rounds) < 4:
            return (max(rounds) - min(rounds)) / statistics.median(rounds)
        first, middle, third = statistics.quantiles(rounds, n=4)
        return (third - first) / middle


def interleave(
    calls: Mapping[str, Call], *, clock: str, rounds: int = 11, turn: float = 0.02, budget: float = 6.0
) -> Timings:
    """Time calls that take turns, so that each meets the same machine; every other round goes backwards.

    One thread is timed by the process's CPU time, several by the wall clock: see clock_of(). Each call is warmed up
    once and repeated within its turn until the turn lasts about `turn` seconds.

    Args:
        calls: name to a function without arguments.
        clock: "cpu" or "wall".
        rounds: turns each; at least 3 are taken, then `budget` seconds end the run.
    """
    read = {"cpu": time.process_time, "wall": time.perf_counter}[clock]
    repeats = {name: _repeats(call, turn) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    began = time.perf_counter()
    for done in range(rounds):
        for name in list(calls)[:: -1 if done % 2 else 1]:
            call = calls[name]
            start = read()
            for _ in range(repeats[name]):
                call()
            seconds[name].append((read() - start) / repeats[name])
        if done >= 2 and time.perf_counter() - began > budget:
            break
    return Timings(seconds, clock)


def clock_of(threads: int) -> str:
    """CPU time for one thread (steady on a shared machine); the wall clock for more."""
    return "cpu" if threads == 1 else "wall"


def _repeats(call: Call, turn: float) -> int:
    call()  # first calls plan, compile and allocate
    start = time.perf_counter()
    call()
    once = time.perf_counter() - start
    if once < turn / 100:  # too short for one reading
        start = time.perf_counter()
        for _ in range(50):
            call()
        once = (time.perf_counter() - start) / 50
    return max(1, round(turn / max(once, 1e-7)))
