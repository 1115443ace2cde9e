"""Which tiles of queries x keys are empty or whole, where a grid step stands, and which pairs of a tile are visible."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from tilewise.backends.tpu.pallas.dense_arrays import DenseArrays, Place
from tilewise.backends.tpu.pallas.dense_shape import DenseShape
from tilewise.backends.tpu.pallas.row_ranges import K_COLUMNS, Q_COLUMNS

Scalar = Any
BEGIN, END, OWNED, SEGMENT = range(4)  # rows of facts


def q_entry(shape: DenseShape, table: Any, b: Scalar, i: Scalar, column: str) -> Scalar:
    """What the table says of a block of queries."""
    return table[(b * shape.q_blocks + i) * len(Q_COLUMNS) + Q_COLUMNS.index(column)]


def k_entry(shape: DenseShape, table: Any, b: Scalar, j: Scalar, column: str) -> Scalar:
    """What the table says of a block of keys."""
    return table[(b * shape.k_blocks + j) * len(K_COLUMNS) + K_COLUMNS.index(column)]


def by_queries(shape: DenseShape, b: Scalar, h: Scalar, i: Scalar, step: Scalar, q_table: Any, *_: Any) -> Place:
    """Grid [B, H, q_blocks, key_steps]: steps past the last visited block stay at it, so that nothing is copied."""
    count = q_entry(shape, q_table, b, i, "count")
    first = q_entry(shape, q_table, b, i, "first")
    return Place(b, h, i, first + jnp.minimum(step, jnp.maximum(count - 1, 0)))


def by_keys(shape: DenseShape, b: Scalar, kv_head: Scalar, j: Scalar, step: Scalar, _: Any, k_table: Any,
            *rest: Any) -> Place:  # fmt: skip
    """Grid [B, Hkv, k_blocks, group * query_steps]: all blocks of queries of one head, then of the next."""
    count = k_entry(shape, k_table, b, j, "count")
    first = k_entry(shape, k_table, b, j, "first")
    head = kv_head * shape.group + lax.div(step, jnp.int32(shape.query_steps))
    block = lax.rem(step, jnp.int32(shape.query_steps))
    return Place(b, head, first + jnp.minimum(block, jnp.maximum(count - 1, 0)), j)


def classes(shape: DenseShape, arrays: DenseArrays, at: Place) -> tuple[Scalar, Scalar]:
    """(does some row of the tile see some key, does every row see every key) as far as ranges and segments tell."""
    first, end = at.j * shape.block_k, (at.j + 1) * shape.block_k

    def of_rows(column: str) -> Scalar:
        return q_entry(shape, arrays.q_table, at.b, at.i, column)

    live = (of_rows("low") < end) & (of_rows("high") > first)
    whole = (of_rows("whole_first") <= first) & (of_rows("whole_end") >= end)
    if shape.segments:
        least, most = (k_entry(shape, arrays.k_table, at.b, at.j, name) for name in ("least", "most"))
        live &= (of_rows("least") <= most) & (of_rows("most") >= least)
        whole &= False  # a block of keys may hold padding, which only its ids tell
    if shape.mask is not None:
        whole &= False
    if arrays.complete is not None:
        whole &= arrays.complete[(at.b * shape.q_heads + at.h) * shape.q_blocks + at.i] == 1
    return live, whole


def seen(shape: DenseShape, arrays: DenseArrays, at: Place) -> jax.Array:
    """bool [block_q, block_k]: does the row see the key?"""
    facts = columns(arrays.facts[0])
    key = at.j * shape.block_k + lax.broadcasted_iota(jnp.int32, (shape.block_q, shape.block_k), 1)
    found = (key >= facts[:, BEGIN : BEGIN + 1]) & (key < facts[:, END : END + 1])
    if shape.segments:
        found &= facts[:, SEGMENT : SEGMENT + 1] == arrays.k_ids[0]
    if shape.mask is not None:
        found &= arrays.mask[0, 0].astype(jnp.int32) != 0
    return found


def columns(x: jax.Array) -> jax.Array:
    """[8, rows] -> [rows, 8]: what lies along the lanes stands beside its row."""
    return x.T
