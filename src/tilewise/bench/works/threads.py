"""All CPUs over one, the same call in the same process, by the wall clock."""

from __future__ import annotations

from typing import Any, NamedTuple

from tilewise.bench import machine
from tilewise.bench.goals import goal
from tilewise.bench.row import OURS, Row
from tilewise.bench.settings import Settings
from tilewise.bench.works import inputs
from tilewise.testing.timing import interleave

TITLE = "Threads over one thread, B 1, H 8, D 128"
ONE = "one thread"


class Case(NamedTuple):
    form: str
    dtype: str
    length: int


def cases(settings: Settings) -> list[Case]:
    if settings.threads < 2:
        return []
    lengths = (2048,) if settings.quick else (2048, 4096)
    return [
        Case(form, dtype, length)
        for form in ("forward", "backward")
        for dtype in settings.chosen("float32", "bfloat16")
        for length in lengths
    ]


def measure(case: Case, settings: Settings) -> Row:
    import tilewise as tw

    form, dtype, length = case
    inputs.use_threads(settings.threads)
    *qkv, dout = inputs.qkv(dtype, length=length, width=128, count=4)
    qkv = [x.requires_grad_(form == "backward") for x in qkv]
    out = tw.attention(*qkv, layout="bhtd", backend=settings.backend)

    def call(threads: int) -> Any:
        import torch

        tw.set_num_threads(threads)
        if form == "backward":
            return torch.autograd.grad(out, qkv, dout, retain_graph=True)
        return tw.attention(*qkv, layout="bhtd", backend=settings.backend)

    peak = machine.Ceilings(settings.threads).flops(dtype)
    timings = interleave({OURS: lambda: call(settings.threads), ONE: lambda: call(1)}, **settings.timing)
    row = Row.of("threads", f"{form}, N {length}", dtype, settings.threads, timings, peak_flops=peak,
                 flops=inputs.dense_flops(form, length=length, width=128))  # fmt: skip
    stated = goal("threads", machine.kind()) if settings.threads == 2 else None
    row.add(f"x {ONE}", timings.ratio(ONE, OURS), stated)
    row.add_ceiling()
    return row
