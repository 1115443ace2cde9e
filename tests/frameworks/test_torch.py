"""PyTorch: gradients, dtypes, layouts, autocast, refusals. compile and torch.func: test_torch_compile.py."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import tilewise as tw
from tests.conftest import require
from tests.frameworks.calls import BACKENDS, KINDS, Call, call_of, map_pages, paged_step

torch = require("torch")


def tensor(x: Any, dtype: Any = None) -> Any:
    """A tensor of an array (8-bit floats and bfloat16 by their bits)."""
    name = getattr(getattr(x, "dtype", None), "name", "")
    if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        bits = torch.from_numpy(x.view(np.int16 if name == "bfloat16" else np.uint8).copy())
        return bits.view(getattr(torch, name))
    return torch.tensor(x, dtype=dtype) if isinstance(x, np.ndarray) else x


def tensors(call: Call, dtype: Any, wanted: tuple[str, ...] | None = None) -> dict[str, Any]:
    wanted = tuple(call.arrays) if wanted is None else wanted
    return {name: tensor(x, dtype).requires_grad_(name in wanted) for name, x in call.arrays.items()}


def run(call: Call, arrays: dict[str, Any], **more: Any) -> Any:
    function: Any = tw.attention_packed if "q_starts" in call.others else tw.attention
    others = {name: tensor(x) for name, x in call.others.items()}
    return function(**arrays, **others, **call.options, return_lse=True, **more)


def in_tensors(call: Call) -> Call:
    """The call with everything but its differentiable arrays as tensors already."""
    return call._replace(
        others={name: tensor(x) for name, x in call.others.items()}, dout=tensor(call.dout), dlse=tensor(call.dlse)
    )


def close(x: Any, wanted: Any, atol: float = 5e-6) -> None:
    np.testing.assert_allclose(x.detach().to(torch.float64).numpy(), wanted, atol=atol)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_against_float64(kind: str, backend: str, dtype: Any) -> None:
    call = call_of(kind)
    arrays = tensors(call, dtype)
    out, lse = run(call, arrays, backend=backend)
    atol = 5e-6 if dtype == torch.float32 else 1e-13
    close(out, call.out, atol)
    close(lse, call.lse, atol)
    loss = (out * tensor(call.dout, dtype)).sum() + torch.where(lse.isfinite(), lse * tensor(call.dlse, dtype), 0).sum()
    loss.backward()
    for name, x in arrays.items():
        assert x.grad.dtype == dtype
        close(x.grad, call.gradients[name], atol)
    with torch.no_grad():
        assert torch.equal(run(call, arrays, backend=backend)[0], out)
    with torch.inference_mode():
        assert torch.equal(run(call, {name: x.clone() for name, x in arrays.items()}, backend=backend)[0], out)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("want", [w for w in product((False, True), repeat=5) if any(w)])
def test_any_subset_of_gradients(backend: str, want: tuple[bool, ...]) -> None:
    call = call_of("all")
    wanted = tuple(name for name, w in zip(call.arrays, want, strict=True) if w)
    arrays = tensors(call, torch.float64, wanted)
    out, lse = run(call, arrays, backend=backend)
    torch.autograd.backward([out, lse], [tensor(call.dout), tensor(call.dlse)])
    for name, x in arrays.items():
        if name in wanted:
            close(x.grad, call.gradients[name], 1e-13)
        else:
            assert x.grad is None


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_have_the_dtype_of_their_input(backend: str, dtype: Any) -> None:
    call = call_of("all")
    arrays = tensors(call, dtype)
    arrays["bias"] = tensor(call.arrays["bias"], torch.float32).requires_grad_()
    out, lse = run(call, arrays, backend=backend)
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    out.float().pow(2).sum().backward()
    assert all(x.grad.dtype == x.dtype and x.grad.shape == x.shape for x in arrays.values())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("part", ["out", "lse", "expanded", "transposed"])
def test_loss_through_either_result(backend: str, part: str) -> None:
    call = call_of("causal")
    arrays = tensors(call, torch.float64)
    out, lse = run(call, arrays, backend=backend)
    zero = np.zeros_like
    dout, dlse = {
        "out": (call.dout, zero(call.lse)), "lse": (zero(call.out), call.dlse),
        "expanded": (np.ones_like(call.out), zero(call.lse)), "transposed": (call.dout, zero(call.lse)),
    }[part]  # fmt: skip
    if part == "out":
        out.backward(tensor(dout))
    elif part == "lse":
        lse.backward(tensor(dlse))
    elif part == "expanded":
        out.sum().backward()
    else:
        out.transpose(1, 3).contiguous().backward(tensor(dout).transpose(1, 3).contiguous())
    numpy = tuple(call.arrays.values())
    wanted = tw.attention_backward(*numpy, call.out, call.lse, dout, dlse, causal=True, backend="composed")
    for x, grad in zip(arrays.values(), wanted[:3], strict=True):
        close(x.grad, grad, 1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
def test_layouts_and_strides(backend: str) -> None:
    call = call_of("causal")
    q, k, v = tensors(call, torch.float64, ()).values()
    views = [x.transpose(1, 2) for x in (q, k, v)]
    close(tw.attention(*views, causal=True, layout="bhtd", backend=backend).transpose(1, 2), call.out, 1e-13)
    spread = [torch.stack([x, x.new_full(x.shape, torch.nan)], -1)[..., 0] for x in (q, k, v)]
    for _ in range(2):  # the second call is the prepared one
        close(tw.attention(*spread, causal=True, backend=backend), call.out, 1e-13)
        close(tw.attention(q, k, v, causal=True, backend=backend), call.out, 1e-13)
    one = q[:, :1].expand_as(q)
    assert torch.equal(tw.attention(one, k, v, backend=backend), tw.attention(one.clone(), k, v, backend=backend))
    negative = torch.complex(q, q).conj().imag  # a tensor that is negated when it is read
    assert torch.equal(tw.attention(negative, k, v, backend=backend), tw.attention(-q, k, v, backend=backend))


def test_lse_is_not_lost_when_out_was_asked_for_first() -> None:
    q, k, v = tensors(call_of("causal"), torch.float32, ()).values()
    for _ in range(2):
        assert tw.attention(q, k, v).shape == (2, 5, 4, 6)
        assert tw.attention(q, k, v, return_lse=True)[1].isfinite().all()


def test_autocast_casts_as_sdpa_does() -> None:
    q, k, v = tensors(call_of("causal"), torch.float32).values()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = tw.attention(q, k.half(), v)
        assert out.dtype == torch.bfloat16
    with torch.autocast("cpu", enabled=False):
        assert tw.attention(q, k, v).dtype == torch.float32
    out.float().sum().backward()
    assert q.grad.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert tw.attention(*(x.detach().double() for x in (q, k, v))).dtype == torch.float64


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, at its first dual level
def test_refused_in_words() -> None:
    q, k, v = tensors(call_of("causal"), torch.float32).values()
    with pytest.raises(tw.Unsupported, match="first derivatives only"):
        torch.autograd.grad(tw.attention(q, k, v).pow(2).sum(), q, create_graph=True)[0].sum().backward()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q.detach(), q.detach())
        with pytest.raises(tw.Unsupported, match="no forward-mode derivative"):
            tw.attention(dual, k, v)
    with pytest.raises(tw.InvalidInput, match="dense"):
        tw.attention(q.detach().to_sparse(), k, v)
    with pytest.raises(tw.InvalidInput, match=r"k must be a torch.Tensor"):
        tw.attention(q, k.detach().numpy(), v)
    step = paged_step("float32", combined=True)
    batch = {name: tensor(x) for name, x in step.batch.items()}
    with pytest.raises(tw.InvalidInput, match="no gradient"):
        tw.ragged_paged_attention(tensor(step.q).requires_grad_(), tensor(step.kv_pages), **batch)
    with pytest.raises(tw.InvalidInput, match="kv_lens"):
        tw.attention(q, k, v, kv_lens=torch.tensor([3, 8]))


def test_in_place_change_is_noticed() -> None:
    leaf = torch.randn(2, 3, 4, 8, requires_grad=True)
    x = leaf * 1
    out = tw.attention(x, x, x)
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_parameters_and_subclasses() -> None:
    class Mine(torch.Tensor):
        pass

    x = torch.nn.Parameter(torch.randn(1, 3, 2, 4))
    tw.attention(x, x, x).sum().backward()
    assert x.grad.shape == x.shape
    mine = x.detach().as_subclass(Mine)
    torch.testing.assert_close(tw.attention(mine, mine, mine).as_subclass(torch.Tensor), tw.attention(x, x, x).detach())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("combined", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float8_e4m3fn", "float8_e5m2"])
def test_pages(backend: str, combined: bool, dtype: str) -> None:
    step = paged_step(dtype, combined)
    batch = {name: tensor(x) for name, x in step.batch.items()}
    scales = {name: tensor(x) for name, x in step.scales.items()}
    pages = map_pages(tensor, step.kv_pages)
    written = tw.append_to_pages(pages, tensor(step.k), tensor(step.v), **batch, **scales, backend=backend)
    expected = tw.append_to_pages(step.kv_pages, step.k, step.v, **step.batch, **step.scales, backend="composed")
    for mine, given, wanted in zip(*(x if isinstance(x, tuple) else (x,) for x in (written, pages, expected))):
        assert mine is given
        close(mine, wanted.astype(np.float64), 0)
    out, lse = tw.ragged_paged_attention(
        tensor(step.q), pages, **batch, **scales, window=(3, 0), return_lse=True, backend=backend
    )
    numpy = tw.ragged_paged_attention(
        step.q, step.kv_pages, **step.batch, **step.scales, window=(3, 0), return_lse=True, backend="composed"
    )
    close(out, numpy[0], 2e-5)
    close(lse, numpy[1], 2e-5)


def test_merge() -> None:
    q, k, v = tensors(call_of("causal"), torch.float64).values()
    parts = [tw.attention(q, k[:, a], v[:, a], return_lse=True) for a in (slice(0, 3), slice(3, 7), slice(0, 0))]
    out, lse = tw.merge(parts)
    whole = tw.attention(q, k, v, return_lse=True)
    torch.testing.assert_close((out, lse), whole)
    grads = [torch.autograd.grad((o * o).sum() + e.sum(), (q, k, v)) for o, e in ((out, lse), whole)]
    torch.testing.assert_close(*grads)
    with torch.no_grad():
        torch.testing.assert_close(tw.merge([(o.detach(), e.detach()) for o, e in parts]), whole)
