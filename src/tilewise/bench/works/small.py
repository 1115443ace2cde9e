"""One token: what a call costs before any arithmetic matters."""

from __future__ import annotations

from typing import Any, NamedTuple

from tilewise.bench import machine
from tilewise.bench.goals import goal
from tilewise.bench.rivals import torch_sdpa
from tilewise.bench.row import OURS, Row
from tilewise.bench.settings import Settings
from tilewise.bench.works import inputs
from tilewise.choose.plan import make_plan
from tilewise.spec import validate
from tilewise.spec.problem import ArrayInfo
from tilewise.testing.timing import interleave

TITLE = "One token, 8 heads, 128 keys"
KERNEL = "the native call alone"


class Case(NamedTuple):
    dtype: str
    width: int


def cases(settings: Settings) -> list[Case]:
    return [Case(dtype, width) for dtype in settings.chosen("float32", "bfloat16") for width in (64, 128)]


def measure(case: Case, settings: Settings) -> Row:
    import torch

    import tilewise as tw

    inputs.use_threads(settings.threads)
    dtype, width = case
    q, k, v = inputs.qkv(dtype, length=128, width=width)
    q = q[:, :, :1].contiguous()

    def ours() -> Any:
        return tw.attention(q, k, v, layout="bhtd", backend=settings.backend)

    def rival() -> Any:
        return torch_sdpa.forward(q, k, v, False)

    calls: dict[str, Any] = {OURS: ours, torch_sdpa.NAME: rival}
    out = torch.empty_like(q)
    lse = torch.empty((1, 8, 1))
    if machine.level() != "absent":
        calls[KERNEL] = native_call(q, k, v, out, lse, dtype)
    difference = inputs.difference(ours(), rival())
    timings = interleave(calls, **settings.timing)
    row = Row.of("small", f"D {width}", dtype, settings.threads, timings, difference=difference)
    row.add(f"x the time of {torch_sdpa.NAME}", 1 / timings.ratio(torch_sdpa.NAME, OURS),
            goal("small time", machine.kind()))  # fmt: skip
    if KERNEL in calls:
        planning = 1e6 * (timings.median(OURS) - timings.median(KERNEL))
        row.add("us of planning and wrapping", planning, goal("small planning", machine.kind()))
    return row


def native_call(q: Any, k: Any, v: Any, out: Any, lse: Any, dtype: str) -> Any:
    """The compiled function with its arguments bound: what is left when planning and wrapping are free."""
    from tilewise.backends.cpu.launch import dense_call

    given = {name: ArrayInfo(tuple(x.shape), dtype, "cpu") for name, x in (("q", q), ("k", k), ("v", v))}
    spec, problem = validate.attention(
        given, framework="torch", needs_grad=False, causal=False, window=None, scale=None, softcap=None, layout="bhtd"
    )
    strides = [s for x in (q, k, v, out) for s in x.stride()[:3]] + list(lse.stride()) + [0] * 8 + [0, 1, 0, 1]
    call = dense_call(make_plan(spec, problem, "cpu"), tuple(strides), "float32")
    addresses = [x.data_ptr() for x in (q, k, v, out, lse)]
    return lambda: call.forward_plain(*addresses)
