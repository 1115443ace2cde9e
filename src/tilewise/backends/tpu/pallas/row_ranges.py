"""Which keys each row of a dense or packed call sees, as ranges, and the tables of blocks made of them. Plain JAX.

Windows, lengths and packed sequences all leave a row one range of keys; segments and masks are judged pair by pair.
Positions: docs/meaning.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from tilewise.backends.tpu.pallas.dense_shape import DenseShape
from tilewise.backends.tpu.pallas.visibility import FAR
from tilewise.spec.attention_spec import Window

NO_KEY = 2**31 - 1
Q_COLUMNS = ("first", "count", "whole_first", "whole_end", "low", "high", "least", "most")
K_COLUMNS = ("first", "count", "least", "most")


class RowRanges(NamedTuple):
    """int32 [B, T]: row t sees keys begin .. end - 1 (0, 0: none) of its own segment; owned: by a sequence.

    q_ids [B, T], k_ids [B, S]: segment ids, negative: none; None without segments.
    """

    begin: jax.Array
    end: jax.Array
    owned: jax.Array
    q_ids: jax.Array | None = None
    k_ids: jax.Array | None = None


def dense(batch: int, q_len: int, kv_len: int, window: Window, q_lens: Any, kv_lens: Any, q_ids: Any,
          k_ids: Any) -> RowRanges:  # fmt: skip
    """Of a dense call; lengths int [B] or None, ids int [B, T] and [B, S] or None."""
    row = jnp.arange(q_len, dtype=jnp.int32)[None, :]
    q_size = _lengths(q_lens, q_len, batch)
    kv_size = _lengths(kv_lens, kv_len, batch)
    owned = row < q_size
    if q_ids is not None:
        q_ids, k_ids = (jnp.asarray(x).astype(jnp.int32) for x in (q_ids, k_ids))
        owned = owned & (q_ids >= 0)
    return _ranges(row + kv_size - q_size, jnp.zeros_like(kv_size), kv_size, owned, window)._replace(
        q_ids=q_ids, k_ids=k_ids
    )


def packed(q_len: int, kv_len: int, window: Window, q_starts: jax.Array, kv_starts: jax.Array) -> RowRanges:
    """Of a packed call; starts int [n + 1]."""
    q_starts, kv_starts = (jnp.asarray(x).astype(jnp.int32) for x in (q_starts, kv_starts))
    row = jnp.arange(q_len, dtype=jnp.int32)
    last = q_starts.shape[0] - 1
    if last == 0:
        none = jnp.zeros((1, q_len), jnp.int32)
        return RowRanges(none, none, none)
    sequence = jnp.searchsorted(q_starts, row, side="right").astype(jnp.int32) - 1
    owned = (sequence >= 0) & (sequence < last)
    at = jnp.clip(sequence, 0, last - 1)
    ends = jnp.clip(kv_starts, 0, kv_len)
    position = row + kv_starts[at + 1] - q_starts[at + 1]
    found = _ranges(position, ends[at], ends[at + 1], owned, window)
    return RowRanges(*(x[None] for x in found[:3]))


def _lengths(lens: Any, size: int, batch: int) -> jax.Array:
    """int32 [B, 1]."""
    if lens is None:
        return jnp.full((batch, 1), size, jnp.int32)
    return jnp.clip(jnp.asarray(lens), 0, size).astype(jnp.int32)[:, None]


def _ranges(position: jax.Array, begin: jax.Array, end: jax.Array, owned: jax.Array, window: Window) -> RowRanges:
    left, right = window
    begin, end = (jnp.broadcast_to(x, position.shape) for x in (begin, end))
    if left is not None:
        begin = jnp.maximum(begin, position - min(left, FAR))
    if right is not None:
        end = jnp.minimum(end, position + min(right, FAR) + 1)
    some = owned & (begin < end)
    owned = jnp.broadcast_to(owned, position.shape).astype(jnp.int32)
    return RowRanges(jnp.where(some, begin, 0), jnp.where(some, end, 0), owned)


def facts(shape: DenseShape, rows: RowRanges) -> jax.Array:
    """int32 [B, 8, T]: begin, end, owned and segment id of each row, along the lanes."""
    ids = jnp.zeros_like(rows.begin) if rows.q_ids is None else rows.q_ids
    found = jnp.stack([rows.begin, rows.end, rows.owned, ids], axis=1)
    return jnp.pad(found, ((0, 0), (0, 4), (0, shape.q_len - found.shape[2])))


def key_ids(shape: DenseShape, rows: RowRanges) -> jax.Array | None:
    """int32 [B, 1, S]: segment ids of the keys; those of padding are of no row."""
    if rows.k_ids is None:
        return None
    ids = jnp.where(rows.k_ids < 0, -2, rows.k_ids)
    return jnp.pad(ids, ((0, 0), (0, shape.kv_len - ids.shape[1])), constant_values=-2)[:, None]


def tables(shape: DenseShape, rows: RowRanges) -> tuple[jax.Array, jax.Array]:
    """(int32 [B * q_blocks * 8], int32 [B * k_blocks * 4]), by Q_COLUMNS and K_COLUMNS, for scalar memory.

    first, count: the blocks of the other side to visit. whole_first, whole_end: keys that every row of the block sees.
    low, high: keys that some row may see. least, most: segment ids in the block.
    """
    batch, block_q, block_k = shape.batch, shape.block_q, shape.block_k
    padding = ((0, 0), (0, shape.q_len - rows.begin.shape[1]))
    begin, end = (jnp.pad(x, padding).reshape(batch, -1, block_q) for x in rows[:2])
    some = begin < end
    low, high = jnp.min(jnp.where(some, begin, NO_KEY), -1), jnp.max(end, -1)
    whole_first, whole_end = jnp.max(jnp.where(some, begin, NO_KEY), -1), jnp.min(end, -1)
    first_key = jnp.arange(shape.k_blocks, dtype=jnp.int32) * block_k
    live = (low[..., None] < first_key + block_k) & (high[..., None] > first_key)
    zero_q, zero_k = jnp.zeros_like(low), jnp.zeros((batch, shape.k_blocks), jnp.int32)
    q_least, q_most, k_least, k_most = zero_q, zero_q, zero_k, zero_k
    if rows.q_ids is not None and rows.k_ids is not None:
        q_least, q_most = _extremes(jnp.pad(rows.q_ids, padding, constant_values=-1), block_q)
        padded = ((0, 0), (0, shape.kv_len - rows.k_ids.shape[1]))
        k_least, k_most = _extremes(jnp.pad(rows.k_ids, padded, constant_values=-1), block_k)
        live &= (q_least[..., None] <= k_most[:, None]) & (k_least[:, None] <= q_most[..., None])
    q_table = jnp.stack([*_visits(live), whole_first, whole_end, low, high, q_least, q_most], -1)
    k_table = jnp.stack([*_visits(live.swapaxes(1, 2)), k_least, k_most], -1)
    return q_table.reshape(-1), k_table.reshape(-1)


def _extremes(ids: jax.Array, block: int) -> tuple[jax.Array, jax.Array]:
    """(least, most) of the ids of each block that are not negative."""
    ids = ids.reshape(ids.shape[0], -1, block)
    return jnp.min(jnp.where(ids < 0, NO_KEY, ids), -1), jnp.max(ids, -1)


def _visits(live: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(first, count): the stretch of the last axis that holds all that is true."""
    size = live.shape[-1]
    first = jnp.argmax(live, -1).astype(jnp.int32)
    end = size - jnp.argmax(live[..., ::-1], -1).astype(jnp.int32)
    return first, jnp.where(live.any(-1), end - first, 0)
