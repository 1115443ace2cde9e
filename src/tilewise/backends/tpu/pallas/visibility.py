"""Which keys a row sees: the arithmetic of spec/visibility.py on the scalars and registers of a TPU. int32 always."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp

Scalar = Any
Window = tuple[int | None, int | None]
FAR = 2**30  # past every position; sums of two stay in int32


class Rows(NamedTuple):
    """Tokens first .. end - 1 of one sequence, and where they stand: token t is at position t + shift.

    first_new: the position of the sequence's first new token.
    """

    first: Scalar
    end: Scalar
    shift: Scalar
    kv_len: Scalar
    first_new: Scalar


def rows_in(first: Scalar, end: Scalar, q_start: Scalar, q_end: Scalar, kv_len: Scalar) -> Rows:
    """The tokens first .. end - 1 that a sequence owns."""
    shift = kv_len - q_end
    return Rows(jnp.maximum(first, q_start), jnp.minimum(end, q_end), shift, kv_len, q_start + shift)


def one_token(rows: Rows, token: Scalar) -> Rows:
    """Those of the rows that are of this token."""
    return rows._replace(first=jnp.maximum(rows.first, token), end=jnp.minimum(rows.end, token + 1))


def key_range(rows: Rows, window: Window) -> tuple[Scalar, Scalar]:
    """Keys first .. end - 1 that some row sees; first >= end: none."""
    first, last = rows.first + rows.shift, rows.end - 1 + rows.shift
    left, right = window
    begin = 0 if left is None else jnp.maximum(first - min(left, FAR), 0)
    end = rows.kv_len if right is None else jnp.minimum(rows.kv_len, last + min(right, FAR) + 1)
    return begin, jnp.where(rows.first < rows.end, end, 0)


def all_see(rows: Rows, window: Window, first_key: Scalar, end_key: Scalar, drafts: bool) -> Scalar:
    """Does every row see each of the keys first_key .. end_key - 1? drafts: a draft mask judges the new tokens."""
    first, last = rows.first + rows.shift, rows.end - 1 + rows.shift
    left, right = window
    sees = end_key <= rows.kv_len
    if right is not None:
        sees &= end_key <= first + min(right, FAR) + 1
    if left is not None:
        sees &= first_key >= last - min(left, FAR)
    return sees & (end_key <= rows.first_new) if drafts else sees


def mask(rows: Rows, window: Window, token: Scalar, token_rows: int, first_key: Scalar, end_key: Scalar,
         shape: tuple[int, int]) -> jax.Array:  # fmt: skip
    """bool [step rows, keys]: does the row see the key? Row r is of token `token` + r // token_rows."""
    lanes = (shape[0], min(shape[1], 128))
    row = lax.broadcasted_iota(jnp.int32, lanes, 0)
    tokens = token + (row if token_rows == 1 else lax.div(row, jnp.int32(token_rows)))
    position = tokens + rows.shift
    left, right = window
    end = jnp.full(lanes, 0, jnp.int32) + jnp.minimum(rows.kv_len, end_key)
    if right is not None:
        end = jnp.minimum(end, position + (min(right, FAR) + 1))
    owned = (tokens >= rows.first) & (tokens < rows.end)
    end = jnp.where(owned, end, 0)
    key = first_key + lax.broadcasted_iota(jnp.int32, shape, 1)
    seen = key < spread(end, shape[1])
    if left is not None:
        seen &= key >= spread(position - min(left, FAR), shape[1])
    return seen


def drafts_seen(drafts: jax.Array, first_new: Scalar, first_key: Scalar, keys: int) -> jax.Array:
    """bool [rows, keys]: is the key old, or a new token that the row's draft mask [rows, new] (1: seen) lets it see?

    A product with a shifted unit matrix moves the columns to their keys.
    """
    at = first_key - first_new

    def key(shape: tuple[int, ...]) -> jax.Array:
        return at + lax.broadcasted_iota(jnp.int32, shape, 1)

    places = (drafts.shape[1], keys)
    unit = jnp.where(key(places) == lax.broadcasted_iota(jnp.int32, places, 0), 1.0, 0.0).astype(drafts.dtype)
    moved = jnp.dot(drafts, unit, preferred_element_type=jnp.float32)
    return (key(moved.shape) < 0) | (moved > 0.5)


def spread(x: jax.Array, columns: int) -> jax.Array:
    """[rows, columns] of [rows, 128] whose lanes are all alike: registers used again, nothing is moved."""
    width = x.shape[1]
    if columns == width:
        return x
    if columns < width:
        return x[:, :columns]
    if columns % width:
        return jnp.broadcast_to(x[:, :1], (x.shape[0], columns))
    return jnp.concatenate([x] * (columns // width), axis=1)
