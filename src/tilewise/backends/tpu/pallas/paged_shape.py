"""Everything that is known of a paged kernel before it runs: sizes, tiles and the math, frozen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

LANES = 128
SUBLANES = 8
BITS = {"float32": 32, "bfloat16": 16, "float16": 16, "int8": 8, "float8_e4m3fn": 8, "float8_e5m2": 8}


@dataclass(frozen=True, slots=True)
class PagedShape:
    """A paged call as the kernel sees it.

    Attributes:
        tokens, seqs, pages, page_size, pages_per_seq, q_heads, kv_heads: as in PagedProblem.
        qk_dim, v_dim: widths, padded to whole registers of 128 lanes.
        stored: dtype of the pages. computed: dtype of both operands of a matrix product (float32 or bfloat16).
        out: dtype of the output.
        combined: K at even and V at odd heads of one array; else two arrays.
        max_new: columns of a draft mask, padded to whole registers; 0: there is none.
        scale, window, softcap, sinks: the math. k_scale, v_scale: "none", "head" or "slot".
        block_tokens: query tokens a grid step. step_tokens: those whose rows are worked on together.
        block_pieces: pieces of pages whose keys are worked on together. piece: keys copied by one DMA.
        head_blocks: blocks that the kv heads are cut in.
        aligned: blocks of keys start at multiples of their own size whatever the window (batch invariance).
    """

    tokens: int
    seqs: int
    pages: int
    page_size: int
    pages_per_seq: int
    q_heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    stored: str
    computed: str
    out: str
    combined: bool
    max_new: int
    scale: float
    window: tuple[int | None, int | None]
    softcap: float | None
    sinks: bool
    k_scale: str
    v_scale: str
    block_tokens: int
    step_tokens: int
    block_pieces: int
    piece: int
    head_blocks: int = 1
    aligned: bool = False

    @property
    def group(self) -> int:
        """Query heads a kv head."""
        return self.q_heads // self.kv_heads

    @property
    def token_rows(self) -> int:
        """Rows that a token has in a head: its group, padded so that a step is whole registers."""
        return padded_group(self.group, self.step_tokens)

    @property
    def step_rows(self) -> int:
        """Rows of a step."""
        return self.step_tokens * self.token_rows

    @property
    def block_rows(self) -> int:
        """Rows of a grid step."""
        return self.block_tokens * self.token_rows

    @property
    def query_blocks(self) -> int:
        """Grid steps over the tokens."""
        return -(-self.tokens // self.block_tokens)

    @property
    def heads(self) -> int:
        """kv heads of a head block."""
        return self.kv_heads // self.head_blocks

    @property
    def block_keys(self) -> int:
        """Keys of a block."""
        return self.block_pieces * self.piece

    @property
    def buffer_keys(self) -> int:
        """Key slots of a buffer: a block, padded to whole lanes."""
        return -(-self.block_keys // LANES) * LANES

    @property
    def packing(self) -> int:
        """Stored values in a 32-bit word."""
        return 32 // BITS[self.stored]

    @property
    def page_heads(self) -> int:
        """Heads that lie side by side in a page array, padded to whole words."""
        heads = self.kv_heads * (2 if self.combined else 1)
        return -(-heads // self.packing) * self.packing

    def stack(self, dim: int) -> Stack:
        """How a key of this width, and of the heads of a head block, lies in the pages."""
        words = self.page_heads // self.packing // self.head_blocks
        return Stack(words, min(words, tile_words(self.page_heads, self.packing)), dim // LANES)

    @property
    def word_heads(self) -> int:
        """kv heads that are loaded together, since they share words."""
        return max(1, self.packing // 2) if self.combined else self.packing

    @property
    def unpacked_heads(self) -> int:
        """Heads of a head block, padded to those that share words."""
        return -(-self.heads // self.word_heads) * self.word_heads

    def places(self, group: Any, i: int) -> tuple[tuple[Any, int], tuple[Any, int]]:
        """(word, place in it) of K, and of V, of head `i` of a group of heads that share words."""
        if not self.combined:
            return (group, i), (group, i)
        if self.packing == 1:
            return (2 * group, 0), (2 * group + 1, 0)
        return (group, 2 * i), (group, 2 * i + 1)

    @property
    def carried(self) -> str:
        """The dtype of the page arrays: what the chips cannot name travels as bits of another."""
        return "bfloat16" if self.stored == "float16" else self.stored

    @property
    def query_dtype(self) -> str:
        """What the queries are held in: float32 where a step is half a bfloat16 tile."""
        return self.computed if self.step_rows % (SUBLANES * 32 // BITS[self.computed]) == 0 else "float32"

    @property
    def unit(self) -> float:
        """A logit in natural units is the number the kernel compares times this."""
        if self.softcap is not None:
            return self.softcap
        return self.scale if self.scale > 1e-6 else 1.0

    @property
    def context(self) -> int:
        """The most keys that a sequence can have."""
        return self.pages_per_seq * self.page_size


@dataclass(frozen=True, slots=True)
class Stack:
    """A key in a page: rows of 128 words of 32 bits. A word holds a lane of `packing` heads that lie side by side.

    Attributes:
        words: rows that all heads need for one column of 128 lanes. tile: those that lie together, column by column,
            as the chips tile the last two axes in memory. columns: of 128 lanes in a head.
    """

    words: int
    tile: int
    columns: int

    @property
    def rows(self) -> int:
        """Rows of a key."""
        return self.words * self.columns

    @property
    def buffer_rows(self) -> int:
        """Rows of a key in a buffer: odd, so that the registers of a head load without bank conflicts."""
        return self.rows + 1 - self.rows % 2

    def row(self, word: Any, column: int) -> Any:
        """Where a word's column lies."""
        if self.columns == 1:
            return word
        tile, at = divmod(word, self.tile)
        return (tile * self.columns + column) * self.tile + at


def padded_group(group: int, step_tokens: int) -> int:
    """The least number of rows a token, at least `group`, that makes a step whole 8-row registers."""
    multiple = SUBLANES // math.gcd(SUBLANES, step_tokens)
    return -(-group // multiple) * multiple


def tile_words(heads: int, packing: int) -> int:
    """Words that lie together in memory: those of 8 heads where they fill such tiles, else all."""
    return (SUBLANES if heads % SUBLANES == 0 else heads) // packing


def lanes(dim: int) -> int:
    """A width in whole registers."""
    return -(-dim // LANES) * LANES
