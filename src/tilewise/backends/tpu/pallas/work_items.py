"""The order of the work: head blocks, in them query blocks, in them sequences, in them blocks of keys.

An item is what one sequence has to do in one query block of one head block. The keys of the next item are on their way
while the last block of this one is computed; what has no visible key is passed over and costs no copy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jax import lax
from jax import numpy as jnp

from tilewise.backends.tpu.pallas import visibility
from tilewise.backends.tpu.pallas.paged_shape import PagedShape

Ref = Any
Scalar = Any


class Item(NamedTuple):
    """head_block == shape.head_blocks: there is no more work."""

    head_block: Scalar
    query_block: Scalar
    seq: Scalar


class Keys(NamedTuple):
    """The keys of an item: blocks start at `first` and hold keys before `end`; begin <= keys seen < end."""

    first: Scalar
    begin: Scalar
    end: Scalar
    blocks: Scalar


class WorkItems:
    """Finds items from the lengths in SMEM."""

    def __init__(self, shape: PagedShape, kv_lens: Ref, cu_q_lens: Ref, num_seqs: Ref) -> None:
        self.shape, self.kv_lens, self.cu_q_lens = shape, kv_lens, cu_q_lens
        self.num_seqs = jnp.clip(num_seqs[0], 0, shape.seqs)

    def rows(self, item: Item) -> visibility.Rows:
        """The tokens of an item."""
        seq = jnp.minimum(item.seq, self.shape.seqs - 1)
        first = item.query_block * self.shape.block_tokens
        kv_len = jnp.clip(self.kv_lens[seq], 0, self.shape.context)
        return visibility.rows_in(
            first, first + self.shape.block_tokens, self.cu_q_lens[seq], self.cu_q_lens[seq + 1], kv_len
        )

    def keys(self, item: Item) -> Keys:
        """The keys of an item."""
        begin, end = visibility.key_range(self.rows(item), self.shape.window)
        unit = self.shape.block_keys if self.shape.aligned else self.shape.piece
        first = lax.div(begin, jnp.int32(unit)) * unit
        blocks = lax.div(end - first + self.shape.block_keys - 1, jnp.int32(self.shape.block_keys))
        return Keys(first, begin, end, jnp.where(begin < end, blocks, 0))

    def first(self) -> Item:
        """The first item with work."""
        return self._with_work(self._begin(0))

    def after(self, item: Item) -> Item:
        """The next item with work."""
        return self._with_work(self._step(item))

    def _begin(self, head_block: Scalar) -> Item:
        block = lax.div(self.cu_q_lens[0], jnp.int32(self.shape.block_tokens))
        return Item(jnp.int32(head_block), block, jnp.int32(0))

    def _step(self, item: Item) -> Item:
        """The next pair of sequence and query block that touch."""
        q_end = self.cu_q_lens[jnp.minimum(item.seq, self.shape.seqs - 1) + 1]
        block_end = (item.query_block + 1) * self.shape.block_tokens
        query_block = jnp.where(q_end >= block_end, item.query_block + 1, item.query_block)
        seq = jnp.where(q_end <= block_end, item.seq + 1, item.seq)
        over = (seq >= self.num_seqs) | (query_block >= self.shape.query_blocks)
        again = self._begin(item.head_block + 1)
        return Item(*(jnp.where(over, a, b) for a, b in zip(again, Item(item.head_block, query_block, seq))))

    def _with_work(self, item: Item) -> Item:
        def idle(item: Item) -> Scalar:
            missing = (item.seq >= self.num_seqs) | (self.keys(item).blocks == 0)
            return (item.head_block < self.shape.head_blocks) & missing

        return Item(*lax.while_loop(idle, self._step, item))
