"""Scales of pages: any float dtype, a number as good as an array."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewise as tw


@pytest.mark.parametrize("backend", ["cpu", "composed"])
@pytest.mark.parametrize("scale", [
    0.25, np.float32(0.25), np.array(0.25), np.array([0.25]), np.array([0.25, 0.25]),
    np.full((3, 4, 2), 0.25, ml_dtypes.bfloat16), np.full((3, 4, 2), 0.25, np.float16),
])  # fmt: skip
def test_same_scale_same_result(scale: Any, backend: str) -> None:
    if tw.backends()[backend] is not None:
        pytest.skip(f"{backend}: {tw.backends()[backend]}")
    rng = np.random.default_rng(0)
    pages = rng.integers(-90, 90, (3, 4, 4, 8)).astype(np.int8)
    q = rng.standard_normal((2, 4, 8)).astype(np.float32)
    step = (np.array([7]), np.array([[2, 0]]), np.array([0, 2]))
    one = np.float32(0.25)
    wanted = tw.ragged_paged_attention(q, pages, *step, k_scale=one, v_scale=one, backend=backend)
    found = tw.ragged_paged_attention(q, pages, *step, k_scale=scale, v_scale=scale, backend=backend)
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6)
    plain = pages.astype(np.float32) * 0.25
    whole = tw.ragged_paged_attention(q, plain, *step, backend=backend)
    np.testing.assert_allclose(wanted, whole, rtol=2e-5, atol=2e-5)
