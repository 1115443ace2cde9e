"""MLX on a CPU: grad, compile, vmap, dtypes, laziness, NumPy among its arrays, pages, merge, refusals."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewise as tw
from tests.conftest import require
from tests.frameworks.calls import BACKENDS, KINDS, Call, Paged, call_of, map_pages, paged_step

mx = require("mlx.core")

pytestmark = pytest.mark.skipif(mx.default_device() != mx.cpu, reason="the default device of MLX is no CPU")
no_cpu = pytest.mark.skipif(tw.backends()["cpu"] is not None, reason=str(tw.backends()["cpu"]))
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16, "float64": mx.float64}


def array(x: Any, dtype: str | None = None) -> Any:
    """An MLX array of a NumPy one (bfloat16 by its bits)."""
    if x.dtype == ml_dtypes.bfloat16:
        return mx.array(x.view(np.uint16)).view(mx.bfloat16)
    return mx.array(x, dtype=DTYPES[dtype or "float32"]) if x.dtype.kind == "f" else mx.array(x)


def numpy(x: Any) -> np.ndarray:
    return np.array(x.view(mx.uint16)).view(ml_dtypes.bfloat16) if x.dtype == mx.bfloat16 else np.array(x)


def arrays_of(call: Call, dtype: str = "float32") -> dict[str, Any]:
    return {name: array(x, dtype) for name, x in call.arrays.items()}


def run(call: Call, arrays: dict[str, Any], **more: Any) -> Any:
    function: Any = tw.attention_packed if "q_starts" in call.others else tw.attention
    others = {name: array(x) for name, x in call.others.items()}
    return function(**arrays, **others, **call.options, return_lse=True, **more)


def loss_of(call: Call, dtype: str = "float32", **more: Any) -> Any:
    dout, dlse = array(call.dout, dtype), array(call.dlse, "float64" if dtype == "float64" else "float32")

    def loss(arrays: dict[str, Any]) -> Any:
        out, lse = run(call, arrays, **more)
        return (out * dout).sum() + mx.where(mx.isfinite(lse), lse * dlse, mx.zeros_like(lse)).sum()

    return loss


def close(x: Any, wanted: Any, atol: float = 5e-6) -> None:
    x, wanted = (numpy(y) if isinstance(y, mx.array) else y for y in (x, wanted))
    np.testing.assert_allclose(x.astype(np.float64), wanted.astype(np.float64), atol=atol)


def same(x: Any, wanted: Any) -> None:
    """Bit for bit, dtypes too."""
    x, wanted = (numpy(y) if isinstance(y, mx.array) else y for y in (x, wanted))
    assert (x.dtype, x.shape, x.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())


def qkv(kind: str = "causal") -> list[Any]:
    return list(arrays_of(call_of(kind)).values())[:3]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_grad(kind: str, backend: str) -> None:
    call = call_of(kind)
    arrays, loss = arrays_of(call), loss_of(call, backend=backend)
    out, lse = run(call, arrays, backend=backend)
    close(out, call.out)
    close(lse, call.lse)
    grads = mx.grad(loss)(arrays)
    for name, wanted in call.gradients.items():
        assert grads[name].dtype == mx.float32
        close(grads[name], wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_traced_by_compile(kind: str) -> None:
    """Not evaluated: MLX calls a C++ compiler for each fused kernel, which takes seconds at first (the slow tests)."""
    call = call_of(kind)
    out, lse = mx.compile(lambda x: run(call, x))(arrays_of(call))
    assert (tuple(out.shape), tuple(lse.shape), out.dtype) == (call.out.shape, call.lse.shape, mx.float32)
    grads = mx.compile(mx.grad(loss_of(call)))(arrays_of(call))
    assert {name: tuple(x.shape) for name, x in grads.items()} == {n: x.shape for n, x in call.arrays.items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["causal", "all", "packed"])
def test_compile_and_grad(kind: str) -> None:
    call = call_of(kind)
    arrays, loss = arrays_of(call), loss_of(call)
    out, lse = mx.compile(lambda x: run(call, x))(arrays)
    close(out, call.out)
    close(lse, call.lse)
    for gradient in (mx.compile(mx.grad(loss)), mx.grad(mx.compile(loss))):
        grads = gradient(arrays)
        for name, wanted in call.gradients.items():
            close(grads[name], wanted)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("names", ["q", "k", "v", "bias", "sinks", "q bias", "k v", "k sinks", "q k v", "v bias sinks"])
def test_any_subset_of_gradients(names: str, backend: str) -> None:
    call = call_of("all")
    arrays, loss = arrays_of(call), loss_of(call, backend=backend)
    part = {name: arrays[name] for name in names.split()}
    grads = mx.grad(lambda x: loss({**arrays, **x}))(part)
    for name in part:
        close(grads[name], call.gradients[name])


def test_gradients_by_argument_number() -> None:
    q, k, v = qkv()
    every = mx.grad(lambda *x: (tw.attention(*x, causal=True) ** 2).sum(), argnums=(0, 1, 2))(q, k, v)
    for subset in ((1,), (0, 2), (0, 1, 2)):
        some = mx.grad(lambda *x: (tw.attention(*x, causal=True) ** 2).sum(), argnums=subset)(q, k, v)
        for n, grad in zip(subset, some if isinstance(some, tuple) else (some,), strict=True):
            same(grad, every[n])


@pytest.mark.parametrize("part", [0, 1])
def test_loss_through_one_result(part: int) -> None:
    call = call_of("causal")
    zero = [np.zeros_like(call.out), np.zeros_like(call.lse)]
    zero[part] = (call.dout, call.dlse)[part]
    wanted = tw.attention_backward(*call.arrays.values(), call.out, call.lse, *zero, causal=True, backend="composed")
    grads = mx.grad(lambda x: (run(call, x)[part] * array(zero[part])).sum())(arrays_of(call))
    for name in "qkv":
        close(grads[name], getattr(wanted, name))


@no_cpu
@pytest.mark.parametrize("kind", ["all", "packed"])
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_the_kernels_give_the_bits_that_they_give_numpy(dtype: str, kind: str) -> None:
    call = call_of(kind)
    arrays = arrays_of(call, dtype)
    if kind == "all":
        arrays["bias"] = array(call.arrays["bias"], "float32")
    real = "float64" if dtype == "float64" else "float32"
    dout, dlse = array(call.dout, dtype), array(call.dlse, real)
    names = list(arrays)
    results, grads = mx.vjp(lambda *x: list(run(call, dict(zip(names, x, strict=True)), backend="cpu")),
                            list(arrays.values()), [dout, dlse])  # fmt: skip
    plain = {name: numpy(x) for name, x in arrays.items()}
    forward, backward = (tw.attention_packed, tw.attention_packed_backward) if kind == "packed" else (
        tw.attention, tw.attention_backward)  # fmt: skip
    for mine, theirs in zip(results, forward(**plain, **call.others, **call.options, return_lse=True, backend="cpu")):
        same(mine, theirs)
    rows = {"out": results[0], "lse": results[1], "dout": dout, "dlse": dlse}
    wanted = backward(**plain, **call.others, **{name: numpy(x) for name, x in rows.items()}, **call.options,
                      backend="cpu")  # fmt: skip
    for name, grad in zip(names, grads, strict=True):
        assert grad.dtype == arrays[name].dtype
        same(grad, getattr(wanted, name))


@pytest.mark.slow
def test_dtypes_inside_compile() -> None:
    call = call_of("causal")
    arrays = arrays_of(call, "bfloat16")
    out, lse = mx.compile(lambda x: run(call, x))(arrays)
    assert (out.dtype, lse.dtype) == (mx.bfloat16, mx.float32)
    close(out, numpy(run(call, arrays)[0]), 2**-8 * abs(call.out).max())  # an ulp


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["causal", "bias", "sinks", "lens", "packed"])
def test_vmap(kind: str, backend: str) -> None:
    call = call_of(kind)
    arrays, loss = arrays_of(call), loss_of(call, backend=backend)
    many = mx.stack([arrays["q"], 2 * arrays["q"], -arrays["q"]], 1)
    rest = {name: x for name, x in arrays.items() if name != "q"}
    mapped = mx.vmap(lambda q: run(call, {"q": q, **rest}, backend=backend)[0], in_axes=1)(many)
    close(mapped[0], call.out)
    grads = mx.vmap(mx.grad(lambda q: loss({"q": q, **rest})), in_axes=1)(many)
    of_sum = mx.grad(lambda many: mx.vmap(lambda q: loss({"q": q, **rest}), in_axes=1)(many).sum())(many)
    for i in range(3):
        single = mx.grad(lambda q: loss({"q": q, **rest}))(many[:, i])
        close(grads[i], single, 1e-5)
        close(of_sum[:, i], single, 1e-5)


def test_lazy_until_read() -> None:
    """A result is what its inputs were when the call was made; unread inputs are computed for it."""
    q, k, v = qkv()
    wanted = tw.attention(q * 2, k + v[..., :1], v, causal=True)
    lazy = mx.array(np.array(q))
    out = tw.attention(lazy * 2, k + v[..., :1], v, causal=True)
    lazy += 100
    same(out, wanted)
    chain = q
    for _ in range(4):  # results feed calls, unread
        chain = tw.attention(chain, k, mx.concatenate([v, v[..., :2]], -1), causal=True)
    read = q
    for _ in range(4):
        read = tw.attention(read, k, mx.concatenate([v, v[..., :2]], -1), causal=True)
        mx.eval(read)
    same(chain, read)


@pytest.mark.parametrize("backend", BACKENDS)
def test_layouts_and_strides(backend: str) -> None:
    q, k, v = qkv()
    wanted = tw.attention(q, k, v, causal=True, backend=backend)
    views = [x.transpose(0, 2, 1, 3) for x in (q, k, v)]
    same(tw.attention(*views, causal=True, layout="bhtd", backend=backend).transpose(0, 2, 1, 3), wanted)
    spread = [mx.stack([x, mx.full(x.shape, mx.nan)], -1)[..., 0] for x in (q, k, v)]
    same(tw.attention(*spread, causal=True, backend=backend), wanted)
    back = [x[..., ::-1][..., ::-1] for x in (q, k, v)]
    same(tw.attention(*back, causal=True, backend=backend), wanted)
    one = mx.broadcast_to(q[:, :1], q.shape)
    same(tw.attention(one, k, v, backend=backend), tw.attention(mx.array(np.array(one)), k, v, backend=backend))


def test_numpy_among_mlx_arrays() -> None:
    call = call_of("lens")
    q, k, v = qkv("lens")
    wanted = tw.attention(q, k, v, **{name: array(x) for name, x in call.others.items()})
    same(tw.attention(q, k, v, **call.others), wanted)  # integers are taken
    for kind in ("mask", "segments"):
        same(run(call_of(kind), arrays_of(call_of(kind)))[0], tw.attention(*qkv(kind), **call_of(kind).others))
    with pytest.raises(tw.InvalidInput, match=r"k must be an mlx\.core\.array"):
        tw.attention(q, np.array(k), v)
    with pytest.raises(tw.InvalidInput, match=r"bias must be an mlx\.core\.array"):
        tw.attention(q, k, v, bias=np.zeros((1, 1, 5, 7), np.float32))
    with pytest.raises(tw.InvalidInput, match="k must be a NumPy array"):
        tw.attention(np.array(q), k, v)


def test_refused_in_words() -> None:
    q, k, v = qkv()

    def loss(q: Any) -> Any:
        return (tw.attention(q, k, v) ** 2).sum()

    with pytest.raises(tw.Unsupported, match="first derivatives only"):
        mx.eval(mx.grad(lambda q: mx.grad(loss)(q).sum())(q))
    with pytest.raises(tw.Unsupported, match="no forward-mode derivative"):
        mx.jvp(loss, [q], [q])
    step = paged_step("float32", combined=True)
    batch = {name: array(x) for name, x in step.batch.items()}
    with pytest.raises(tw.Unsupported, match="for serving and has no gradient"):
        mx.grad(lambda q: tw.ragged_paged_attention(q, array(step.kv_pages), **batch).sum())(array(step.q))


@no_cpu
def test_values_out_of_range_are_an_error_and_never_read() -> None:
    q, k, v = qkv()
    for lens in (np.array([3, 8]), np.array([3, 2**32]), np.array([-1, 3])):
        with pytest.raises(tw.InvalidInput, match="kv_lens"):
            mx.eval(tw.attention(q, k, v, kv_lens=mx.array(lens), backend="cpu"))
    step = paged_step("float32", combined=True)
    batch = {name: array(x) for name, x in step.batch.items()}
    batch["page_indices"] += 99
    with pytest.raises(tw.InvalidInput, match="page_indices"):
        mx.eval(tw.ragged_paged_attention(array(step.q), array(step.kv_pages), **batch))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("combined", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_pages(dtype: str, combined: bool, backend: str) -> None:
    step = paged_step(dtype, combined)
    pages = map_pages(array, step.kv_pages)
    check_step(step, serve(step, pages, backend), pages)


@pytest.mark.slow
def test_pages_inside_compile() -> None:
    step = paged_step("float32", combined=True)
    pages = array(step.kv_pages)
    check_step(step, mx.compile(lambda pages: serve(step, pages, None))(pages), pages)


def serve(step: Paged, pages: Any, backend: str | None) -> Any:
    q, k, v = (array(x) for x in step[:3])
    scales = {name: array(x) if isinstance(x, np.ndarray) else x for name, x in step.scales.items()}
    batch = {name: array(x) for name, x in step.batch.items()}
    pages = tw.append_to_pages(pages, k, v, **batch, **scales, backend=backend)
    return pages, tw.ragged_paged_attention(q, pages, **batch, **scales, return_lse=True, backend=backend)


def check_step(step: Paged, got: Any, pages: Any) -> None:
    combined = not isinstance(pages, tuple)
    for mine, given in zip(*([x] if combined else x for x in (pages, step.kv_pages)), strict=True):
        same(mine, given)  # the old pages are as they were
    wanted = tw.append_to_pages(step.kv_pages, step.k, step.v, **step.batch, **step.scales, backend="composed")
    for mine, theirs in zip(*([x] if combined else x for x in (got[0], wanted)), strict=True):
        same(mine, theirs)
    rows = tw.ragged_paged_attention(step.q, wanted, **step.batch, **step.scales, return_lse=True, backend="composed")
    for mine, theirs in zip(got[1], rows, strict=True):
        close(mine, theirs, 2e-5)


def test_merge() -> None:
    q, k, v = qkv()
    parts = [tw.attention(q, k[:, a], v[:, a], return_lse=True) for a in (slice(0, 3), slice(3, 7), slice(0, 0))]
    whole = tw.attention(q, k, v, return_lse=True)
    for mine, theirs in zip(tw.merge(parts), whole, strict=True):
        close(mine, theirs, 2e-6)

    def merged_sum(k: Any) -> Any:
        parts = [tw.attention(q, k[:, a], v[:, a], return_lse=True) for a in (slice(0, 3), slice(3, 7))]
        return tw.merge(parts)[0].sum()

    close(mx.grad(merged_sum)(k), mx.grad(lambda k: tw.attention(q, k, v).sum())(k))
