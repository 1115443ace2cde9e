"""Tiles of the CPU kernels."""

from __future__ import annotations

from dataclasses import dataclass

from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import PagedProblem, Problem


@dataclass(frozen=True, slots=True)
class CpuTiles:
    """Blocks that a task works on: the query rows that share a packed key block of this many keys."""

    queries: int
    keys: int

    def __str__(self) -> str:
        return f"tiles of {self.queries} queries x {self.keys} keys"


def tile_choices(spec: AttentionSpec, problem: Problem | PagedProblem) -> tuple[CpuTiles, ...]:
    """The blocks that the kernels use; they are compiled in."""
    return (CpuTiles(96, 256),)
