"""The oracle's gradients against finite differences, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewise as tw

STEP = 1e-5
B, T, S, H, HKV, D, E = 2, 5, 7, 4, 2, 8, 6
random = np.random.default_rng(0)
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (2, 1)},
    "soft cap": {"softcap": 2.0},
    "bias": {"bias": random.standard_normal((B, H, T, S))},
    "bias of one row": {"bias": random.standard_normal((1, H, 1, S))},
    "sinks": {"sinks": random.standard_normal(H)},
    "mask": {"mask": random.random((B, 1, T, S)) > 0.4},
    "segments": {"q_segment_ids": random.integers(-1, 2, (B, T)), "kv_segment_ids": random.integers(-1, 2, (B, S))},
    "lengths": {"q_lens": np.array([3, 5]), "kv_lens": np.array([7, 2])},
    "everything": {
        "q_lens": np.array([3, 5]), "kv_lens": np.array([7, 2]), "sinks": random.standard_normal(H), "softcap": 3.0,
        "bias": random.standard_normal((B, 1, T, S)), "mask": random.random((1, H, T, S)) > 0.2, "causal": True,
    },
}  # fmt: skip


def difference(loss: Any, x: np.ndarray, at: tuple[int, ...]) -> float:
    """d loss / d x[at], by a central difference."""
    old = x[at]
    x[at] = old + STEP
    above = loss()
    x[at] = old - STEP
    below = loss()
    x[at] = old
    return (above - below) / (2 * STEP)


@pytest.mark.parametrize("name", CASES)
def test_dense(name: str) -> None:
    options = CASES[name]
    q, k, v = (random.standard_normal(shape) for shape in ((B, T, H, D), (B, S, HKV, D), (B, S, HKV, E)))
    out, lse = tw.attention(q, k, v, return_lse=True, backend="composed", **options)
    dout, dlse = random.standard_normal(out.shape), random.standard_normal(lse.shape)

    def loss() -> float:
        out, lse = tw.attention(q, k, v, return_lse=True, backend="composed", **options)
        return (out * dout).sum() + np.where(np.isfinite(lse), lse * dlse, 0.0).sum()

    grads = tw.attention_backward(q, k, v, out, lse, dout, dlse, backend="composed", **options)
    inputs = {"q": q, "k": k, "v": v, **{name: options[name] for name in ("bias", "sinks") if name in options}}
    for which, x in inputs.items():
        for _ in range(8):
            at = tuple(int(random.integers(0, size)) for size in x.shape)
            assert difference(loss, x, at) == pytest.approx(getattr(grads, which)[at], abs=2e-8), (which, at)


def test_packed() -> None:
    q, k, v = (random.standard_normal(shape) for shape in ((9, H, D), (11, HKV, D), (11, HKV, E)))
    starts, sinks = (np.array([1, 1, 4, 8]), np.array([0, 3, 4, 10])), random.standard_normal(H)
    options: dict[str, Any] = {"causal": True, "softcap": 2.0, "sinks": sinks, "backend": "composed"}
    out, lse = tw.attention_packed(q, k, v, *starts, return_lse=True, **options)
    dout, dlse = random.standard_normal(out.shape), random.standard_normal(lse.shape)

    def loss() -> float:
        out, lse = tw.attention_packed(q, k, v, *starts, return_lse=True, **options)
        return (out * dout).sum() + np.where(np.isfinite(lse), lse * dlse, 0.0).sum()

    grads = tw.attention_packed_backward(q, k, v, *starts, out, lse, dout, dlse, **options)
    for which, x in {"q": q, "k": k, "v": v, "sinks": sinks}.items():
        for _ in range(12):
            at = tuple(int(random.integers(0, size)) for size in x.shape)
            assert difference(loss, x, at) == pytest.approx(getattr(grads, which)[at], abs=2e-8), (which, at)


def test_gradients_from_the_stored_lse_are_the_same() -> None:
    from tilewise.attention import infos
    from tilewise.frameworks.numpy_adapter import adapter
    from tilewise.spec import reference, validate
    from tilewise.spec.problem import Operands

    q, k, v = (random.standard_normal(shape) for shape in ((B, T, H, D), (B, S, HKV, D), (B, S, HKV, E)))
    operands = Operands(q, k, v, sinks=random.standard_normal(H))
    spec, problem = validate.attention(infos(adapter, operands._asdict()), framework="numpy", needs_grad=True,
                                       causal=True, window=None, scale=None, softcap=2.0, layout="bthd")  # fmt: skip
    stored = reference.forward(adapter.namespace, spec, problem, operands)
    dout = random.standard_normal(stored[0].shape)
    one = reference.backward(adapter.namespace, spec, problem, operands, dout, None)
    other = reference.backward(adapter.namespace, spec, problem, operands, dout, None, stored=stored)
    for a, b in zip(one, other, strict=True):
        assert a is None or np.allclose(a, b, rtol=1e-12, atol=1e-12)
