"""Tiles of the dense and packed kernels: a first choice that fits every chip's VMEM."""

from __future__ import annotations

from dataclasses import dataclass

from tilewise.backends.tpu.pallas.paged_shape import LANES, lanes
from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import Problem

MIB = 2**20
VMEM_BUDGET = 12 * MIB  # of the smallest VMEM among the chips, v4's 16 MiB
MOST_ROWS = 512


@dataclass(frozen=True, slots=True)
class DenseTiles:
    """Blocks of the dense kernels: query rows and keys of a tile, multiples of 128."""

    block_q: int
    block_k: int

    def __str__(self) -> str:
        return f"tiles of {self.block_q} queries x {self.block_k} keys"


def first_choice(spec: AttentionSpec, problem: Problem) -> DenseTiles:
    """As large as fits, with the least padding."""
    most_q = most_k = MOST_ROWS
    while True:
        tiles = DenseTiles(block_of(problem.q_len, most_q), block_of(problem.kv_len, most_k))
        if vmem_bytes(spec, problem, tiles) <= VMEM_BUDGET or most_q == most_k == LANES:
            return tiles
        if most_q >= most_k:
            most_q //= 2
        else:
            most_k //= 2


def block_of(size: int, most: int) -> int:
    """A multiple of 128, at most `most`, of which whole blocks cover the size with little left over."""
    blocks = max(1, -(-size // most))
    return max(LANES, -(-size // (blocks * LANES)) * LANES)


def vmem_bytes(spec: AttentionSpec, problem: Problem, tiles: DenseTiles) -> int:
    """About what the hungriest of the kernels needs."""
    wide = 2 if problem.dtype == "bfloat16" else 4
    q, k = tiles.block_q, tiles.block_k
    widths = lanes(problem.qk_dim) + lanes(problem.v_dim)
    blocks = 2 * (q + k) * widths * wide
    grown = max(q, k) * widths * (4 + 2 * wide)  # accumulators and results
    state = 2 * q * LANES * 4
    work = 4 * q * k * 4
    biases = (8 if problem.needs_grad else 4) if spec.bias else 0
    pairs = 2 * q * k * (biases + (1 if spec.mask else 0))
    return blocks + grown + state + work + pairs


def vmem_limit(spec: AttentionSpec, problem: Problem, tiles: DenseTiles) -> int:
    """What the compiler may use: the estimate and room for what it keeps for itself."""
    return min(max(16 * MIB, 3 * vmem_bytes(spec, problem, tiles) // 2), 60 * MIB)


def table_bytes(problem: Problem, tiles: DenseTiles) -> int:
    """Scalar memory for the tables of blocks (pallas/row_ranges.py)."""
    batch = 1 if problem.form == "packed" else problem.batch
    q_blocks, k_blocks = -(-problem.q_len // tiles.block_q), -(-problem.kv_len // tiles.block_k)
    return 4 * (batch * (8 * q_blocks + 4 * k_blocks + problem.q_heads * q_blocks) + problem.q_heads)


def empty(problem: Problem) -> bool:
    """Is there no row or no key?"""
    return 0 in (problem.q_len, problem.kv_len) or (problem.form == "dense" and problem.batch == 0)
