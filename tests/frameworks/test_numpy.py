"""What importing costs, how frameworks are told apart, and NumPy's own arrays."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewise as tw
from tests.conftest import run_python
from tests.frameworks.calls import BACKENDS, KINDS, call_of, map_pages, paged_step


def test_import_brings_no_framework() -> None:
    code = "import sys, tilewise; print([m for m in ('torch', 'jax', 'jaxlib', 'mlx') if m in sys.modules])"
    assert run_python(code).strip() == "[]"


def test_a_numpy_call_brings_no_framework() -> None:
    code = (
        "import sys, warnings, numpy as np, tilewise as tw; warnings.simplefilter('ignore');"
        "x = np.ones((1, 2, 1, 4), 'float32'); tw.attention(x, x, x);"
        "print([m for m in ('torch', 'jax', 'jaxlib', 'mlx') if m in sys.modules])"
    )
    assert run_python(code).strip() == "[]"


def test_unknown_array() -> None:
    with pytest.raises(tw.InvalidInput, match=r"NumPy, PyTorch, JAX or MLX, but is a builtins\.list"):
        tw.attention([1.0], [1.0], [1.0])


def test_arguments_by_name() -> None:
    call = call_of("causal")
    by_place = tw.attention(*call.arrays.values(), causal=True, backend="composed")
    by_name = tw.attention(causal=True, backend="composed", **dict(reversed(call.arrays.items())))
    np.testing.assert_array_equal(by_place, by_name)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_float32(kind: str, backend: str) -> None:
    call = call_of(kind)
    arrays = {name: x.astype(np.float32) for name, x in call.arrays.items()}
    packed = kind == "packed"
    forward, backward = (
        (tw.attention_packed, tw.attention_packed_backward) if packed else (tw.attention, tw.attention_backward)
    )
    out, lse = forward(**arrays, **call.others, **call.options, return_lse=True, backend=backend)
    np.testing.assert_allclose(out, call.out, atol=2e-6)
    np.testing.assert_allclose(lse, call.lse, atol=2e-6)
    grads = backward(
        **arrays, **call.others, out=out, lse=lse, dout=call.dout.astype(np.float32),
        dlse=call.dlse.astype(np.float32), **call.options, backend=backend,
    )  # fmt: skip
    for name, wanted in call.gradients.items():
        grad = getattr(grads, name)
        assert grad.dtype == np.float32
        np.testing.assert_allclose(grad, wanted, atol=5e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float8_e4m3fn"])
def test_append_writes_in_place(dtype: str, backend: str) -> None:
    step = paged_step(dtype, combined=False)
    before = map_pages(np.copy, step.kv_pages)
    pages = tw.append_to_pages(step.kv_pages, step.k, step.v, **step.batch, **step.scales, backend=backend)
    assert all(mine is given for mine, given in zip(pages, step.kv_pages, strict=True))
    assert not np.array_equal(before[0].view(np.uint8), pages[0].view(np.uint8))


def test_byte_order_of_another_machine() -> None:
    x = np.random.default_rng(0).standard_normal((1, 3, 2, 4)).astype(np.float32)
    swapped = x.astype(x.dtype.newbyteorder())
    np.testing.assert_array_equal(tw.attention(swapped, swapped, swapped), tw.attention(x, x, x))


def test_bfloat16_is_that_of_ml_dtypes() -> None:
    x = np.ones((1, 3, 2, 4), ml_dtypes.bfloat16)
    assert tw.attention(x, x, x).dtype == ml_dtypes.bfloat16
