"""A sequence's bits do not depend on what else is in the batch, nor on how many threads work on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tilewise as tw
from tilewise.frameworks.numpy_adapter import DTYPES

pytestmark = pytest.mark.skipif(tw.backends()["cpu"] is not None, reason=str(tw.backends()["cpu"]))

FLOATS = ("float32", "bfloat16", "float16", "float64")
FEATURES: dict[str, dict[str, Any]] = {"causal": {"causal": True}, "all": {"window": (70, 9), "softcap": 3.0}}
Q_LENS, KV_LENS = (1, 129, 3, 40, 0, 64), (300, 131, 3, 7, 20, 64)
HEADS, KV_HEADS, D, E = 6, 2, 24, 16


@pytest.fixture(params=[1, 2, 5], ids=lambda n: f"{n} threads", autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Each test on so many threads; alone on one, below."""
    before = tw.num_threads()
    tw.set_num_threads(request.param)
    yield request.param
    tw.set_num_threads(before)


def normal(rng: Any, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return rng.standard_normal(shape).astype(DTYPES[dtype])


def alone(threads: int, call: Any) -> Any:
    """The call on one thread, when all the others were on several, and the other way round."""
    tw.set_num_threads(2 if threads == 1 else 1)
    try:
        return call()
    finally:
        tw.set_num_threads(threads)


def same(mine: Any, theirs: Any, what: str) -> None:
    assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape), what
    assert np.ascontiguousarray(mine).tobytes() == np.ascontiguousarray(theirs).tobytes(), what


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 700), (5, 9), (130, 131)])
def test_dense(q_len: int, kv_len: int, dtype: str, features: str, threads: int) -> None:
    rng, options = np.random.default_rng(0), FEATURES[features] | {"backend": "cpu"}
    shapes = ((q_len, HEADS, D), (kv_len, KV_HEADS, D), (kv_len, KV_HEADS, E))
    q, k, v = (normal(rng, (5, *shape), dtype) for shape in shapes)
    sinks = normal(rng, (HEADS,), "float32") if features == "all" else None
    kv_lens = np.array([kv_len, kv_len, 1, kv_len // 2, kv_len], np.int32) if features == "all" else None
    dout = normal(rng, (5, q_len, HEADS, E), dtype)
    lens = {} if kv_lens is None else {"kv_lens": kv_lens}
    out, lse = tw.attention(q, k, v, **options, **lens, sinks=sinks, return_lse=True)
    grads = tw.attention_backward(q, k, v, out, lse, dout, **options, **lens, sinks=sinks)

    for b in (slice(0, 1), slice(2, 4), slice(4, 5)):
        parts = {name: x[b] for name, x in {"q": q, "k": k, "v": v, **lens}.items()} | options | {"sinks": sinks}
        one = alone(threads, lambda parts=parts: tw.attention(**parts, return_lse=True))
        same(one[0], out[b], "out")
        same(one[1], lse[b], "lse")
        rows = {"out": out[b], "lse": lse[b], "dout": dout[b]}
        some = alone(threads, lambda parts=parts, rows=rows: tw.attention_backward(**parts, **rows))
        for name in "qkv":
            same(getattr(some, name), getattr(grads, name)[b], name)


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_packed(dtype: str, features: str, threads: int) -> None:
    rng, options = np.random.default_rng(1), FEATURES[features] | {"backend": "cpu"}
    q_starts, kv_starts = (np.cumsum([2, *lens]).astype(np.int32) for lens in (Q_LENS, KV_LENS))
    q = normal(rng, (q_starts[-1] + 3, HEADS, D), dtype)
    k, v = (normal(rng, (kv_starts[-1], KV_HEADS, width), dtype) for width in (D, E))
    dout = normal(rng, (len(q), HEADS, E), dtype)
    out, lse = tw.attention_packed(q, k, v, q_starts, kv_starts, **options, return_lse=True)
    grads = tw.attention_packed_backward(
        q, k, v, q_starts=q_starts, kv_starts=kv_starts, out=out, lse=lse, dout=dout, **options
    )
    for i, (q_len, kv_len) in enumerate(zip(Q_LENS, KV_LENS, strict=True)):
        queries, keys = (slice(starts[i], starts[i + 1]) for starts in (q_starts, kv_starts))
        starts = {name: np.array([0, n], np.int32) for name, n in (("q_starts", q_len), ("kv_starts", kv_len))}
        parts = {"q": q[queries], "k": k[keys], "v": v[keys]} | starts | options
        one = alone(threads, lambda parts=parts: tw.attention_packed(**parts, return_lse=True))
        same(one[0], out[queries], f"out of {i}")
        same(one[1], lse[:, queries], f"lse of {i}")
        rows = {"out": out[queries], "lse": np.ascontiguousarray(lse[:, queries]), "dout": dout[queries]}
        some = alone(threads, lambda parts=parts, rows=rows: tw.attention_packed_backward(**parts, **rows))
        for name, where in (("q", queries), ("k", keys), ("v", keys)):
            same(getattr(some, name), getattr(grads, name)[where], f"gradient {name} of {i}")


PAGES = [*((dtype, dtype) for dtype in FLOATS), ("bfloat16", "int8"), ("float32", "float8_e4m3fn"),
         ("float16", "float8_e5m2"), ("bfloat16", "float32")]  # fmt: skip


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize(("dtype", "stored"), PAGES)
@pytest.mark.parametrize("page_size", [1, 16])
def test_paged(page_size: int, dtype: str, stored: str, features: str, threads: int) -> None:
    rng = np.random.default_rng(2)
    options = FEATURES[features] | {"causal": True, "backend": "cpu"}
    q_lens, kv_lens = (1, 1, 130, 1, 6, 0, 2), (2100, 5, 131, 16, 90, 33, 17)
    counts = [-(-n // page_size) for n in kv_lens]
    order = rng.permutation(sum(counts)).astype(np.int32)
    tables = np.full((len(kv_lens), max(counts)), -1, np.int32)
    for i, ids in enumerate(np.split(order, np.cumsum(counts)[:-1])):
        tables[i, : len(ids)] = ids
    scale = 20 if stored == "int8" else 1
    pages = tuple(
        (scale * rng.standard_normal((len(order), page_size, KV_HEADS, width))).astype(DTYPES[stored])
        for width in (D, E)
    )
    more = {"sinks": normal(rng, (HEADS,), "float32")} if features == "all" else {}
    if stored in ("int8", "float8_e4m3fn"):
        more |= {"k_scale": np.float32([0.1, 0.05]), "v_scale": np.float32([0.07, 0.1])}
    q = normal(rng, (sum(q_lens) + 2, HEADS, D), dtype)
    starts = np.cumsum([0, *q_lens]).astype(np.int32)
    every = {"kv_lens": np.array(kv_lens, np.int32), "page_indices": tables, "cu_q_lens": starts}
    out, lse = tw.ragged_paged_attention(q, pages, **every, **options, **more, return_lse=True)
    for i, q_len in enumerate(q_lens):
        rows = slice(starts[i], starts[i + 1])
        single = {
            "kv_lens": every["kv_lens"][i : i + 1], "page_indices": tables[i : i + 1, : max(counts[i], 1)],
            "cu_q_lens": np.array([0, q_len], np.int32),
        }  # fmt: skip
        one = alone(threads, lambda rows=rows, single=single: tw.ragged_paged_attention(
            q[rows], pages, **single, **options, **more, return_lse=True))  # fmt: skip
        same(one[0], out[rows], f"out of {i}")
        same(one[1], lse[:, rows], f"lse of {i}")
