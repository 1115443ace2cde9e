"""merge(): attention over parts of the keys, put together. The operator that split-KV and shared prefixes rest on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewise.errors import InvalidInput
from tilewise.frameworks.detect import detect, entry
from tilewise.spec.problem import QUERY_DTYPES, real_dtype

Array = Any


@entry
def merge(states: Sequence[tuple[Array, Array]], *, layout: str = "bthd") -> tuple[Array, Array]:
    """Merge (out, lse) states of disjoint sets of keys into the state of their union.

    Commutative and associative; a state with lse -inf is the identity, whatever its out holds. Differentiable.
    A sink must be in one of the states only. Source: FlashInfer, "recursive attention" (Ye et al. 2025).

    Args:
        states: one or more (out, lse), as attention() gives them: out [B, T, H, E] (layout "bhtd": [B, H, T, E]) with
            lse [B, H, T]; or as the packed and paged calls do: out [tokens, H, E] with lse [H, tokens].
            lse is float32 (float64 where out is float64).
        layout: of a dense out, "bthd" or "bhtd".

    Returns:
        (out, lse) of the same shapes and dtypes.

    Raises:
        InvalidInput: no state, or shapes, dtypes or devices that differ.
    """
    given = states if isinstance(states, Sequence) else None
    if not given or not all(isinstance(state, Sequence) and len(state) == 2 for state in given):
        raise InvalidInput("merge: it needs a list of at least one state, each a pair (out, lse).")
    states = [(out, lse) for out, lse in given]
    adapter = detect(states[0][0])
    seen = [(adapter.info(f"out of state {i}", out), adapter.info(f"lse of state {i}", lse))
            for i, (out, lse) in enumerate(states)]  # fmt: skip
    out, lse = seen[0]
    if layout not in ("bthd", "bhtd"):
        raise InvalidInput(f'merge: layout must be "bthd" or "bhtd", but is {layout!r}.')
    if out.dtype not in QUERY_DTYPES:
        raise InvalidInput(f"merge: out must be of dtype {' or '.join(QUERY_DTYPES)}, but is {out}.")
    if len(out.shape) not in (3, 4):
        raise InvalidInput(f"merge: out must be [B, T, H, E] or [tokens, H, E], but is {out}.")
    turned = layout == "bhtd" and len(out.shape) == 4
    *batch, rows, heads, _ = (out.shape[0], out.shape[2], out.shape[1], out.shape[3]) if turned else out.shape
    if lse.shape != (*batch, heads, rows):
        raise InvalidInput(f"merge: the lse of out {out} (layout {layout!r}) must be {[*batch, heads, rows]}, but is "
                           f"{lse}.")  # fmt: skip
    real = real_dtype(out.dtype)
    if lse.dtype != real:
        raise InvalidInput(f"merge: the lse of out {out} must be of dtype {real}, but is {lse}.")
    for i, (other_out, other_lse) in enumerate(seen):
        if other_out != out or other_lse != lse:
            raise InvalidInput(f"merge: all states must be alike, but state 0 is ({out}; {lse}) and state {i} is "
                               f"({other_out}; {other_lse}).")  # fmt: skip
    if not turned:
        return adapter.run_merge(states)

    def turn(x: Array) -> Array:
        return adapter.namespace.transpose(x, (0, 2, 1, 3))

    out, lse = adapter.run_merge([(turn(out), lse) for out, lse in states])
    return turn(out), lse
