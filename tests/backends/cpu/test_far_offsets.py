"""Elements that lie past 2^31 and 2^32 of their array: no offset is narrowed. The memory between is never touched."""

from __future__ import annotations

import mmap
import sys
from typing import Any

import numpy as np
import pytest

import tilewise as tw
from tests.conftest import require
from tests.frameworks.calls import call_of
from tilewise.frameworks.numpy_adapter import DTYPES

pytestmark = [
    pytest.mark.skipif(tw.backends()["cpu"] is not None, reason=str(tw.backends()["cpu"])),
    pytest.mark.skipif(sys.platform != "linux", reason="memory that is not reserved is Linux's"),
]
NO_RESERVE = 0x4000  # mmap.MAP_NORESERVE of Python 3.12
FAR = 2**31 + 192  # elements; three of them pass 2^32 too


def reserve(size: int) -> mmap.mmap:
    """Zeros that take memory only where they are written."""
    return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)


def spread(x: np.ndarray, axis: int) -> np.ndarray:
    """x with its elements FAR apart along one axis."""
    strides = list(np.empty(x.shape, np.uint8).strides)
    strides[axis] = FAR
    size = 1 + sum(stride * (n - 1) for stride, n in zip(strides, x.shape, strict=True))
    result = np.ndarray(x.shape, x.dtype, reserve(size * x.itemsize), 0, [stride * x.itemsize for stride in strides])
    result[...] = x
    return result


def same(mine: Any, theirs: Any) -> None:
    assert np.ascontiguousarray(mine).tobytes() == np.ascontiguousarray(theirs).tobytes()


def test_spread_is_far() -> None:
    x = spread(np.arange(6, dtype=np.int8).reshape(3, 2), 0)
    assert x.strides[0] * 2 > 2**32
    assert x.tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("kind", ["all", "mask"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_dense(dtype: str, kind: str, axis: int) -> None:
    call = call_of(kind)
    near = {name: x.astype(DTYPES[dtype]) for name, x in call.arrays.items()} | call.others
    near["dout"] = call.dout.astype(DTYPES[dtype])
    shifted = {"bias": (1, 1, 2), "mask": (0, 0, 2)}  # axes of theirs that are wider than 1
    far = {name: spread(x, shifted.get(name, (0, 1, 2))[axis]) if x.ndim == 4 else x for name, x in near.items()}

    def run(arrays: dict[str, Any]) -> Any:
        arrays, dout = {name: x for name, x in arrays.items() if name != "dout"}, arrays["dout"]
        out, lse = tw.attention(**arrays, **call.options, return_lse=True, backend="cpu")
        grads = tw.attention_backward(**arrays, **call.options, out=out, lse=lse, dout=dout, backend="cpu")
        return [out, lse, *(x for x in grads if x is not None)]

    for mine, theirs in zip(run(far), run(near), strict=True):
        same(mine, theirs)


def test_torch() -> None:
    torch = require("torch")
    call = call_of("all")
    near = {name: x.astype(np.float32) for name, x in call.arrays.items()}
    far = {name: torch.from_numpy(spread(x, 1) if x.ndim == 4 and x.shape[1] > 1 else x) for name, x in near.items()}
    results = []
    for arrays in (far, {name: torch.from_numpy(x) for name, x in near.items()}):
        leaves = {name: x.detach().requires_grad_() for name, x in arrays.items()}
        others = {name: torch.from_numpy(x) for name, x in call.others.items()}
        out = tw.attention(**leaves, **others, **call.options, backend="cpu")
        grads = torch.autograd.grad(out, list(leaves.values()), torch.from_numpy(call.dout.astype(np.float32)))
        results.append([out.detach(), *grads])
    for mine, theirs in zip(*results, strict=True):
        same(mine.numpy(), theirs.numpy())


BATCH = {
    "kv_lens": np.array([70, 9, 33], np.int32),
    "cu_q_lens": np.array([0, 1, 5, 38], np.int32),
}


@pytest.mark.parametrize("combined", [False, True])
@pytest.mark.parametrize(("dtype", "stored"), [("float32", "int8"), ("bfloat16", "bfloat16"), ("float32", "float32")])
def test_pages_past_the_end_of_32_bits(dtype: str, stored: str, combined: bool) -> None:
    """Pages as they are, only very many of them; the step uses the first, the last and some at both borders."""
    rng = np.random.default_rng(0)
    shape = (16, 4, 64) if combined else (16, 2, 64)  # one page
    elements = int(np.prod(shape))
    ids = np.array([[0, 1, 2, 3, 4], [5, -1, -1, -1, -1], [6, 7, 8, -1, -1]], np.int32)
    border, end = 2**31 // elements, 2**32 // elements
    at = np.array([0, border, end + 2, border + 1, end - 1, border - 1, end + 1, 1, end], np.int32)
    number = end + 3
    small, large = [], []
    for _ in range(1 if combined else 2):
        x = (20 * rng.standard_normal((len(at), *shape))).astype(DTYPES[stored])
        memory = reserve(number * elements * x.itemsize)
        many = np.ndarray((number, *shape), x.dtype, memory)
        many[at] = x
        small.append(x)
        large.append(many)
    q = rng.standard_normal((38, 4, 64)).astype(DTYPES[dtype])
    k, v = (rng.standard_normal((38, 2, 64)).astype(DTYPES[dtype]) for _ in range(2))
    scales = {"k_scale": 0.05, "v_scale": 0.05} if stored == "int8" else {}

    def serve(pages: list[np.ndarray], indices: np.ndarray) -> Any:
        given: Any = pages[0] if combined else tuple(pages)
        step = {**BATCH, "page_indices": indices, **scales, "backend": "cpu"}
        before = tw.ragged_paged_attention(q, given, **step, return_lse=True)
        tw.append_to_pages(given, k, v, **step)
        return [*before, *tw.ragged_paged_attention(q, given, **step, return_lse=True)]

    theirs = serve(small, ids)
    for mine, wanted in zip(serve(large, np.where(ids < 0, -1, at[ids])), theirs, strict=True):
        same(mine, wanted)
    for few, many in zip(small, large, strict=True):  # what was appended lies in its own pages
        same(many[at], few)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_pages_far_apart(axis: int) -> None:
    rng = np.random.default_rng(0)
    near = [rng.integers(-100, 100, (9, 8, 2, 64), np.int8) for _ in range(2)]
    q = rng.standard_normal((6, 4, 64)).astype(np.float32)
    k, v = (rng.standard_normal((6, 2, 64)).astype(np.float32) for _ in range(2))
    step: dict[str, Any] = {
        "kv_lens": np.array([30, 9], np.int32), "page_indices": np.array([[8, 0, 3, 7], [2, 5, -1, -1]], np.int32),
        "cu_q_lens": np.array([0, 1, 6], np.int32), "k_scale": 0.05, "v_scale": 0.1, "backend": "cpu",
    }  # fmt: skip
    results = []
    for pages in (tuple(spread(x, axis) for x in near), tuple(x.copy() for x in near)):
        tw.append_to_pages(pages, k, v, **step)
        results.append([*tw.ragged_paged_attention(q, pages, **step, return_lse=True), *pages])
    for mine, theirs in zip(*results, strict=True):
        same(mine, theirs)
