"""The computation on one block of keys that lies in a buffer."""

from __future__ import annotations

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
    """Lets rows see the keys of a buffer slot."""

    def __init__(self, shape: PagedShape, arrays: PagedArrays, scratch: Scratch, head_block: Scalar,
                 interpret: bool) -> None:  # fmt: skip
        self.shape, self.arrays, self.scratch, self.interpret = shape, arrays, scratch, interpret
        self.first_head = head_block * shape.heads
        self.dtype = jnp.dtype(shape.computed)

    def attend(self, rows: visibility.Rows, first_token: Scalar, keys: Keys, first: Scalar, slot: Scalar) -> None:
        """Rows of an item against keys first .. first + block_keys - 1; first_token: the first of the query block.

        A block that every row sees whole pays nothing for masks.
        """
        shape, step = self.shape, jnp.int32(self.shape.step_tokens)
        begin, end = rows.first - first_token, rows.end - first_token
        plain = visibility.all_see(rows, shape.window, first, first + shape.buffer_keys)
        plain &= (lax.rem(begin, step) == 0) & (lax.rem(end, step) == 0)
        steps = (lax.div(begin, step), lax.div(end + step - 1, step))

        @pl.when(plain)
        def _() -> None:
            self._heads(rows, first_token, steps, keys, first, slot, masked=False)

        @pl.when(jnp.logical_not(plain))
        def _() -> None:
            self._heads(rows, first_token, steps, keys, first, slot, masked=True)

    def _heads(self, rows: visibility.Rows, first_token: Scalar, steps: tuple[Scalar, Scalar], keys: Keys,
               first: Scalar, slot: Scalar, masked: bool) -> None:  # fmt: skip
        shape, scratch = self.shape, self.scratch
        k_words = self._words(scratch.k_buffers, slot, shape.qk_dim)
        v_words = k_words if shape.combined else self._words(scratch.v_buffers, slot, shape.v_dim)
        if scratch.k_scales is not None:
            scratch.k_scales[...] = scratch.k_scale_buffers[slot].T
        if scratch.v_scales is not None:
            scratch.v_scales[...] = scratch.v_scale_buffers[slot].T

        def operands(h: int) -> tuple[jax.Array, jax.Array]:
            k = k_words.head(2 * h if shape.combined else h, self.dtype)
            v = v_words.head(2 * h + 1 if shape.combined else h, jnp.float32 if masked else self.dtype)
            if masked:  # what lies past the end was never written: 0 * NaN must not reach a sum
                at = first + lax.broadcasted_iota(jnp.int32, v.shape, 0)
                v = jnp.where((at >= keys.begin) & (at < keys.end), v, 0.0).astype(self.dtype)
            return k, v

        def step(h: Any, i: Scalar, k: jax.Array, v: jax.Array) -> None:
            token = first_token + i * shape.step_tokens
            at = (h, pl.ds(pl.multiple_of(i * shape.step_rows, shape.step_rows), shape.step_rows))
            seen = None
            if masked:
                seen = visibility.mask(
                    rows, shape.window, token, shape.token_rows, first, first + shape.block_keys,
                    (shape.step_rows, shape.buffer_keys),
                )  # fmt: skip
            s = self._logits(h, online_softmax.scores(self.arrays.q[at].astype(self.dtype), k))
            if seen is not None:
                s = jnp.where(seen, s, -jnp.inf)
            p, alpha = online_softmax.weights(s, scratch.m, scratch.l, at, shape.unit)
            if scratch.v_scales is not None:
                p = p * scratch.v_scales[pl.ds(h, 1)]
                p = p if seen is None else jnp.where(seen, p, 0.0)
            online_softmax.accumulate(p, alpha, v, scratch.acc, at)

        if scratch.k is None:  # decode tiles: heads in one stretch of code, so that they hide each other's latency

            def all_heads(i: Scalar, carry: Any) -> Any:
                for h in range(shape.heads):
                    step(h, i, *operands(h))
                return carry

            lax.fori_loop(*steps, all_heads, 0)
            return
        for h in range(shape.heads):
            scratch.k[h], scratch.v[h] = operands(h)
        count = steps[1] - steps[0]

        def one_head(i: Scalar, carry: Any) -> Any:
            h, at = lax.div(i, count), lax.rem(i, count)
            step(h, steps[0] + at, scratch.k[h], scratch.v[h])
            return carry

        lax.fori_loop(0, shape.heads * count, one_head, 0)

    def _words(self, buffers: Any, slot: Scalar, dim: int) -> PageWords:
        return PageWords(buffers, slot, self.shape.stack(dim), self.shape.stored, self.interpret)

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

