"""Tiles of the TPU kernels: a first choice that fits every chip's VMEM, and what tuning may try."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewise.backends.tpu import dense_tiles
from tilewise.backends.tpu.dense_tiles import DenseTiles
from tilewise.backends.tpu.pallas.paged_shape import BITS, LANES, SUBLANES, lanes, padded_group
from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import PagedProblem, Problem

MIB = 2**20
VMEM_BUDGET = 12 * MIB  # of the smallest VMEM among the chips, v4's 16 MiB
BYTES = {name: bits // 8 for name, bits in BITS.items()}
MOST_KEYS = 512  # of a block
MOST_PIECE = 512  # keys a DMA


@dataclass(frozen=True, slots=True)
class PagedTiles:
    """Blocks of the paged kernel.

    Attributes:
        block_tokens: query tokens a grid step. step_tokens: those whose rows are worked on together; divides it.
        block_pieces: pieces of pages whose keys are worked on together. piece: keys a DMA brings; divides a page.
        head_blocks: blocks that the kv heads are cut in.
    """

    block_tokens: int
    step_tokens: int
    block_pieces: int
    piece: int
    head_blocks: int = 1

    def __str__(self) -> str:
        heads = f", heads in {self.head_blocks} blocks" if self.head_blocks > 1 else ""
        return (f"blocks of {self.block_tokens} tokens in steps of {self.step_tokens}, "
                f"{self.block_pieces * self.piece} keys in {self.block_pieces} copies{heads}")  # fmt: skip


def tile_choices(spec: AttentionSpec, problem: Problem | PagedProblem) -> tuple[PagedTiles | DenseTiles, ...]:
    """The heuristic choice first."""
    if not isinstance(problem, PagedProblem):
        return () if dense_tiles.empty(problem) else (dense_tiles.first_choice(spec, problem),)
    if problem.form == "append" or 0 in (problem.max_seqs, problem.max_tokens):
        return ()
    return (first_choice(spec, problem),)


def first_choice(spec: AttentionSpec, problem: PagedProblem) -> PagedTiles:
    """Decode (no more tokens than sequences): a token a step. Else steps of about 128 rows."""
    piece = piece_of(problem.page_size)
    decode = problem.max_tokens <= problem.max_seqs
    step = 1 if decode else step_of(problem.group)
    rows = -(-problem.group // SUBLANES) * SUBLANES if decode else problem.group
    block = step * max(1, LANES // (step * rows)) if decode else step * 2
    while block > step and block >= 2 * problem.max_tokens:
        block //= 2
    keys = MOST_KEYS
    while True:
        pieces = max(1, min(keys // piece, -(-problem.pages_per_seq * problem.page_size // piece)))
        tiles = PagedTiles(block, step, pieces, piece)
        if vmem_bytes(spec, problem, tiles) <= VMEM_BUDGET or (pieces == 1 and block == step):
            return tiles
        if block > step:
            block = max(step, block // 2)
        else:
            keys //= 2


def piece_of(page_size: int) -> int:
    """A whole page, or its largest part that is not too large for a buffer."""
    return max(n for n in range(1, min(page_size, MOST_PIECE) + 1) if page_size % n == 0)


def step_of(group: int) -> int:
    """Tokens whose rows fill about 128 rows, whole bfloat16 tiles."""
    unit = 16 // math.gcd(16, group)
    return unit * max(1, LANES // (unit * group))


def vmem_bytes(spec: AttentionSpec, problem: PagedProblem, tiles: PagedTiles) -> int:
    """About what the kernel needs."""
    heads = problem.kv_heads // tiles.head_blocks
    rows = heads * tiles.block_tokens * padded_group(problem.group, tiles.step_tokens)
    packing = 4 // BYTES[problem.page_dtype]
    keys = -(-tiles.block_pieces * tiles.piece // LANES) * LANES
    widths = [lanes(d) for d in (problem.qk_dim, problem.v_dim)]
    stored = [-(-(2 if problem.combined else 1) * heads // packing) * width // LANES for width in widths]
    buffers = 2 * keys * sum(n + 1 - n % 2 for n in (stored[:1] if problem.combined else stored)) * 4 * LANES
    scales = sum(2 * keys * LANES * 4 for x in (spec.k_scale, spec.v_scale) if x == "slot")
    state = rows * 4 * (2 * LANES + widths[1])
    blocks = 2 * rows * sum(widths) * 4 + (2 * rows * LANES * 4 if spec.sinks else 0)
    unpacked = heads * keys * sum(widths) * BYTES[problem.dtype if problem.dtype == "bfloat16" else "float32"]
    unpacked = unpacked if tiles.step_tokens > 1 else 0
    step_rows = tiles.step_tokens * padded_group(problem.group, tiles.step_tokens)
    work = unpacked + 2 * keys * sum(widths) * 4 + 4 * step_rows * keys * 4
    return buffers + scales + state + blocks + work
