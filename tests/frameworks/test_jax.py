"""JAX: jit, grad, vmap, remat, scan, donation, dtypes, refusals. Also test_jax_pages.py and test_jax_programs.py.

Plain array code costs a second a compilation, so few of its cases are here; the conformance suite has the rest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewise as tw
from tests.conftest import require
from tests.frameworks.calls import KINDS, Call, call_of, paged_step

jax = require("jax")
jnp = require("jax.numpy")

no_cpu = pytest.mark.skipif(tw.backends()["cpu"] is not None, reason=str(tw.backends()["cpu"]))


def on(cpu: tuple[str, ...], composed: tuple[str, ...]) -> pytest.MarkDecorator:
    """Parameters `kind` and `backend`."""
    rows = [pytest.param(kind, "cpu", marks=no_cpu) for kind in cpu] + [(kind, "composed") for kind in composed]
    return pytest.mark.parametrize(("kind", "backend"), rows)


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


def same(x: Any, wanted: Any) -> None:
    """Bit for bit, dtypes too."""
    x, wanted = np.asarray(x), np.asarray(wanted)
    assert (x.dtype, x.shape, x.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())


def qkv(kind: str = "causal") -> list[Any]:
    return list(arrays_of(call_of(kind)).values())[:3]


@on(KINDS, ("all",))
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


SUBSETS = ("q", "k", "v", "bias", "sinks", "q bias", "k v", "k sinks", "q k v", "v bias sinks")


@on(SUBSETS, ("bias",))
def test_any_subset_of_gradients(kind: str, backend: str) -> None:
    call = call_of("all")
    arrays, loss = arrays_of(call), loss_of(call, backend=backend)
    part = {name: arrays[name] for name in kind.split()}
    grads = jax.grad(lambda x: loss({**arrays, **x}))(part)
    for name in part:
        close(grads[name], call.gradients[name])


def test_another_subset_in_between() -> None:
    """JAX remembers traces of the forward rule, one a subset: none may answer for another."""
    q, k, v = qkv()

    def loss(*x: Any) -> Any:
        return (tw.attention(*x, causal=True) ** 2).sum()

    first = jax.grad(loss, (0, 1, 2))(q, k, v)
    for subset in ((1,), (0, 2), (0, 1, 2), (2,), (1,)):
        for n, mine in zip(subset, jax.grad(loss, subset)(q, k, v), strict=True):
            same(mine, first[n])
            assert abs(mine).max() > 0


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


@no_cpu
@pytest.mark.parametrize("kind", ["all", "packed"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_kernels_give_the_bits_that_they_give_numpy(dtype: str, kind: str) -> None:
    call = call_of(kind)
    arrays = arrays_of(call, dtype)
    if kind == "all":
        arrays["bias"] = jnp.asarray(call.arrays["bias"], "float32")
    (out, lse), pull = jax.vjp(jax.jit(lambda x: run(call, x, backend="cpu")), arrays)
    dout, dlse = jnp.asarray(call.dout, dtype), jnp.asarray(call.dlse, "float32")
    grads = pull((dout, dlse))[0]
    numpy = {name: np.asarray(x) for name, x in arrays.items()}
    for mine, theirs in zip((out, lse), run(call, numpy, backend="cpu"), strict=True):
        same(mine, theirs)
    backward: Any = tw.attention_packed_backward if kind == "packed" else tw.attention_backward
    results = {"out": out, "lse": lse, "dout": dout, "dlse": dlse}
    wanted = backward(**numpy, **call.others, **{name: np.asarray(x) for name, x in results.items()}, **call.options,
                      backend="cpu")  # fmt: skip
    for name, x in arrays.items():
        assert grads[name].dtype == x.dtype
        same(grads[name], getattr(wanted, name))


@on(("all",), ())
def test_float64(kind: str, backend: str) -> None:
    call = call_of(kind)
    with jax.enable_x64(True):
        arrays = arrays_of(call, "float64")
        (out, lse), pull = jax.vjp(lambda x: run(call, x, backend=backend), arrays)
        assert (out.dtype, lse.dtype) == (jnp.float64, jnp.float64)
        close(out, call.out, 1e-13)
        for name, wanted in call.gradients.items():
            close(pull((jnp.asarray(call.dout), jnp.asarray(call.dlse)))[0][name], wanted, 1e-13)


@on(("all", "packed"), ())
def test_x64_mode_widens_nothing(kind: str, backend: str) -> None:
    call = call_of(kind)
    narrow = run(call, arrays_of(call), backend=backend)
    with jax.enable_x64(True):
        wide = call._replace(others={name: jnp.asarray(x, "int64") for name, x in call.others.items()})
        results = jax.jit(lambda x: run(wide, x, backend=backend))(arrays_of(call))
        grads = jax.grad(lambda x: run(wide, x, backend=backend)[0].sum())(arrays_of(call))
        assert {x.dtype for x in (*results, *grads.values())} == {jnp.dtype("float32")}
        for mine, theirs in zip(results, narrow, strict=True):
            same(mine, theirs)


@on(("causal", "bias", "sinks", "lens", "packed"), ())
def test_vmap(kind: str, backend: str) -> None:
    call = call_of(kind)
    arrays, loss = arrays_of(call), loss_of(call, backend=backend)
    many = {**arrays, "q": jnp.stack([arrays["q"], 2 * arrays["q"], -arrays["q"]], 1)}
    axes = ({name: 1 if name == "q" else None for name in arrays},)
    mapped = jax.vmap(lambda x: run(call, x, backend=backend), axes)(many)
    close(mapped[0][0], call.out)
    grads = jax.jit(jax.vmap(jax.grad(loss), axes))(many)
    of_sum = jax.grad(lambda x: jax.vmap(loss, axes)(x).sum())(many)
    single = jax.jit(jax.grad(loss))
    singles = [single({**arrays, "q": many["q"][:, i]}) for i in range(3)]
    for name in arrays:
        stacked = np.stack([s[name] for s in singles])
        close(grads[name], stacked, 1e-5)
        close(of_sum[name], np.stack(stacked, 1) if name == "q" else stacked.sum(0), 1e-5)


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

    wanted = jax.jit(jax.grad(unrolled))(weights)
    close(jax.jit(jax.grad(scanned))(weights), wanted, 1e-4 * float(abs(wanted).max()))


def test_jit_of_grad_with_segments_and_window() -> None:
    call = call_of("segments")
    options = {"causal": True, "window": (2, 0)}
    numpy = {**call.arrays, **call.others}
    out, lse = tw.attention(**numpy, **options, return_lse=True, backend="composed")
    wanted = tw.attention_backward(**numpy, **options, out=out, lse=lse, dout=call.dout, backend="composed")
    dout = jnp.asarray(call.dout, "float32")

    @jax.jit
    def gradients(arrays: Any, ids: Any) -> Any:
        return jax.grad(lambda x: (tw.attention(**x, **ids, **options) * dout).sum())(arrays)

    ids = {name: jnp.asarray(x) for name, x in call.others.items()}
    assert not all(np.isfinite(lse).all(-1).ravel())  # some rows see nothing
    for name, grad in gradients(arrays_of(call), ids).items():
        close(grad, getattr(wanted, name))
    none = gradients(arrays_of(call), {name: jnp.full_like(x, -1) for name, x in ids.items()})
    assert all((x == 0).all() for x in none.values())


def test_masks_made_while_tracing() -> None:
    q, k, v = qkv()
    keys = jnp.arange(k.shape[1])

    def layer(_: Any, width: Any) -> Any:
        return None, tw.attention(q, k, v, mask=(keys < width)[None, None, None], kv_lens=jnp.stack([width + 1, width]))

    widths = jnp.array([1, 4, 6])
    for width, out in zip(widths, jax.jit(lambda: jax.lax.scan(layer, None, widths)[1])(), strict=True):
        same(out, layer(None, width)[1])


def test_numpy_arrays_among_jax_arrays() -> None:
    call = call_of("lens")
    q, k, v = qkv("lens")
    wanted = tw.attention(q, k, v, **{name: jnp.asarray(x) for name, x in call.others.items()})
    same(tw.attention(q, np.asarray(k), np.asarray(v), **call.others), wanted)
    same(jax.jit(lambda q: tw.attention(q, np.asarray(k), np.asarray(v), **call.others))(q), wanted)
    same(jax.jit(lambda q, k, v: tw.attention(q, k, v, **call.others))(*(np.asarray(x) for x in (q, k, v))), wanted)
    grad = jax.grad(lambda q: tw.attention(q, np.asarray(k), np.asarray(v), **call.others).sum())
    same(grad(np.asarray(q)), jax.grad(lambda q: tw.attention(q, k, v, **call.others).sum())(q))
    with pytest.raises(tw.InvalidInput, match="k must be a NumPy array"):
        tw.attention(np.asarray(q), k, v)


def test_donated_inputs() -> None:
    x = np.random.default_rng(0).standard_normal((2, 33, 2, 16)).astype("float32")
    wanted = tw.attention(*(jnp.asarray(x),) * 3, causal=True)
    call = jax.jit(lambda q, k, v: tw.attention(q, k, v, causal=True), donate_argnums=0)
    given = [jnp.array(x) for _ in range(3)]
    same(call(*given), wanted)
    assert given[0].is_deleted()

    def step(x: Any) -> Any:
        return x - jax.grad(lambda x: (tw.attention(x, x, x) ** 2).sum())(x)

    kept, donating = jax.jit(step), jax.jit(step, donate_argnums=0)
    a, b = jnp.array(x), jnp.array(x)
    for _ in range(3):
        a, b = kept(a), donating(b)
    same(b, a)


def test_refused_in_words() -> None:
    q, k, v = qkv()

    def loss(q: Any) -> Any:
        return (tw.attention(q, k, v) ** 2).sum()

    for gradient in (jax.grad(loss), jax.jit(jax.grad(loss))):
        with pytest.raises(tw.Unsupported, match="first derivatives only"):
            jax.grad(lambda q, of=gradient: of(q).sum())(q)
    with pytest.raises(tw.Unsupported, match="first derivatives only"):
        jax.hessian(loss)(q)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(loss, (q,), (q,))
    with pytest.raises(tw.InvalidInput, match=r"k must be a jax.Array"):
        tw.attention(q, [1.0], v)
    step = paged_step("float32", combined=True)
    for transform in (lambda f: f, jax.jit):
        attend = transform(lambda q: tw.ragged_paged_attention(q, jnp.asarray(step.kv_pages), **step.batch).sum())
        with pytest.raises(tw.Unsupported, match="for serving and has no gradient"):
            jax.grad(attend)(jnp.asarray(step.q))


@no_cpu
def test_values_out_of_range_are_an_error_and_never_read() -> None:
    q, k, v = qkv()
    for lens in (np.array([3, 8]), np.array([3, 2**32]), np.array([-1, 3])):
        with pytest.raises(Exception, match="a kv length is out of range"):
            tw.attention(q, k, v, kv_lens=lens, backend="cpu").block_until_ready()
    with jax.enable_x64(True), pytest.raises(Exception, match="a kv length is out of range"):
        tw.attention(q, k, v, kv_lens=jnp.asarray([3, 2**32]), backend="cpu").block_until_ready()
    step = paged_step("float32", combined=True)
    batch = {**step.batch, "page_indices": step.batch["page_indices"] + 100}
    with pytest.raises(Exception, match="a page id is out of range"):
        tw.ragged_paged_attention(jnp.asarray(step.q), jnp.asarray(step.kv_pages), **batch).block_until_ready()
