"""The kernels' own description of a dense or packed call: sizes after padding, blocks, and what is given."""

from __future__ import annotations

from dataclasses import dataclass

LANES = 128
Axes = tuple[bool, bool, bool, bool]  # of [B, H, T, S]: False where the array has size 1


@dataclass(frozen=True, slots=True)
class DenseShape:
    """Arrays are [batch, heads, rows, width]; packed sequences are one batch entry. Rows fill whole blocks.

    Attributes:
        q_len, kv_len: multiples of block_q and block_k, which are multiples of 128. qk_dim, v_dim: of 128.
        computed: dtype of q, k, v and of the operands of every product. out: of out and of the gradients.
        span: keys between the first that a block's first row and the last that its last row may see, or None: any.
        reach: the same, the rows that may see a block of keys.
        mask, bias: the axes along which they vary, or None.
    """

    batch: int
    q_heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    qk_dim: int
    v_dim: int
    computed: str
    out: str
    block_q: int
    block_k: int
    scale: float
    softcap: float | None = None
    segments: bool = False
    sinks: bool = False
    mask: Axes | None = None
    bias: Axes | None = None
    span: int | None = None
    reach: int | None = None

    @property
    def group(self) -> int:
        """Query heads that share a kv head."""
        return self.q_heads // self.kv_heads

    @property
    def q_blocks(self) -> int:
        """Blocks of queries."""
        return self.q_len // self.block_q

    @property
    def k_blocks(self) -> int:
        """Blocks of keys."""
        return self.kv_len // self.block_k

    @property
    def key_steps(self) -> int:
        """The most blocks of keys that a block of queries sees."""
        return self.k_blocks if self.span is None else min(self.k_blocks, _touched(self.span, self.block_k))

    @property
    def query_steps(self) -> int:
        """The most blocks of queries that see a block of keys."""
        return self.q_blocks if self.reach is None else min(self.q_blocks, _touched(self.reach, self.block_q))

    @property
    def unit(self) -> float:
        """The last positive factor of the logits; what is before it is compared (online_softmax.py)."""
        if self.bias is not None:
            return 1.0
        if self.softcap is not None:
            return self.softcap
        return self.scale if self.scale > 0 else 1.0


def _touched(length: int, block: int) -> int:
    """Blocks that a stretch of this length may touch, wherever it begins."""
    return (length - 2) // block + 2 if length > 1 else 1
