"""What arrays hold: float64 values by name, before they are poisoned and rounded to a dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Random = np.random.Generator


@dataclass
class Tokens:
    """q [B, T, H, D], k [B, S, Hkv, D], v [B, S, Hkv, E] in float64; B is 1 for packed and paged cases."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scale: float

    @property
    def group(self) -> int:
        return self.q.shape[2] // self.k.shape[2]


def normal(random: Random, q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], scale: float) -> Tokens:
    """Standard normal values."""
    return Tokens(random.standard_normal(q), random.standard_normal(k), random.standard_normal(v), scale)


def _constant(value: float) -> Callable[[Random, Tokens], None]:
    def fill(random: Random, x: Tokens) -> None:
        for array in (x.q, x.k, x.v):
            array[...] = value

    return fill


def _v_ones(random: Random, x: Tokens) -> None:
    x.v[...] = 1.0


def _q_zero(random: Random, x: Tokens) -> None:
    x.q[...] = 0.0


def _logits(shift: float) -> Callable[[Random, Tokens], None]:
    """Every logit is moved by `shift`: softmax does not care, sentinels do."""

    def fill(random: Random, x: Tokens) -> None:
        size = 2.0 ** round(math.log2(math.sqrt(abs(shift) / abs(x.scale))))
        x.q[..., 0] = size
        x.k[..., 0] = shift / x.scale / size

    return fill


def _massive(random: Random, x: Tokens) -> None:
    """One channel holds massive activations, as trained models have them: logits below -5e4."""
    x.q[..., 0] = 448.0
    x.k[..., 0] = -1880.0


def _overflow(random: Random, x: Tokens) -> None:
    """q.k passes 65504, the largest float16, before the scale brings it down."""
    x.q[..., :] = 60.0 + x.q
    x.k[..., :] = 60.0 + x.k


def _correlated(random: Random, x: Tokens) -> None:
    """Rows share a large mean and a few directions, as activations do; random normal rows do not."""
    basis = random.standard_normal((2, x.q.shape[-1]))
    for array in (x.q, x.k):
        array *= 0.1
        array += 1.5 + random.standard_normal((*array.shape[:-1], 2)) @ basis
    x.v += 4.0


def _equal_rows(random: Random, x: Tokens) -> None:
    """K and V rows alike along the tokens' heads: what stride 0 needs."""
    x.k[...] = x.k[:, :, :1]
    x.v[...] = x.v[:, :, :1]


def _equal_batch(random: Random, x: Tokens) -> None:
    x.k[...] = x.k[:1]
    x.v[...] = x.v[:1]


def _far_apart(random: Random, x: Tokens) -> None:
    """Logits from -100 to 100: most weights underflow, the running maximum jumps."""
    x.q *= 20.0 / math.sqrt(x.q.shape[-1] * x.scale * x.scale * x.q.shape[-1])


def _rising(random: Random, x: Tokens) -> None:
    """Each key beats those before it: every block rescales what was accumulated."""
    x.q[..., 0] = 4.0 / x.scale
    x.k[..., 0] = np.linspace(-8.0, 8.0, x.k.shape[1])[None, :, None]


def _negative_first(random: Random, x: Tokens) -> None:
    """All logits far below 0: a running maximum that starts at 0 hides them."""
    x.q[..., :] = np.abs(x.q) + 4.0
    x.k[..., :] = -np.abs(x.k) - 4.0


def _one(value: float, array: str, row: int = -1) -> Callable[[Random, Tokens], None]:
    """A single NaN or infinity, in the first head's last column of a row."""

    def fill(random: Random, x: Tokens) -> None:
        getattr(x, array)[0, row, 0, -1] = value

    return fill


def _both_infinities(random: Random, x: Tokens) -> None:
    """Values of +inf and -inf in one column, and of -inf alone in another."""
    x.v[0, :2, 0, -1] = np.inf, -np.inf
    x.v[0, 0, 0, 0] = -np.inf


def _far_infinity(random: Random, x: Tokens) -> None:
    """An infinite value whose weight underflows to 0."""
    x.q[..., 0] = 100.0
    x.k[..., 0] = 0.0
    x.k[0, 0, :, 0] = -1000.0 / x.scale
    x.v[0, 0, 0, -1] = np.inf


def _all_nan(random: Random, x: Tokens) -> None:
    x.q[...] = np.nan


VALUES: dict[str, Callable[[Random, Tokens], None]] = {
    "normal": lambda random, x: None,
    "ones": _constant(1.0),
    "constant 1000": _constant(1000.0),
    "constant 10000": _constant(10000.0),
    "v ones": _v_ones,
    "q zero": _q_zero,
    "logits -1e5": _logits(-1e5),
    "logits 1e5": _logits(1e5),
    "logits -200": _logits(-200.0),
    "massive": _massive,
    "overflow": _overflow,
    "correlated": _correlated,
    "equal heads": _equal_rows,
    "equal batch": _equal_batch,
    "far apart": _far_apart,
    "rising": _rising,
    "negative": _negative_first,
    "nan q": _one(np.nan, "q"),
    "nan k": _one(np.nan, "k"),
    "nan v": _one(np.nan, "v"),
    "nan first k": _one(np.nan, "k", 0),
    "nan first v": _one(np.nan, "v", 0),
    "all nan q": _all_nan,
    "inf q": _one(np.inf, "q"),
    "-inf q": _one(-np.inf, "q"),
    "inf k": _one(np.inf, "k"),
    "inf first k": _one(np.inf, "k", 0),
    "-inf first k": _one(-np.inf, "k", 0),
    "inf v": _one(np.inf, "v"),
    "inf first v": _one(np.inf, "v", 0),
    "inf v of both signs": _both_infinities,
    "inf v without weight": _far_infinity,
}
INFINITE = frozenset(name for name in VALUES if "inf" in name)


def _lowest(random: Random, shape: tuple[int, ...]) -> np.ndarray:
    """Whole rows of the most negative finite float32, and rows that are zero but for one such entry."""
    bias = np.zeros(shape)
    bias[..., ::2, :] = np.finfo(np.float32).min
    bias[..., 1::2, :1] = np.finfo(np.float32).min
    return bias


def _minus_infinity(random: Random, shape: tuple[int, ...]) -> np.ndarray:
    """-inf on a third of the pairs and on all of the first row."""
    bias = np.where(random.random(shape) < 0.3, -np.inf, random.standard_normal(shape))
    bias[..., 0, :] = -np.inf
    return bias


def _alibi(random: Random, shape: tuple[int, ...]) -> np.ndarray:
    """-slope * |distance|, 0 at the newest token."""
    _, heads, rows, keys = shape
    slopes = 2.0 ** (-8.0 * (np.arange(heads) + 1) / heads)
    distance = np.abs(np.arange(rows)[:, None] + keys - rows - np.arange(keys)[None])
    return (-slopes[:, None, None] * distance)[None] + np.zeros(shape)


BIASES: dict[str, Callable[[Random, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "large": lambda random, shape: 2000.0 * random.standard_normal(shape),
    "lowest": _lowest,
    "minus infinity": _minus_infinity,
    "alibi": _alibi,
    "zero or one": lambda random, shape: np.round(random.random(shape)),
}


def _random_mask(random: Random, shape: tuple[int, ...]) -> np.ndarray:
    return random.random(shape) < 0.6


def _dead_rows(random: Random, shape: tuple[int, ...]) -> np.ndarray:
    """The last half of the rows keeps nothing."""
    keep = _random_mask(random, shape)
    keep[..., shape[2] // 2 :, :] = False
    return keep


def _blocks(random: Random, shape: tuple[int, ...]) -> np.ndarray:
    """Four pieces that see only themselves; what is left over sees nothing."""
    rows, keys = shape[2:]
    piece = (np.arange(rows) * 5 // max(rows, 1))[:, None] == (np.arange(keys) * 5 // max(keys, 1))[None]
    piece[rows * 4 // 5 :] = False
    return piece & np.ones(shape, bool)


def _left_padding(random: Random, shape: tuple[int, ...]) -> np.ndarray:
    """Causal, and a batch entry's first keys are padding: its first rows have no key."""
    rows, keys = shape[2:]
    keep = np.tri(rows, keys, keys - rows, dtype=bool) & np.ones(shape, bool)
    for b in range(shape[0]):
        keep[b, ..., : (b + 1) * keys // 3] = False
    return keep


def _prefix(random: Random, shape: tuple[int, ...]) -> np.ndarray:
    """Causal, but a prefix (or an image) sees itself both ways."""
    rows, keys = shape[2:]
    return (np.tri(rows, keys, keys - rows, dtype=bool) | (np.arange(keys) < keys // 3)[None]) & np.ones(shape, bool)


def _one_key(random: Random, shape: tuple[int, ...]) -> np.ndarray:
    """Everything is kept but key 1."""
    keep = np.ones(shape, bool)
    keep[..., 1:2] = False
    return keep


def _late_keys(random: Random, shape: tuple[int, ...]) -> np.ndarray:
    """Only the last keys: whole blocks are masked before the first visible one."""
    keep = np.zeros(shape, bool)
    keep[..., -3:] = True
    return keep


MASKS: dict[str, Callable[[Random, tuple[int, ...]], np.ndarray]] = {
    "random": _random_mask,
    "dead rows": _dead_rows,
    "nothing": lambda random, shape: np.zeros(shape, bool),
    "everything": lambda random, shape: np.ones(shape, bool),
    "blocks": _blocks,
    "left padding": _left_padding,
    "prefix": _prefix,
    "one key": _one_key,
    "late keys": _late_keys,
}


def _documents(random: Random, batch: int, size: int) -> np.ndarray:
    return np.sort(random.integers(0, 3, (batch, size)), 1)


def _padded_documents(random: Random, batch: int, size: int) -> np.ndarray:
    """Documents 0, 1, .. and a tail of -1, the padding."""
    ids = _documents(random, batch, size)
    ids[:, size - size // 3 :] = -1
    return ids


SEGMENTS: dict[str, Callable[[Random, int, int], np.ndarray]] = {
    "documents": _documents,
    "padded": _padded_documents,
    "shuffled": lambda random, batch, size: random.integers(-1, 3, (batch, size)),
    "all padding": lambda random, batch, size: np.full((batch, size), -1),
    "large ids": lambda random, batch, size: 2**31 - 1 - random.integers(0, 2, (batch, size)),
}


def _some_empty(random: Random, lse: np.ndarray) -> None:
    lse[random.random(lse.shape) < 0.4] = -np.inf


STATES: dict[str, Callable[[Random, np.ndarray], None]] = {
    "normal": lambda random, lse: None,
    "empty": lambda random, lse: lse.fill(-np.inf),
    "some empty": _some_empty,
    "far above": lambda random, lse: np.add(lse, 200.0, out=lse),
    "huge": lambda random, lse: np.add(lse, 1e5, out=lse),
    "far below": lambda random, lse: np.add(lse, -200.0, out=lse),
    "infinite": lambda random, lse: lse.fill(np.inf),
}
