"""A Llama in NumPy, small enough to read. It knows nothing of caches: attention is a function it is given.

    hidden = llama.forward(tokens, positions, attend)      # all tokens of a step, whoever they belong to
    logits = llama.logits(hidden[rows])

`attend(layer, q, k, v)` receives q [tokens, Hq, D] and k, v [tokens, Hkv, D], positions already turned in, and returns
[tokens, Hq, D]. A server passes one that appends k and v to pages and reads the pages back; `dense_attention` below
is the other one, for a single text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tilewise as tw
from tilewise.demo.checkpoint import Checkpoint

Array = NDArray[Any]
Attend = Callable[[int, Array, Array, Array], Array]


class Llama:
    def __init__(self, checkpoint: Checkpoint) -> None:
        self.weights = checkpoint
        self.config = checkpoint.config
        half = np.arange(0, self.config.head_dim, 2) / self.config.head_dim
        self._turns_a_token = self.config.rope_base**-half  # [D / 2], radians

    def forward(
        self, tokens: Sequence[int] | Array, positions: Array, attend: Attend, dtype: Any = np.float32
    ) -> Array:
        """Hidden states [tokens, width] after the last norm.

        dtype float64 computes everything in double: the weights are float32, and promotion does the rest.
        """
        c = self.config
        x = self.weights.embedding[np.asarray(tokens, np.int64)].astype(dtype)  # [tokens, width]
        rotation = self._rotation(positions, dtype)
        heads = (c.query_heads, c.query_heads + c.kv_heads)
        for i, layer in enumerate(self.weights.layers):
            qkv = self._norm(x, layer.attention_norm) @ layer.qkv
            q, k, v = np.split(qkv.reshape(len(x), -1, c.head_dim), heads, axis=1)
            out = attend(i, _rotate(q, rotation), _rotate(k, rotation), v)
            x = x + out.reshape(len(x), -1) @ layer.output
            gate, up = np.split(self._norm(x, layer.mlp_norm) @ layer.gate_up, 2, axis=1)
            x = x + _silu_times(gate, up) @ layer.down
        return self._norm(x, self.weights.final_norm)

    def logits(self, hidden: Array) -> Array:
        """[rows, vocabulary] of hidden [rows, width]."""
        return hidden @ self.weights.embedding.T

    def _norm(self, x: Array, weight: Array) -> Array:
        mean_square = np.einsum("tw,tw->t", x, x)[:, None] / x.shape[1]
        return x / np.sqrt(mean_square + self.config.norm_epsilon).astype(x.dtype) * weight

    def _rotation(self, positions: Array, dtype: Any) -> Array:
        angles = np.asarray(positions, np.float64)[:, None] * self._turns_a_token  # [tokens, D / 2]
        return np.exp(1j * angles)[:, None].astype(np.result_type(dtype, np.complex64))


def _rotate(x: Array, rotation: Array) -> Array:
    """Rotary positions. GGUF keeps the two parts of a pair side by side, so a pair is one complex number."""
    pairs = np.ascontiguousarray(x).view(rotation.dtype)  # [tokens, heads, D / 2]
    return (pairs * rotation).view(x.dtype)


def _silu_times(gate: Array, up: Array) -> Array:
    with np.errstate(over="ignore"):  # exp(-gate) = inf is right: the product is then 0
        return gate / (1 + np.exp(-gate)) * up


def dense_attention(q: Array, k: Array, v: Array) -> Array:
    """Causal attention over one whole text: no cache, no pages, no batch."""
    return tw.attention(q[None], k[None], v[None], causal=True)[0]


def read_text(llama: Llama, tokens: Sequence[int], dtype: Any = np.float32) -> Array:
    """Hidden states of one text, computed from nothing by dense attention."""
    return llama.forward(tokens, np.arange(len(tokens)), lambda _, q, k, v: dense_attention(q, k, v), dtype)
