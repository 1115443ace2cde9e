"""One measured line: times, rates, ceilings, and how they stand to the goals."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tilewise.bench.goals import Goal
from tilewise.testing.timing import Timings

OURS = "tilewise"


@dataclass(frozen=True)
class Result:
    """One figure of a row.

    Attributes:
        what: what it says, for people: "x torch SDPA", "% of FMA peak".
        value: the figure.
        goal: what it must and should reach on this machine; None: for information.
    """

    what: str
    value: float
    goal: Goal | None = None

    @property
    def passed(self) -> bool | None:
        """Does it reach its bar? None where no bar is stated for this machine."""
        if self.goal is None or not self.goal.applies:
            return None
        return self.goal.reached(self.value, self.goal.bar)


@dataclass
class Row:
    """One case of one work. Rates are of tilewise; seconds are medians a call."""

    work: str
    case: str
    dtype: str
    threads: int
    clock: str
    seconds: dict[str, float]
    best: dict[str, float] = field(default_factory=dict)
    spread: dict[str, float] = field(default_factory=dict)
    flops: float | None = None  # of one call
    bytes: float | None = None  # that one call must read and write
    peak_flops: float | None = None  # FLOP/s of all threads, measured in this run
    peak_bytes: float | None = None  # bytes/s, likewise
    difference: float | None = None  # largest |tilewise - rival|
    results: list[Result] = field(default_factory=list)

    @classmethod
    def of(cls, work: str, case: str, dtype: str, threads: int, timings: Timings, **rest: Any) -> Row:
        """A row from timings."""
        names = list(timings.seconds)
        return cls(
            work, case, dtype, threads, timings.clock, {name: timings.median(name) for name in names},
            {name: timings.best(name) for name in names}, {name: timings.spread(name) for name in names}, **rest,
        )  # fmt: skip

    def add(self, what: str, value: float, goal: Goal | None = None) -> None:
        """Add a figure."""
        self.results.append(Result(what, value, goal))

    def add_ceiling(self, goal: Goal | None = None) -> None:
        """Add the part of the compute peak, or else of the read bandwidth, that was reached."""
        ours = self.seconds[OURS]
        if self.flops and self.peak_flops:
            self.add("% of FMA peak", 100 * self.flops / ours / self.peak_flops, goal)
        elif self.bytes and self.peak_bytes:
            self.add("% of sequential read", 100 * self.bytes / ours / self.peak_bytes, goal)

    def as_json(self) -> dict[str, Any]:
        """For json.dumps."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Row:
        """Inverse of as_json()."""
        results = [Result(r["what"], r["value"], Goal(**r["goal"]) if r["goal"] else None) for r in data["results"]]
        return cls(**{**data, "results": results})
