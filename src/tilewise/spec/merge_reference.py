"""The algebra of (out, lse) states, for any array namespace. Written so that automatic differentiation has no NaN."""

from __future__ import annotations

from typing import Any

Array = Any


def merge(xp: Any, states: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Merge states (out [.., T, H, E], lse [.., H, T]); lse -inf is the identity, +inf outweighs all finite ones."""
    dtype = xp.dtype_of(states[0][0])
    real = xp.dtype_of(states[0][1])
    m = states[0][1]
    for _, lse in states[1:]:
        m = xp.where((m >= lse) | (m != m), m, lse)
    finite_m = xp.where((m == -xp.inf) | (m == xp.inf), 0.0, m)
    total: Array = None
    acc: Array = None
    for out, lse in states:
        infinite = xp.where(lse == xp.inf, xp.zeros_like(lse) + 1.0, xp.zeros_like(lse))
        weight = xp.where(m == xp.inf, infinite, xp.exp(xp.where(m == xp.inf, xp.zeros_like(lse), lse) - finite_m))
        part = _rows(xp, weight) * xp.where(_rows(xp, lse) == -xp.inf, 0.0, xp.cast(out, real))
        total = weight if total is None else total + weight
        acc = part if acc is None else acc + part
    some = (total > 0) | (total != total)
    safe = xp.where(some, total, xp.zeros_like(total) + 1.0)
    lse = xp.where(some, finite_m + xp.log(safe), -xp.inf)
    lse = xp.where(m == xp.inf, m, lse)
    return xp.cast(acc / _rows(xp, safe), dtype), lse


def _rows(xp: Any, x: Array) -> Array:
    """[.., H, T] -> [.., T, H, 1]."""
    axes = (1, 0) if len(x.shape) == 2 else (0, 2, 1)
    return xp.transpose(x, axes)[..., None]
