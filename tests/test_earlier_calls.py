"""What a call is told does not depend on the calls before it: plans are kept, judgements too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewise as tw
from tests.conftest import require


def arrays() -> tuple[np.ndarray, ...]:
    return tuple(np.random.default_rng(0).standard_normal((1, 4, 2, 8)).astype(np.float32) for _ in range(3))


@pytest.mark.parametrize(("good", "bad"), [
    ({"causal": True}, {"causal": 1}), ({"softcap": 1.0}, {"softcap": True}), ({"scale": 1.0}, {"scale": True}),
    ({"window": (1, 0)}, {"window": (1.0, 0)}), ({"window": (1, 0)}, {"window": (1, False)}),
    ({"window": (1, 0)}, {"window": (True, 0)}),
])  # fmt: skip
def test_an_equal_value_of_another_type(good: dict[str, Any], bad: dict[str, Any]) -> None:
    tw.attention(*arrays(), **good)
    with pytest.raises(tw.InvalidInput, match=next(iter(bad)) if "window" not in bad else "window"):
        tw.attention(*arrays(), **bad)


def test_an_array_of_another_framework() -> None:
    numpy = require("jax").numpy
    q, k, v = arrays()
    tw.attention(q, k, v)
    with pytest.raises(tw.InvalidInput, match="k must be a NumPy array"):
        tw.attention(q, numpy.array(k), v)
