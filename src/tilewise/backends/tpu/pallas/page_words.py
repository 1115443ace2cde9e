"""Keys and values of one head out of a buffer in which all heads lie side by side, packed in 32-bit words.

Registers are loaded with a stride, one row of every key. The heads that share a word are loaded once.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax import numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tilewise.backends.tpu.pallas.paged_shape import BITS, Stack

Ref = Any


class PageWords:
    """What is stored in one buffer slot [keys, buffer rows, packing, 128].

    within: (begin, end) of the key slots that hold keys; around them may be anything, and 0 is read. None: all do.
    """

    def __init__(self, buffers: Ref, slot: Any, stack: Stack, stored: str, within: tuple[Any, Any] | None,
                 interpret: bool) -> None:  # fmt: skip
        self.buffers, self.slot, self.stack, self.stored, self.interpret = buffers, slot, stack, stored, interpret
        self.within = within
        self.packing = 32 // BITS[stored]
        self._words: dict[int, tuple[Any, list[jax.Array]]] = {}

    def head(self, word: Any, place: int, dtype: Any) -> jax.Array:
        """[keys, D] of the head at a place of a word, in `dtype` (float32 or bfloat16)."""
        key = word if isinstance(word, int) else id(word)
        if key not in self._words:
            self._words[key] = word, [self._load(self.stack.row(word, i)) for i in range(self.stack.columns)]
        parts = [unpack(x, place, self.stored).astype(dtype) for x in self._words[key][1]]
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)

    def _load(self, row: Any) -> jax.Array:
        words = self._stored(row)
        if self.within is None:
            return words
        at = lax.broadcasted_iota(jnp.int32, words.shape, 0)
        return jnp.where((at >= self.within[0]) & (at < self.within[1]), words, jnp.zeros((), words.dtype))

    def _stored(self, row: Any) -> jax.Array:
        _, keys, rows, packing, width = self.buffers.shape
        if self.interpret:  # it has no reshape and no bitcast of references
            x = self.buffers[self.slot, :, pl.ds(row, 1)].reshape(keys * packing, width)
            return x if packing == 1 else pltpu.bitcast(x, jnp.uint32)
        ref = self.buffers.at[self.slot].reshape(keys * rows * packing, width)
        ref = ref if packing == 1 else ref.bitcast(jnp.uint32)
        return ref[pl.ds(row, keys, stride=rows), :] if rows > 1 else ref[...]


def unpack(words: jax.Array, place: int, stored: str) -> jax.Array:
    """The values at one place (0 is the lowest bits) of 32-bit words, as float32."""
    if stored == "float32":
        return words
    if stored == "bfloat16":
        return pltpu.bitcast(words << 16 if place == 0 else words & jnp.uint32(0xFFFF0000), jnp.float32)
    if stored == "float16":
        return _from_float16(pltpu.bitcast(words, jnp.int32), place)
    if stored == "int8":
        signed = pltpu.bitcast(words, jnp.int32)
        return ((signed << (24 - 8 * place)) >> 24).astype(jnp.float32)
    return pltpu.bitcast((words >> (8 * place)).astype(jnp.uint8), jnp.dtype(stored)).astype(jnp.float32)


def _from_float16(words: jax.Array, place: int) -> jax.Array:
    """By hand: these chips have no float16."""
    half = lax.shift_right_logical(words, jnp.int32(16 * place)) & 0xFFFF
    size = half & 0x7FFF
    normal = (size << 13) + ((127 - 15) << 23)
    special = (size << 13) | 0x7F800000  # infinity, NaN
    bits = jnp.where(size >= 0x7C00, special, normal)
    value = jnp.where(size < 0x400, size.astype(jnp.float32) * 2.0**-24, pltpu.bitcast(bits, jnp.float32))
    return jnp.where(half >= 0x8000, -value, value)
