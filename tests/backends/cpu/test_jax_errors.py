"""What C++ throws inside a custom call of XLA reaches JAX as an error and does not end the process."""

from __future__ import annotations

import pytest

from tests.conftest import require, run_python
from tilewise.backends.cpu import library

CODE = """
import jax, numpy as np
import tilewise as tw
from tilewise.backends.cpu import launch_jax
sizes = launch_jax.layout.dense_sizes
launch_jax.layout.dense_sizes = lambda problem: {changed}
x = np.ones((1, 16, 2, 8), np.float32)
try:
    jax.block_until_ready(tw.attention(*map(jax.numpy.asarray, (x, x, x)), backend="cpu"))
except Exception as error:
    print(error)
launch_jax.layout.dense_sizes = sizes
out = tw.attention(*map(jax.numpy.asarray, (x, x, x)), scale=0.5, backend="cpu")
print("alive", float(out[0, 0, 0, 0]))
"""


@pytest.mark.skipif(library.missing() is not None, reason="no compiled module for this CPU")
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        pytest.param("[*sizes(problem)[:5], 2**46, 8]", "out of memory", id="memory"),
        pytest.param("sizes(problem)[:-1]", "too few sizes", id="attributes"),
    ],
)
def test_an_exception_is_an_error(changed: str, words: str) -> None:
    require("jax")
    said = run_python(CODE.replace("{changed}", changed), JAX_PLATFORMS="cpu").splitlines()
    assert words in said[0]
    assert said[-1] == "alive 1.0"
