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
            heads = range(self.shape.heads)
            at = [(h, self._rows(i)) for h in heads]
            seen = self._seen(i) if self.masked else None
            scratch = self.scratch
            words = self._words(seen_from, seen_to)
            for h in heads:
                k, scratch.v[h] = self._keys_and_values(words, *divmod(h, self.shape.word_heads))
                if scratch.k is not None:
                    scratch.k[h] = k
                scratch.s[h] = self._scores(h, at[h], k, seen)
            for h in heads:
                p, alpha = self._weights(h, at[h], scratch.s[h], seen)
                self._accumulate(h, i, p, alpha, None if scratch.k is None else seen)
            return carry

        lax.fori_loop(begin, end, all_heads, 0)

    def several_tokens_a_step(self, begin: Scalar, end: Scalar) -> None:
        """Heads are unpacked once and serve all steps."""
        shape, scratch, count = self.shape, self.scratch, end - begin

        def unpack(group: Scalar, carry: Any) -> Any:
            words = self._words(self.keys.begin, self.keys.end)
            for i in range(shape.word_heads):
                h = group * shape.word_heads + i
                k, v = self._keys_and_values(words, group, i)
                scratch.k[h], scratch.v[h] = k, v
            return carry

        def place(i: Scalar) -> tuple[Scalar, Scalar]:
            return lax.div(i, count), begin + lax.rem(i, count)

        def one(i: Scalar, carry: Any) -> Any:
            h, step = place(i)
            at = (h, self._rows(step))
            seen = self._seen(step) if self.masked else None
            p, alpha = self._weights(h, at, self._scores(h, at, scratch.k[h], seen), seen)
            self._accumulate(h, step, p, alpha, seen)
            return carry

        def scores(i: Scalar, to: int) -> None:
            h, step = place(i)
            scratch.s[to] = self._scores(h, (h, self._rows(step)), scratch.k[h], None)

        def softmax(i: Scalar, of: int) -> None:
            h, step = place(i)
            p, alpha = self._weights(h, (h, self._rows(step)), scratch.s[of], None)
            self._accumulate(h, step, p, alpha, None)

        def two(i: Scalar, carry: Any) -> Any:
            """The scores of the next are on their way while the softmax of this one is computed."""
            scores(2 * i + 1, 1)
            softmax(2 * i, 0)
            scores(jnp.minimum(2 * i + 2, shape.heads * count - 1), 0)
            softmax(2 * i + 1, 1)
            return carry

        lax.fori_loop(0, shape.unpacked_heads // shape.word_heads, unpack, 0)
        if self.masked or shape.heads % 2:
            lax.fori_loop(0, shape.heads * count, one, 0)
        else:
            scores(jnp.int32(0), 0)
            lax.fori_loop(0, shape.heads // 2 * count, two, 0)

    def _words(self, begin: Scalar, end: Scalar) -> tuple[PageWords, PageWords]:
        """Of K and of V; 0 but for keys begin .. end - 1: what lies around them may be NaN, and 0 * NaN is NaN."""
        shape, scratch = self.shape, self.scratch
        within = (begin - self.first, end - self.first) if self.masked else None

        def words(buffers: Any, dim: int) -> PageWords:
            return PageWords(buffers, self.slot, shape.stack(dim), shape.stored, within, self.interpret)

        k_words = words(scratch.k_buffers, shape.qk_dim)
        return k_words, k_words if shape.combined else words(scratch.v_buffers, shape.v_dim)

    def _keys_and_values(self, words: tuple[PageWords, PageWords], group: Any, i: int) -> tuple[jax.Array, jax.Array]:
        """K and V of head i of a group of heads that share words."""
        k_place, v_place = self.shape.places(group, i)
        return words[0].head(*k_place, self.dtype), words[1].head(*v_place, self.dtype)

    def _rows(self, i: Scalar) -> Any:
        step = self.shape.step_rows
        return pl.ds(pl.multiple_of(i * step, step), step)

    def _scores(self, h: Any, at: Any, k: jax.Array, seen: jax.Array | None) -> jax.Array:
        s = self._logits(h, online_softmax.scores(self.arrays.q[at].astype(self.dtype), k))
        return s if seen is None else jnp.where(seen, s, -jnp.inf)

    def _weights(self, h: Any, at: Any, s: jax.Array, seen: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        scratch = self.scratch
        p, alpha = online_softmax.weights(s, scratch.m, scratch.l, at, self.shape.unit)
        return self._scaled(h, p, seen), alpha

    def _scaled(self, h: Any, p: jax.Array, seen: jax.Array | None) -> jax.Array:
        if self.scratch.v_scales is None:
            return p
        p = p * self.scratch.v_scales[pl.ds(h, 1)]
        return p if seen is None else jnp.where(seen, p, 0.0)

    def _accumulate(self, h: Any, i: Scalar, p: jax.Array, alpha: jax.Array, seen: jax.Array | None) -> None:
        """seen: None where the rows of a step see the same keys."""
        scratch, at = self.scratch, (h, self._rows(i))

        def again() -> tuple[jax.Array, jax.Array]:
            """p and seen, anew: nothing need be kept for the rare case."""
            seen = self._seen(i)
            s = self._scores(h, at, scratch.k[h], seen)
            return self._scaled(h, online_softmax.weights_again(s, scratch.m, at, self.shape.unit), seen), seen

        online_softmax.accumulate(p, alpha, scratch.v[h], scratch.acc, at, None if seen is None else again)

    def _seen(self, i: Scalar) -> jax.Array:
        """bool [step rows, keys]."""
        shape = self.shape
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
