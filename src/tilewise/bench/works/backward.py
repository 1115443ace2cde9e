"""Backward (dQ, dK, dV) through autograd, against torch SDPA's."""

from __future__ import annotations

from typing import Any

from tilewise.bench import machine
from tilewise.bench.goals import goal
from tilewise.bench.rivals import torch_sdpa
from tilewise.bench.row import OURS, Row
from tilewise.bench.settings import Settings
from tilewise.bench.works import inputs
from tilewise.bench.works.inputs import Square
from tilewise.testing.timing import interleave

TITLE = "Backward, B 1, H 8"


def cases(settings: Settings) -> list[Square]:
    return [
        Square(dtype, width, length, causal)
        for dtype in settings.chosen("float32", "bfloat16")
        for width in (64, 128)
        for length in ((1024,) if settings.quick else (512, 1024, 2048))
        for causal in (False, True)
    ]


def measure(case: Square, settings: Settings) -> Row:
    import torch

    import tilewise as tw

    inputs.use_threads(settings.threads)
    dtype, width, length, causal = case
    q, k, v, dout = inputs.qkv(dtype, length=length, width=width, count=4)
    qkv = [x.requires_grad_() for x in (q, k, v)]
    out = tw.attention(q, k, v, causal=causal, layout="bhtd", backend=settings.backend)
    rival_out = torch_sdpa.forward(q, k, v, causal)

    def ours() -> Any:
        return torch.autograd.grad(out, qkv, dout, retain_graph=True)

    def rival() -> Any:
        return torch.autograd.grad(rival_out, qkv, dout, retain_graph=True)

    difference = max(inputs.difference(a, b) for a, b in zip(ours(), rival(), strict=True))
    peak = machine.Ceilings(settings.threads).flops(dtype)
    timings = interleave({OURS: ours, torch_sdpa.NAME: rival}, **settings.timing)
    kind = "causal" if causal else "full"
    row = Row.of(
        "backward", f"D {width}, N {length}, {kind}", dtype, settings.threads, timings, difference=difference,
        flops=inputs.dense_flops("backward", length=length, width=width, causal=causal), peak_flops=peak,
        bytes=8.0 * dout.numel() * dout.element_size(),
    )  # fmt: skip
    row.add(f"x {torch_sdpa.NAME}", timings.ratio(torch_sdpa.NAME, OURS), goal(f"backward {dtype}", machine.kind()))
    row.add_ceiling()
    return row
