"""JAX: jit, grad, vmap, remat, scan, export, donation; values judged by the kernels; refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewise as tw
from tests.conftest import require
from tests.frameworks.calls import BACKENDS, KINDS, Call, call_of, map_pages, paged_step

jax = require("jax")
jnp = require("jax.numpy")
custom_derivatives = require("jax.custom_derivatives")


def arrays_of(call: Call, dtype: str = "float32") -> dict[str, Any]:
    return {name: jnp.asarray(x, dtype) for name, x in call.arrays.items()}


def run(call: Call, arrays: dict[str, Any], **more: Any) -> Any:
    function: Any = tw.attention_packed if "q_starts" in call.others else tw.attention
    return function(**arrays, **call.others, **call.options, return_lse=True, **more)


def loss_of(call: Call, **more: Any) -> Any:
    dout, dlse = (jnp.asarray(x, "float32") for x in (call.dout, call.dlse))

    def loss(arrays: dict[str, Any]) -> Any:
        out, lse = run(call, arrays, **more)
        return (out * dout).sum() + jnp.where(jnp.isfinite(lse), lse * dlse, 0).sum()

    return loss


def close(x: Any, wanted: Any, atol: float = 5e-6) -> None:
    np.testing.assert_allclose(np.asarray(x, np.float64), np.asarray(wanted, np.float64), atol=atol)


def qkv(kind: str = "causal") -> list[Any]:
    return list(arrays_of(call_of(kind)).values())[:3]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_jit_and_grad(kind: str, backend: str) -> None:
    call = call_of(kind)
    arrays, loss = arrays_of(call), loss_of(call, backend=backend)
    for transform in (lambda f: f, jax.jit):
        out, lse = transform(lambda x: run(call, x, backend=backend))(arrays)
        close(out, call.out)
        close(lse, call.lse)
    value, grads = jax.jit(jax.value_and_grad(loss))(arrays)
    close(value, loss(arrays), 1e-4)
    for name, wanted in call.gradients.items():
        assert grads[name].dtype == jnp.float32
        close(grads[name], wanted)
    eager = jax.grad(jax.jit(loss))(arrays)
    jax.tree.map(lambda a, b: close(a, b, 1e-6), eager, grads)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["q", "k", "v", "bias", "sinks"])
def test_one_gradient_alone(name: str, backend: str) -> None:
    call = call_of("all")
    arrays, loss = arrays_of(call), loss_of(call, backend=backend)
    close(jax.jit(jax.grad(lambda x: loss({**arrays, name: x})))(arrays[name]), call.gradients[name])


@pytest.mark.parametrize("part", [0, 1])
def test_loss_through_one_result(part: int) -> None:
    call = call_of("causal")
    arrays = arrays_of(call)
    zero = [np.zeros_like(call.out), np.zeros_like(call.lse)]
    zero[part] = (call.dout, call.dlse)[part]
    wanted = tw.attention_backward(*call.arrays.values(), call.out, call.lse, *zero, causal=True, backend="composed")
    grads = jax.grad(lambda x: (run(call, x)[part] * jnp.asarray(zero[part], "float32")).sum())(arrays)
    for name in "qkv":
        close(grads[name], getattr(wanted, name))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_have_the_dtype_of_their_input(dtype: str) -> None:
    call = call_of("all")
    arrays = {**arrays_of(call, dtype), "bias": jnp.asarray(call.arrays["bias"], "float32")}
    grads = jax.grad(lambda x: run(call, x)[0].astype("float32").sum())(arrays)
    assert {name: g.dtype for name, g in grads.items()} == {name: x.dtype for name, x in arrays.items()}


@pytest.mark.parametrize("backend", BACKENDS)
def test_float64(backend: str) -> None:
    call = call_of("all")
    with jax.enable_x64(True):
        arrays = arrays_of(call, "float64")
        (out, lse), pull = jax.vjp(lambda x: run(call, x, backend=backend), arrays)
        assert (out.dtype, lse.dtype) == (jnp.float64, jnp.float64)
        close(out, call.out, 1e-13)
        for name, wanted in call.gradients.items():
            close(pull((jnp.asarray(call.dout), jnp.asarray(call.dlse)))[0][name], wanted, 1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["causal", "bias", "sinks", "lens", "packed"])
def test_vmap(kind: str, backend: str) -> None:
    call = call_of(kind)
    arrays, loss = arrays_of(call), loss_of(call, backend=backend)
    many = {**arrays, "q": jnp.stack([arrays["q"], 2 * arrays["q"], -arrays["q"]], 1)}
    axes = ({name: 1 if name == "q" else None for name in arrays},)
    each = [{**arrays, "q": many["q"][:, i]} for i in range(3)]
    mapped = jax.vmap(lambda x: run(call, x, backend=backend), axes)(many)
    close(mapped[0][0], call.out)
    grads = jax.jit(jax.vmap(jax.grad(loss), axes))(many)
    of_sum = jax.grad(lambda x: jax.vmap(loss, axes)(x).sum())(many)
    singles = [jax.grad(loss)(x) for x in each]
    for name in arrays:
        stacked = np.stack([s[name] for s in singles])
        close(grads[name], stacked, 1e-5)
        close(of_sum[name], stacked.swapaxes(0, 1) if name == "q" and kind != "packed" else
              np.stack(stacked, 1) if name == "q" else stacked.sum(0), 1e-5)  # fmt: skip


def test_vmap_of_vmap_and_of_sinks() -> None:
    q, k, v = qkv()
    twice = jax.vmap(jax.vmap(lambda q: tw.attention(q, k, v)))(jnp.stack([jnp.stack([q, -q])] * 2))
    close(twice[1, 0], tw.attention(q, k, v), 1e-6)
    sinks = jnp.asarray(np.random.default_rng(0).standard_normal((3, 4)), "float32")
    mapped = jax.vmap(lambda s: tw.attention(q, k, v, sinks=s))(sinks)
    close(mapped[2], tw.attention(q, k, v, sinks=sinks[2]), 1e-6)


def test_remat_and_scan_over_layers() -> None:
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((2, 5, 2, 8)), "float32")
    weights = jnp.asarray(rng.standard_normal((3, 8, 8)) / 4, "float32")

    def layer(x: Any, w: Any) -> Any:
        h = x @ w
        return x + tw.attention(h, h, h, causal=True)

    def unrolled(weights: Any) -> Any:
        y = x
        for w in weights:
            y = layer(y, w)
        return (y * y).sum()

    def scanned(weights: Any) -> Any:
        y = jax.lax.scan(lambda x, w: (jax.checkpoint(layer)(x, w), None), x, weights)[0]
        return (y * y).sum()

    wanted = jax.grad(unrolled)(weights)
    close(jax.jit(jax.grad(scanned))(weights), wanted, 1e-4 * float(abs(wanted).max()))


def test_no_callback_to_the_host() -> None:
    if tw.backends()["cpu"] is not None:
        pytest.skip(f"cpu: {tw.backends()['cpu']}")
    text = jax.jit(jax.grad(lambda q: tw.attention(q, q, q).sum())).lower(qkv()[0][:, :, :2]).as_text()
    assert "tilewise_forward" in text
    assert "tilewise_backward" in text
    assert "callback" not in text


def test_export() -> None:
    q, k, v = qkv()
    export = require("jax.export")
    if tw.explain(q, k, v).chosen != "cpu":
        pytest.skip("only custom calls need an allowance")
    function = jax.jit(lambda q, k, v: tw.attention(q, k, v))
    with pytest.raises(ValueError, match="tilewise_forward"):
        export.export(function)(q, k, v)
    allowed = [export.DisabledSafetyCheck.custom_call("tilewise_forward")]
    close(export.export(function, disabled_checks=allowed)(q, k, v).call(q, k, v), tw.attention(q, k, v), 0)


def test_refused_in_words() -> None:
    q, k, v = qkv()

    def loss(q: Any) -> Any:
        return (tw.attention(q, k, v) ** 2).sum()

    with pytest.raises(tw.Unsupported, match="first derivatives only"):
        jax.grad(lambda q: jax.grad(loss)(q).sum())(q)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(loss, (q,), (q,))
    with pytest.raises(tw.InvalidInput, match=r"k must be a jax.Array"):
        tw.attention(q, [1.0], v)
    step = paged_step("float32", combined=True)
    with pytest.raises(tw.Unsupported, match="for serving and has no gradient"):
        jax.grad(lambda q: tw.ragged_paged_attention(q, jnp.asarray(step.kv_pages), **step.batch).sum())(
            jnp.asarray(step.q)
        )


@pytest.mark.skipif(tw.backends()["cpu"] is not None, reason=str(tw.backends()["cpu"]))
def test_values_out_of_range_are_an_error_and_never_read() -> None:
    q, k, v = qkv()
    for lens in (np.array([3, 8]), np.array([3, 2**32]), np.array([-1, 3])):
        with pytest.raises(Exception, match="a kv length is out of range"):
            tw.attention(q, k, v, kv_lens=lens, backend="cpu").block_until_ready()
    step = paged_step("float32", combined=True)
    batch = {**step.batch, "page_indices": step.batch["page_indices"] + 100}
    with pytest.raises(Exception, match="a page id is out of range"):
        tw.ragged_paged_attention(jnp.asarray(step.q), jnp.asarray(step.kv_pages), **batch).block_until_ready()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("combined", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float8_e4m3fn", "float8_e5m2"])
def test_pages(backend: str, combined: bool, dtype: str) -> None:
    step = paged_step(dtype, combined)

    def serve(q: Any, k: Any, v: Any, pages: Any, batch: Any) -> Any:
        pages = tw.append_to_pages(pages, k, v, **batch, **step.scales, backend=backend)
        out = tw.ragged_paged_attention(
            q, pages, **batch, **step.scales, window=(3, 0), return_lse=True, backend=backend
        )
        return pages, out

    new, pages = [jnp.asarray(x) for x in step[:3]], map_pages(jnp.asarray, step.kv_pages)
    batch = {name: jnp.asarray(x) for name, x in step.batch.items()}
    eager, jitted = serve(*new, pages, batch), jax.jit(serve)(*new, pages, batch)
    wanted = tw.append_to_pages(step.kv_pages, step.k, step.v, **step.batch, **step.scales, backend="composed")
    out = tw.ragged_paged_attention(
        step.q, wanted, **step.batch, **step.scales, window=(3, 0), return_lse=True, backend="composed"
    )
    for got in (eager, jitted):
        jax.tree.map(lambda a, b: close(a, b, 0), got[0], wanted)
        jax.tree.map(lambda a, b: close(a, b, 2e-5), tuple(got[1]), tuple(out))


@pytest.mark.skipif(tw.backends()["cpu"] is not None, reason=str(tw.backends()["cpu"]))
def test_donated_pages_are_written_in_place() -> None:
    step = paged_step("float32", combined=True)
    write = jax.jit(lambda pages, k, v: tw.append_to_pages(pages, k, v, **step.batch), donate_argnums=0)
    pages = jnp.array(step.kv_pages)
    kept, at = jnp.array(step.kv_pages), pages.unsafe_buffer_pointer()
    written = write(pages, jnp.asarray(step.k), jnp.asarray(step.v))
    assert written.unsafe_buffer_pointer() == at
    again = tw.append_to_pages(kept, jnp.asarray(step.k), jnp.asarray(step.v), **step.batch)
    close(again, written, 0)
    close(kept, step.kv_pages, 0)  # what was not donated is as it was


def test_merge() -> None:
    q, k, v = qkv()
    parts = [tw.attention(q, k[:, a], v[:, a], return_lse=True) for a in (slice(0, 3), slice(3, 7), slice(0, 0))]
    whole = tw.attention(q, k, v, return_lse=True)
    for merged in (tw.merge(parts), jax.jit(tw.merge)(parts)):
        jax.tree.map(lambda a, b: close(a, b, 2e-6), tuple(merged), tuple(whole))
    grad = jax.grad(lambda k: tw.merge(
        [tw.attention(q, k[:, a], v[:, a], return_lse=True) for a in (slice(0, 3), slice(3, 7))])[0].sum())(k)
    close(grad, jax.grad(lambda k: tw.attention(q, k, v).sum())(k))
