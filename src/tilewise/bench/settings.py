"""What a run measures and on what, as one value that travels to the worker process."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Settings:
    """Options of a run.

    Attributes:
        threads: threads, and CPUs, that every library gets.
        dtypes: those to measure; empty: what the work's goals name.
        quick: fewer sizes and rounds: to see that all is well, not to quote.
        backend: the `backend` argument of every call; "fused" so that plain array code is never measured by accident.
    """

    threads: int = 1
    dtypes: tuple[str, ...] = ()
    quick: bool = False
    backend: str = "fused"

    @property
    def clock(self) -> str:
        """CPU time for one thread, the wall clock for more."""
        return "cpu" if self.threads == 1 else "wall"

    @property
    def timing(self) -> dict[str, Any]:
        """Keywords of testing.timing.interleave."""
        if self.quick:
            return {"clock": self.clock, "rounds": 5, "turn": 0.01, "budget": 1.5}
        return {"clock": self.clock, "rounds": 11, "turn": 0.02, "budget": 5.0}

    def chosen(self, *defaults: str) -> tuple[str, ...]:
        """The dtypes to measure, given those that a work has goals for."""
        return tuple(name for name in defaults if name in self.dtypes) if self.dtypes else defaults

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Settings:
        return cls(**{**data, "dtypes": tuple(data["dtypes"])})
