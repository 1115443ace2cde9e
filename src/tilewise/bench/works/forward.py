"""Forward, dense, against torch SDPA: the shapes that papers quote."""

from __future__ import annotations

from tilewise.bench import machine
from tilewise.bench.goals import goal
from tilewise.bench.rivals import torch_sdpa
from tilewise.bench.row import OURS, Row
from tilewise.bench.settings import Settings
from tilewise.bench.works import inputs
from tilewise.bench.works.inputs import Square
from tilewise.testing.timing import interleave

TITLE = "Forward, B 1, H 8"


def cases(settings: Settings) -> list[Square]:
    lengths = (512, 2048) if settings.quick else (512, 1024, 2048, 4096)
    return [
        Square(dtype, width, length, causal)
        for dtype in settings.chosen("float32", "bfloat16", "float16")
        for width in (64, 128)
        for length in lengths
        for causal in (False, True)
    ]


def measure(case: Square, settings: Settings) -> Row:
    import tilewise as tw

    inputs.use_threads(settings.threads)
    here, (dtype, width, length, causal) = machine.kind(), case
    q, k, v = inputs.qkv(dtype, length=length, width=width)

    def ours():  # type: ignore[no-untyped-def]
        return tw.attention(q, k, v, causal=causal, layout="bhtd", backend=settings.backend)

    def rival():  # type: ignore[no-untyped-def]
        return torch_sdpa.forward(q, k, v, causal)

    difference = inputs.difference(ours(), rival())
    peak = machine.Ceilings(settings.threads).flops(dtype)
    timings = interleave({OURS: ours, torch_sdpa.NAME: rival}, **settings.timing)
    kind = "causal" if causal else "full"
    row = Row.of(
        "forward", f"D {width}, N {length}, {kind}", dtype, settings.threads, timings, difference=difference,
        flops=inputs.dense_flops("forward", length=length, width=width, causal=causal), peak_flops=peak,
        bytes=4.0 * q.numel() * q.element_size(),
    )  # fmt: skip
    row.add(f"x {torch_sdpa.NAME}", timings.ratio(torch_sdpa.NAME, OURS), goal(f"forward {dtype} {kind}", here))
    ceiling = None
    if dtype == "float32" and causal and length == 512:
        ceiling = goal("forward float32 causal 512 peak", here)
    elif width == 128 and length >= 1024:
        ceiling = goal(f"forward {dtype} peak", here)
    row.add_ceiling(ceiling)
    return row
