"""The computation on one block of keys that lies in a buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp
from jax.experimental import pallas as pl

from tilewise.backends.tpu.pallas import online_softmax, visibility
from tilewise.backends.tpu.pallas.page_words import PageWords
from tilewise.backends.tpu.pallas.paged_arrays import PagedArrays, Scratch
from tilewise.backends.tpu.pallas.paged_shape import PagedShape
from tilewise.backends.tpu.pallas.work_items import Keys

Scalar = Any


class BlockOfKeys:
    """Lets rows of an item see the keys of a buffer slot: keys first .. first + block_keys - 1 of a sequence."""

    def __init__(self, shape: PagedShape, arrays: PagedArrays, scratch: Scratch, first_head: Scalar,
                 interpret: bool) -> None:  # fmt: skip
        self.shape, self.arrays, self.scratch, self.interpret = shape, arrays, scratch, interpret
        self.first_head = first_head
        self.dtype = jnp.dtype(shape.computed)

    def attend(self, rows: visibility.Rows, first_token: Scalar, keys: Keys, first: Scalar, slot: Scalar) -> None:
        """first_token: the first of the query block. A block that every row sees whole pays nothing for masks."""
        shape, step = self.shape, jnp.int32(self.shape.step_tokens)
        begin, end = rows.first - first_token, rows.end - first_token
        plain = visibility.all_see(rows, shape.window, first, first + shape.buffer_keys, shape.max_new > 0)
        plain &= (lax.rem(begin, step) == 0) & (lax.rem(end, step) == 0)
        steps = (lax.div(begin, step), lax.div(end + step - 1, step))

        def attend(masked: bool) -> None:
            block = _Block(self, rows, first_token, keys, first, slot, masked)
            block.transpose_scales()
            (block.one_token_a_step if shape.step_tokens == 1 else block.several_tokens_a_step)(*steps)

        pl.when(plain)(lambda: attend(masked=False))
        pl.when(jnp.logical_not(plain))(lambda: attend(masked=True))


class _Block:
    """A block with everything that is known of it."""

    def __init__(self, known: BlockOfKeys, rows: visibility.Rows, first_token: Scalar, keys: Keys, first: Scalar,
                 slot: Scalar, masked: bool) -> None:  # fmt: skip
        self.shape, self.arrays, self.scratch, self.dtype = known.shape, known.arrays, known.scratch, known.dtype
        self.first_head, self.interpret = known.first_head, known.interpret
        self.rows, self.first_token, self.keys, self.first, self.slot = rows, first_token, keys, first, slot
        self.masked = masked

    def transpose_scales(self) -> None:
        """Scales of slots to lanes."""
        scratch = self.scratch
        if scratch.k_scales is not None:
            scratch.k_scales[...] = scratch.k_scale_buffers[self.slot].T
        if scratch.v_scales is not None:
            scratch.v_scales[...] = scratch.v_scale_buffers[self.slot].T

    def one_token_a_step(self, begin: Scalar, end: Scalar) -> None:
        """Decode: the heads in one stretch of code, so that they hide each other's latency."""

        def all_heads(i: Scalar, carry: Any) -> Any:
            token = visibility.one_token(self.rows, self.first_token + i)
            seen_from, seen_to = visibility.key_range(token, self.shape.window)
            k_words, v_words = self._words()
            heads = range(self.shape.heads)
            at = [(h, self._rows(i)) for h in heads]
            seen = self._seen(i)
            scratch = self.scratch
            for h in heads:
                scratch.s[h] = self._scores(h, at[h], self._k(k_words, h), seen)
                scratch.v[h] = self._v(v_words, h, seen_from, seen_to)
            for h in heads:
                p, alpha = self._weights(h, at[h], scratch.s[h], seen)
                self._accumulate(p, alpha, scratch.v[h], at[h], seen)
            return carry

        lax.fori_loop(begin, end, all_heads, 0)

    def several_tokens_a_step(self, begin: Scalar, end: Scalar) -> None:
        """Heads are unpacked once and serve all steps."""
        shape, scratch, count = self.shape, self.scratch, end - begin
        k_words, v_words = self._words()
        for h in range(shape.heads):
            scratch.k[h] = self._k(k_words, h)
            scratch.v[h] = self._v(v_words, h, self.keys.begin, self.keys.end)

        def one_head(i: Scalar, carry: Any) -> Any:
            h, at = lax.div(i, count), lax.rem(i, count)
            self._step(h, begin + at, scratch.k[h], scratch.v[h])
            return carry

        lax.fori_loop(0, shape.heads * count, one_head, 0)

    def _words(self) -> tuple[PageWords, PageWords]:
        shape, scratch = self.shape, self.scratch

        def words(buffers: Any, dim: int) -> PageWords:
            return PageWords(buffers, self.slot, shape.stack(dim), shape.stored, self.interpret)

        k_words = words(scratch.k_buffers, shape.qk_dim)
        return k_words, k_words if shape.combined else words(scratch.v_buffers, shape.v_dim)

    def _k(self, words: PageWords, h: int) -> jax.Array:
        return words.head(2 * h if self.shape.combined else h, self.dtype)

    def _v(self, words: PageWords, h: int, begin: Scalar, end: Scalar) -> jax.Array:
        """Values of keys begin .. end - 1, and 0: what lies around them may be anything, and 0 * NaN is NaN."""
        v = words.head(2 * h + 1 if self.shape.combined else h, jnp.float32 if self.masked else self.dtype)
        within = self._within(begin, end)
        return v if within is None else jnp.where(within(v.shape), v, 0.0).astype(self.dtype)

    def _within(self, begin: Scalar, end: Scalar) -> Callable[[tuple[int, ...]], jax.Array] | None:
        """shape [keys, D] -> is the key one of begin .. end - 1? None: all are."""
        if not self.masked:
            return None

        def within(shape: tuple[int, ...]) -> jax.Array:
            at = self.first + lax.broadcasted_iota(jnp.int32, shape, 0)
            return (at >= begin) & (at < end)

        return within

    def _rows(self, i: Scalar) -> Any:
        step = self.shape.step_rows
        return pl.ds(pl.multiple_of(i * step, step), step)

    def _step(self, h: Any, i: Scalar, k: jax.Array, v: jax.Array) -> None:
        """The rows of step i of a head."""
        at = (h, self._rows(i))
        seen = self._seen(i)
        p, alpha = self._weights(h, at, self._scores(h, at, k, seen), seen)
        self._accumulate(p, alpha, v, at, seen)

    def _scores(self, h: Any, at: Any, k: jax.Array, seen: jax.Array | None) -> jax.Array:
        s = self._logits(h, online_softmax.scores(self.arrays.q[at].astype(self.dtype), k))
        return s if seen is None else jnp.where(seen, s, -jnp.inf)

    def _weights(self, h: Any, at: Any, s: jax.Array, seen: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        scratch = self.scratch
        p, alpha = online_softmax.weights(s, scratch.m, scratch.l, at, self.shape.unit)
        if scratch.v_scales is not None:
            p = p * scratch.v_scales[pl.ds(h, 1)]
            p = p if seen is None else jnp.where(seen, p, 0.0)
        return p, alpha

    def _accumulate(self, p: jax.Array, alpha: jax.Array, v: jax.Array, at: Any, seen: jax.Array | None) -> None:
        rows_differ = self.shape.step_tokens > 1 or self.shape.max_new > 0
        online_softmax.accumulate(p, alpha, v, self.scratch.acc, at, seen if rows_differ else None)

    def _seen(self, i: Scalar) -> jax.Array | None:
        """bool [step rows, columns of scores]; None: all are seen."""
        shape = self.shape
        if not self.masked:
            return None
        seen = visibility.mask(
            self.rows, shape.window, self.first_token + i * shape.step_tokens, shape.token_rows, self.first,
            self.first + shape.block_keys, (shape.step_rows, shape.buffer_keys),
        )  # fmt: skip
        if shape.max_new:
            drafts = self.arrays.drafts[self._rows(i)].astype(self.dtype)
            seen &= visibility.drafts_seen(drafts, self.rows.first_new, self.first, shape.buffer_keys)
        return seen

    def _logits(self, h: Any, s: jax.Array) -> jax.Array:
        """q.k -> the numbers that are compared: logits in natural units are these times shape.unit."""
        shape = self.shape
        if self.scratch.k_scales is not None:
            s = s * self.scratch.k_scales[pl.ds(h, 1)]
        if shape.k_scale == "head":
            s = s * self.arrays.head_k_scale[self.first_head + h]
        if shape.softcap is not None:
            return jnp.tanh(s * (shape.scale / shape.softcap))
        return s if shape.unit == shape.scale else s * shape.scale
