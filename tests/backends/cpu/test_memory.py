"""Memory grows with the lengths, not with their product."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import run_python
from tilewise.backends.cpu import library

pytestmark = [
    pytest.mark.skipif(library.missing() is not None, reason="no compiled module for this CPU"),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

CODE = """
import numpy as np, tilewise as tw

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024

n, d = {n}, 64
small = np.ones((1, 8, 1, d), np.float32)
out, lse = tw.attention(small, small, small, causal=True, return_lse=True, backend="cpu")
tw.attention_backward(small, small, small, out, lse, out, causal=True, backend="cpu")
before = peak()
q, k, v = (np.full((1, n, 1, d), 0.5, np.float32) for _ in range(3))
out, lse = tw.attention(q, k, v, causal=True, return_lse=True, backend="cpu")
grads = tw.attention_backward(q, k, v, out, lse, out, causal=True, backend="cpu")
arrays = sum(x.nbytes for x in (q, k, v, out, lse, *grads[:3]))
print((peak() - before - arrays) / 2**20)
"""


def test_at_4096() -> None:
    assert float(run_python(CODE.format(n=4096), TILEWISE_NUM_THREADS="2")) < 64


@pytest.mark.slow
def test_at_32768() -> None:
    assert float(run_python(CODE.format(n=32768), timeout=600.0, TILEWISE_NUM_THREADS="2")) < 64
