"""A NaN or infinity in V reaches the rows that see it and no other, also inside a block that some rows see in part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewise as tw
from tests.backends.tpu import interpret
from tests.conftest import require
from tilewise.backends.tpu.target import interpreted


@pytest.mark.parametrize("drafts", [False, True], ids=["causal", "draft mask"])
def test_hidden_values_stay_hidden(drafts: bool) -> None:
    jnp = require("jax.numpy")
    random = np.random.default_rng(0)
    q_len, kv_len, size, heads = 6, 20, 8, (2, 1)
    pages = random.standard_normal((3, size, 2, 16)).astype(np.float32)
    flat = pages.reshape(-1, 2, 16)
    new = {16: np.nan, 17: np.inf, 18: -np.inf}  # keys of the new tokens 2, 3 and 4
    for key, value in new.items():
        flat[key, 1] = value
    q = random.standard_normal((q_len, heads[0], 16)).astype(np.float32)
    mask = np.tril(np.ones((q_len, q_len), bool)) if drafts else None
    if mask is not None:
        mask[:, 2] = False  # the NaN is seen by none
    lengths: Any = [np.array(x, np.int32) for x in ([kv_len], [[0, 1, 2]], [0, q_len])]

    def call(array: Any, backend: str) -> np.ndarray:
        given = None if mask is None else array(mask)
        out = tw.ragged_paged_attention(array(q), array(pages), *map(array, lengths), draft_mask=given, backend=backend)
        return np.asarray(out)

    want = call(np.asarray, "composed")
    with interpreted(interpret.parameters("on_wait")):
        got = call(jnp.asarray, "tpu")
    assert np.isfinite(got[:2]).all()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
