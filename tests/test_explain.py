"""explain() speaks of the call that would run: the same arguments, conversions and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewise as tw
from tests.conftest import require


def rows(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def paged() -> dict[str, Any]:
    return {"q": rows(1, 2, 8), "kv_pages": rows(3, 4, 4, 8), "kv_lens": np.array([5], np.int32),
            "page_indices": np.array([[0, 1]], np.int32), "cu_q_lens": np.array([0, 1], np.int32)}  # fmt: skip


def test_numbers_as_scales() -> None:
    found = tw.explain_paged(**paged(), k_scale=0.1, v_scale=2)
    assert found.spec.k_scale == "scalar" == found.spec.v_scale
    with pytest.raises(tw.InvalidInput, match="positive"):
        tw.explain_paged(**paged(), k_scale=0.0)


@pytest.mark.parametrize(("wrong", "words"), [
    ({"foo": 1}, r"attention\(\).*foo"), ({"kv_starts": np.array([0, 4])}, r"attention_packed\(\).*q_starts"),
    ({"q_starts": np.array([0, 4]), "kv_starts": np.array([0, 4]), "bias": rows(1, 1, 4, 4)}, "bias"),
    ({"q_starts": np.array([0, 4]), "kv_starts": np.array([0, 4]), "layout": "bhtd"}, "layout"),
])  # fmt: skip
def test_what_the_call_does_not_take(wrong: dict[str, Any], words: str) -> None:
    shape = (4, 2, 8) if "q_starts" in wrong else (1, 4, 2, 8)
    with pytest.raises(tw.InvalidInput, match=words):
        tw.explain(rows(*shape), rows(*shape), rows(*shape), **wrong)


def test_autocast() -> None:
    torch = require("torch")
    q, k = torch.zeros(1, 4, 2, 8), torch.zeros(1, 4, 2, 8, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert tw.explain(q, k, k).problem.dtype == "bfloat16"
    with pytest.raises(tw.InvalidInput, match="one dtype"):
        tw.explain(q, k, k)


def test_lengths_of_numpy_go_with_mlx() -> None:
    mx = require("mlx.core")
    q = mx.zeros((1, 4, 2, 8))
    assert tw.explain(q, q, q, kv_lens=np.array([3], np.int32)).spec.kv_lens
