"""merge(): attention over parts of the keys, put together. The operator that split-KV and shared prefixes rest on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewise.errors import InvalidInput
from tilewise.frameworks.detect import detect, entry

Array = Any


@entry
def merge(states: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Merge (out, lse) states of disjoint sets of keys into the state of their union.

    Commutative and associative; a state with lse -inf is the identity, whatever its out holds. Differentiable.
    A sink must be in one of the states only. Source: FlashInfer, "recursive attention" (Ye et al. 2025).

    Args:
        states: one or more (out, lse): out [B, T, H, E] with lse [B, H, T] (layout "bthd"), or
            out [tokens, H, E] with lse [H, tokens] (packed and paged).

    Returns:
        (out, lse) of the same shapes and dtypes.

    Raises:
        InvalidInput: no state, or shapes, dtypes or devices that differ.
    """
    states = [tuple(state) for state in states]
    if not states or any(len(state) != 2 for state in states):
        raise InvalidInput("merge: it needs at least one state, each a pair (out, lse).")
    adapter = detect(states[0][0])
    seen = [(adapter.info(f"out of state {i}", out), adapter.info(f"lse of state {i}", lse))
            for i, (out, lse) in enumerate(states)]  # fmt: skip
    out, lse = seen[0]
    if len(out.shape) not in (3, 4):
        raise InvalidInput(f"merge: out must be [B, T, H, E] or [tokens, H, E], but is {out}.")
    *batch, rows, heads, _ = out.shape
    if lse.shape != (*batch, heads, rows):
        raise InvalidInput(f"merge: the lse of out {out} must be {[*batch, heads, rows]}, but is {lse}.")
    if lse.dtype not in ("float32", "float64"):
        raise InvalidInput(f"merge: lse must be float32 or float64, but is {lse}.")
    for i, (other_out, other_lse) in enumerate(seen):
        if other_out != out or other_lse != lse:
            raise InvalidInput(f"merge: all states must be alike, but state 0 is ({out}; {lse}) and state {i} is "
                               f"({other_out}; {other_lse}).")  # fmt: skip
    return adapter.run_merge(states)
