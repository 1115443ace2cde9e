"""Tiles of the CPU kernels: what native/ is compiled with, by the kernel that a call runs."""

from __future__ import annotations

from dataclasses import dataclass

from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import PagedProblem, Problem

# The constants of native/ (tests/backends/cpu/test_tiles.py compares them).
BLOCK = (96, 256)  # forward_block.hpp: kQueryBlock, kKeyBlock
FEW_ROWS = 8  # forward_block.hpp: kFewQueries
GRADIENT_BLOCK = (128, 128)  # backward_block.hpp
DECODE_BLOCK = (8, 64)  # decode.hpp: kDecodeRows (4 on the narrowest levels), kDecodeKeys
ROWS_IN_PLACE = 32  # paged.cpp: kRowsInPlace


@dataclass(frozen=True, slots=True)
class CpuTiles:
    """Blocks that a task works on, at most: rows are the queries of all heads that share a kv head.

    Attributes:
        queries, keys: rows that meet a block of this many keys.
        decode: the same for sequences of a paged call that are short enough to read keys where they lie, if there may
            be others; (queries, keys) are then those of the others.
        backward: the same for gradients, if they are wanted.
    """

    queries: int
    keys: int
    decode: tuple[int, int] | None = None
    backward: tuple[int, int] | None = None

    def __str__(self) -> str:
        text = f"tiles of {self.queries} queries x {self.keys} keys"
        if self.decode:
            text += f" (decode: {self.decode[0]} x {self.decode[1]})"
        return f"{text}, backward {self.backward[0]} x {self.backward[1]}" if self.backward else text


def tile_choices(spec: AttentionSpec, problem: Problem | PagedProblem) -> tuple[CpuTiles, ...]:
    """The blocks that the call's kernel uses; they are compiled in. None for paged float64: it has no tiles."""
    if isinstance(problem, PagedProblem):
        if problem.dtype == "float64":
            return ()
        if problem.max_tokens <= 1 or problem.max_tokens * problem.group <= ROWS_IN_PLACE:
            return (CpuTiles(*DECODE_BLOCK),)
        return (CpuTiles(*BLOCK, decode=DECODE_BLOCK),)
    few = problem.q_len * problem.group <= FEW_ROWS
    rows, keys = (FEW_ROWS, BLOCK[1]) if few else BLOCK
    return (CpuTiles(rows, keys, backward=GRADIENT_BLOCK if problem.needs_grad else None),)
