"""PyTorch's compilers and transformations: torch.compile without a graph break, fake and meta tensors, torch.func."""

from __future__ import annotations

from typing import Any

import pytest

import tilewise as tw
from tests.conftest import require, run_python
from tests.frameworks.calls import BACKENDS, KINDS, call_of, paged_step
from tests.frameworks.test_torch import close, in_tensors, run, tensor, tensors

torch = require("torch")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore:.*torch.jit.script")


def compiled(function: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_compile_forward_and_backward(kind: str, backend: str) -> None:
    call = in_tensors(call_of(kind))
    arrays = tensors(call, torch.float64)

    @compiled
    def model(arrays: dict[str, Any]) -> Any:
        out, lse = run(call, {name: x * 1 for name, x in arrays.items()}, backend=backend)
        return (out * call.dout).sum() + torch.where(lse.isfinite(), lse * call.dlse, 0).sum()

    model(arrays).backward()
    for name, x in arrays.items():
        close(x.grad, call.gradients[name], 1e-12)


def test_compile_with_inductor() -> None:
    torch._dynamo.reset()
    q, k, v = tensors(call_of("causal"), torch.float32).values()
    model = torch.compile(lambda q, k, v: tw.attention(q * 2, k, v, causal=True).sin(), fullgraph=True)
    grads = torch.autograd.grad(model(q, k, v).sum(), (q, k, v))
    wanted = torch.autograd.grad(tw.attention(q * 2, k, v, causal=True).sin().sum(), (q, k, v))
    torch.testing.assert_close(grads, wanted)


def test_compile_is_the_first_thing_that_happens() -> None:
    """tilewise before torch, and no eager call that would have introduced them."""
    code = (
        "import tilewise as tw, torch\n"
        "f = torch.compile(lambda q: tw.attention(q, q, q, causal=True), fullgraph=True, backend='aot_eager')\n"
        "q = torch.randn(1, 3, 2, 4)\n"
        "torch.testing.assert_close(f(q), tw.attention(q, q, q, causal=True))"
    )
    run_python(code)


def test_compile_other_sizes() -> None:
    model = compiled(lambda q, k, v: tw.attention(q, k, v))
    for size in (3, 5, 9):
        q, k = torch.randn(2, size, 4, 8), torch.randn(2, size + 2, 2, 8)
        torch.testing.assert_close(model(q, k, k), tw.attention(q, k, k))


@pytest.mark.parametrize("backend", BACKENDS)
def test_compile_serving(backend: str) -> None:
    step = paged_step("bfloat16", combined=True)
    batch = {name: tensor(x) for name, x in step.batch.items()}

    def serve(q: Any, k: Any, v: Any, pages: Any) -> Any:
        pages = tw.append_to_pages(pages, k, v, **batch, backend=backend)
        return tw.ragged_paged_attention(q, pages, **batch, backend=backend)

    new = [tensor(x) for x in (step.q, step.k, step.v)]
    pages, other = tensor(step.kv_pages), tensor(step.kv_pages)
    torch.testing.assert_close(compiled(serve)(*new, pages), serve(*new, other))
    assert torch.equal(pages, other)


def test_compile_merge() -> None:
    q, k, v = tensors(call_of("causal"), torch.float64, ()).values()
    parts = [tw.attention(q, k[:, a], v[:, a], return_lse=True) for a in (slice(0, 3), slice(3, 7))]
    torch.testing.assert_close(compiled(tw.merge)(parts), tw.merge(parts))


def test_export() -> None:
    class Model(torch.nn.Module):
        def forward(self, q: Any, k: Any) -> Any:
            return tw.attention(q, k, k, causal=True)

    q, k = torch.randn(2, 5, 4, 8), torch.randn(2, 7, 2, 8)
    program = torch.export.export(Model(), (q, k))
    torch.testing.assert_close(program.module()(q, k), Model()(q, k))


def test_operators_keep_their_promises() -> None:
    from tilewise.choose.plan import to_text
    from tilewise.frameworks.torch_adapter import adapter
    from tilewise.spec.problem import Operands

    seen = []
    adapter_run, adapter.run = adapter.run, lambda plan, operands, need_lse=True: seen.append(plan) or (None, None)
    try:
        arrays = tensors(call_of("all"), torch.float32)
        others = {name: tensor(x) for name, x in call_of("all").others.items()}
        tw.attention(**arrays, **others, causal=True, softcap=2.0)
    finally:
        adapter.run = adapter_run
    operands = Operands(**arrays, **others)
    torch.library.opcheck(
        torch.ops.tilewise.attention, (*operands, to_text(seen[0])),
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_static"),
    )  # fmt: skip


def test_meta_and_fake() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = torch.empty(2, 3, 4, 8, device="meta", dtype=torch.bfloat16, requires_grad=True)
    out, lse = tw.attention(x, x, x, return_lse=True)
    assert (out.device.type, out.dtype, out.shape, lse.shape) == ("meta", x.dtype, x.shape, (2, 4, 3))
    out.sum().backward()
    assert x.grad.shape == x.shape
    with FakeTensorMode():
        x = torch.empty(2, 3, 4, 8)
        assert tw.attention(x, x, x).shape == x.shape
    with torch.device("meta"):  # where new tensors go is not where results go
        x = torch.ones(1, 2, 1, 4, device="cpu")
        assert tw.attention(x, x, x, return_lse=True)[1].device.type == "cpu"


KINDS_OF_VMAP = ("causal", "bias", "sinks", "lens", "packed")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS_OF_VMAP)
def test_vmap_and_grad(kind: str, backend: str) -> None:
    call = call_of(kind)
    arrays = tensors(call, torch.float64, ())
    names = tuple(arrays)
    many = torch.stack([arrays["q"], 2 * arrays["q"], -arrays["q"]], 1)
    rest = [arrays[name] for name in names[1:]]
    axes = (1, *[None] * len(rest))

    def both(*xs: Any) -> Any:
        return run(call, dict(zip(names, xs, strict=True)), backend=backend)

    def loss(*xs: Any) -> Any:
        out, lse = both(*xs)
        return (out * tensor(call.dout)).sum() + torch.where(lse.isfinite(), lse * tensor(call.dlse), 0).sum()

    close(torch.func.vmap(both, axes)(many, *rest)[0][0], call.out, 1e-12)
    everything = tuple(range(len(names)))
    for name, grad in zip(names, torch.func.grad(loss, everything)(many[:, 0], *rest), strict=True):
        close(grad, call.gradients[name], 1e-12)
    each = torch.func.vmap(torch.func.grad(loss, everything), axes)(many, *rest)
    of_sum = torch.func.grad(lambda *xs: torch.func.vmap(loss, axes)(*xs).sum(), everything)(many, *rest)
    singles = [torch.func.grad(loss, everything)(many[:, i], *rest) for i in range(3)]
    for at, (mine, total) in enumerate(zip(each, of_sum, strict=True)):
        torch.testing.assert_close(mine, torch.stack([s[at] for s in singles]))
        torch.testing.assert_close(total, torch.stack([s[at] for s in singles], 1) if at == 0 else mine.sum(0))


def test_vmap_over_sinks_and_masks() -> None:
    q, k, v = tensors(call_of("causal"), torch.float64, ()).values()
    sinks, masks = torch.randn(3, 4, dtype=torch.float64), torch.rand(3, 1, 1, 5, 7) > 0.3
    for name, xs in (("sinks", sinks), ("mask", masks)):
        mapped = torch.func.vmap(lambda x, name=name: tw.attention(q, k, v, **{name: x}))(xs)
        torch.testing.assert_close(mapped, torch.stack([tw.attention(q, k, v, **{name: x}) for x in xs]))


def test_functional_refusals() -> None:
    q, k, v = tensors(call_of("causal"), torch.float32, ()).values()

    def loss(q: Any) -> Any:
        return tw.attention(q, k, v).pow(2).sum()

    with pytest.raises(tw.Unsupported, match="no forward-mode derivative"):
        torch.func.jvp(loss, (q,), (q,))
    with pytest.raises(tw.Unsupported, match="forward-mode"):
        torch.func.hessian(loss)(q)
    with pytest.raises(tw.Unsupported, match="first derivatives only"):
        torch.func.grad(lambda q: torch.func.grad(loss)(q).sum())(q)
