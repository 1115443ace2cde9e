"""The oracle against attention written as loops over Python floats: the meaning once more, in the plainest words."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewise as tw
from tilewise.frameworks.numpy_adapter import NumpyNamespace
from tilewise.spec import paged_reference
from tilewise.spec.problem import PagedOperands
from tilewise.testing.cases import select
from tilewise.testing.inputs import make

random = np.random.default_rng(1)


def row(q: np.ndarray, keys: list[tuple[np.ndarray, np.ndarray, float]], scale: float, softcap: float | None,
        sink: float | None, width: int) -> tuple[list[float], float]:  # fmt: skip
    """(out, lse) of one query over the keys (k, v, bias) that it sees."""
    logits = []
    for k, _, bias in keys:
        logit = scale * sum(float(a) * float(b) for a, b in zip(q, k, strict=True))
        logits.append((softcap * math.tanh(logit / softcap) if softcap else logit) + bias)
    everything = logits + ([] if sink is None else [sink])
    if not everything:
        return [0.0] * width, -math.inf
    top = max(everything)
    total = sum(math.exp(x - top) for x in everything)
    out = [sum(math.exp(x - top) / total * float(v[e]) for x, (_, v, _) in zip(logits, keys, strict=True))
           for e in range(width)]  # fmt: skip
    return out, top + math.log(total)


@pytest.mark.parametrize(("q_len", "kv_len"), [(4, 6), (6, 4), (1, 5), (5, 1), (3, 0)])
@pytest.mark.parametrize("window", [None, (None, 0), (1, 0), (2, 1), (0, None)])
def test_dense(q_len: int, kv_len: int, window: Any) -> None:
    heads, kv_heads, d, e, batch = 6, 2, 5, 3, 2
    q, k, v = (random.standard_normal(shape) for shape in
               ((batch, q_len, heads, d), (batch, kv_len, kv_heads, d), (batch, kv_len, kv_heads, e)))  # fmt: skip
    bias, sinks = random.standard_normal((batch, heads, q_len, kv_len)), random.standard_normal(heads)
    mask = random.random((batch, heads, q_len, kv_len)) > 0.3
    q_ids, kv_ids = random.integers(-1, 2, (batch, q_len)), random.integers(-1, 2, (batch, kv_len))
    options: dict[str, Any] = {"q_segment_ids": q_ids, "kv_segment_ids": kv_ids, "softcap": 2.0, "scale": 0.7}
    out, lse = tw.attention(q, k, v, window=window, bias=bias, mask=mask, sinks=sinks, return_lse=True,
                            backend="composed", **options)  # fmt: skip
    left, right = window or (None, None)
    for b in range(batch):
        for h in range(heads):
            for i in range(q_len):
                at, kv_head = i + kv_len - q_len, h // 3
                keys = [
                    (k[b, j, kv_head], v[b, j, kv_head], bias[b, h, i, j]) for j in range(kv_len)
                    if (left is None or j >= at - left) and (right is None or j <= at + right)
                    and mask[b, h, i, j] and q_ids[b, i] >= 0 and q_ids[b, i] == kv_ids[b, j]
                ]  # fmt: skip
                sink = None if q_ids[b, i] < 0 else sinks[h]
                want_out, want_lse = row(q[b, i, h], keys, 0.7, 2.0, sink, e)
                assert out[b, i, h] == pytest.approx(want_out, abs=1e-12)
                assert lse[b, h, i] == pytest.approx(want_lse, abs=1e-12)


def test_lengths() -> None:
    q, k, v = (random.standard_normal(shape) for shape in ((3, 5, 2, 4), (3, 7, 2, 4), (3, 7, 2, 4)))
    q_lens, kv_lens = np.array([5, 2, 4]), np.array([3, 7, 0])
    out, lse = tw.attention(q, k, v, causal=True, q_lens=q_lens, kv_lens=kv_lens, return_lse=True, backend="composed")
    for b, (rows, keys) in enumerate(zip(q_lens, kv_lens, strict=True)):
        for i in range(5):
            seen = range(min(keys, max(0, i + keys - rows + 1))) if i < rows else range(0)
            want_out, want_lse = row(q[b, i, 1], [(k[b, j, 1], v[b, j, 1], 0.0) for j in seen], 0.5, None, None, 4)
            assert out[b, i, 1] == pytest.approx(want_out, abs=1e-12)
            assert lse[b, 1, i] == pytest.approx(want_lse, abs=1e-12)


def test_packed_is_dense_sequence_by_sequence() -> None:
    q, k, v = (random.standard_normal(shape) for shape in ((9, 4, 8), (11, 2, 8), (11, 2, 6)))
    q_starts, kv_starts = np.array([1, 1, 4, 8]), np.array([0, 3, 4, 10])
    out, lse = tw.attention_packed(q, k, v, q_starts, kv_starts, causal=True, return_lse=True, backend="composed")
    for i in range(3):
        rows, keys = slice(*q_starts[i : i + 2]), slice(*kv_starts[i : i + 2])
        want = tw.attention(q[None, rows], k[None, keys], v[None, keys], causal=True, return_lse=True,
                            backend="composed")  # fmt: skip
        assert np.allclose(out[rows], want[0][0], atol=1e-14)
        assert np.allclose(lse[:, rows], want[1][0], atol=1e-14)
    assert not out[[0, 8]].any()
    assert (lse[:, [0, 8]] == -np.inf).all()


@pytest.mark.parametrize("draft", [None, 2, 5])
def test_paged_is_dense_sequence_by_sequence(draft: int | None) -> None:
    pages, size = 9, 3
    k_pages, v_pages = random.standard_normal((pages, size, 2, 8)), random.standard_normal((pages, size, 2, 6))
    q = random.standard_normal((6, 4, 8))
    table = np.array([[3, 1, -1], [8, 0, 2], [-1, -1, -1]])
    kv_lens, starts = np.array([5, 9, 0]), np.array([0, 2, 5, 5])
    mask = None if draft is None else random.random((6, draft)) > 0.4
    out, lse = tw.ragged_paged_attention(q, (k_pages, v_pages), kv_lens, table, starts, window=(3, 0), draft_mask=mask,
                                         return_lse=True, backend="composed")  # fmt: skip
    for i in range(2):
        ids = table[i][: -(-kv_lens[i] // size)]
        k, v = (x[ids].reshape(1, -1, 2, x.shape[-1])[:, : kv_lens[i]] for x in (k_pages, v_pages))
        rows = slice(*starts[i : i + 2])
        q_len = rows.stop - rows.start
        keep, window = None, (3, 0)
        if mask is not None:
            new = np.zeros((q_len, q_len), bool)
            new[:, : min(q_len, draft or 0)] = mask[rows, : min(q_len, draft or 0)]
            keep = np.concatenate([np.ones((q_len, kv_lens[i] - q_len), bool), new], 1)[None, None]
            window = (3, None)
        want = tw.attention(q[None, rows], k, v, window=window, mask=keep, return_lse=True, backend="composed")
        assert np.allclose(out[rows], want[0][0], atol=1e-14)
        assert np.allclose(lse[:, rows], want[1][0], atol=1e-14)
    assert not out[5:].any()


def test_traced_paged_is_the_same() -> None:
    """The form that JAX traces, where no length is known."""
    class Traced(NumpyNamespace):
        def ints(self, x: Any) -> None:
            return None

    with np.errstate(all="ignore"):
        for case in select(["every"], ["paged"]):
            inputs = make(case)
            arrays = {name: np.float32(x) if isinstance(x, float) else x for name, x in inputs.arrays.items()}
            operands = PagedOperands(**{"v_pages": None, **arrays})
            problem = replace(inputs.problem, dtype="float64")
            one = paged_reference.paged(NumpyNamespace(), inputs.spec, problem, operands)
            other = paged_reference.paged(Traced(), inputs.spec, problem, operands)
            for a, b in zip(one, other, strict=True):
                assert np.allclose(a, b, atol=1e-9, rtol=1e-9, equal_nan=True), case.name


def test_merge_is_the_union_of_keys() -> None:
    q, k, v = (random.standard_normal(shape) for shape in ((2, 3, 4, 8), (2, 9, 2, 8), (2, 9, 2, 8)))
    whole = tw.attention(q, k, v, return_lse=True, backend="composed")
    parts = [tw.attention(q, k[:, part], v[:, part], return_lse=True, backend="composed")
             for part in (slice(0, 2), slice(2, 2), slice(2, 9))]  # fmt: skip
    out, lse = tw.merge(parts)
    assert np.allclose(out, whole[0], atol=1e-14)
    assert np.allclose(lse, whole[1], atol=1e-14)
