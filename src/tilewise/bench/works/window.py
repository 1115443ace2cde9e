"""A sliding window over a long context, against torch with a dense mask, and against our own windowless rate."""

from __future__ import annotations

from typing import Any, NamedTuple

from tilewise.bench import machine
from tilewise.bench.goals import goal
from tilewise.bench.rivals import torch_sdpa
from tilewise.bench.row import OURS, Row
from tilewise.bench.settings import Settings
from tilewise.bench.works import inputs
from tilewise.testing.timing import interleave

TITLE = "Window (255, 0), B 1, H 8, D 128"
LEFT = 255
MASKED = "torch with a dense mask"
OPEN = "tilewise without a window"


class Case(NamedTuple):
    dtype: str
    length: int


def cases(settings: Settings) -> list[Case]:
    return [Case(dtype, 2048 if settings.quick else 8192) for dtype in settings.chosen("float32", "bfloat16")]


def measure(case: Case, settings: Settings) -> Row:
    import torch

    import tilewise as tw

    inputs.use_threads(settings.threads)
    dtype, length = case
    q, k, v = inputs.qkv(dtype, length=length, width=128)
    at = torch.arange(length)
    mask = (at[None] <= at[:, None]) & (at[None] >= at[:, None] - LEFT)

    def ours() -> Any:
        return tw.attention(q, k, v, window=(LEFT, 0), layout="bhtd", backend=settings.backend)

    def rival() -> Any:
        return torch_sdpa.masked(q, k, v, mask)

    def no_window() -> Any:
        return tw.attention(q, k, v, layout="bhtd", backend=settings.backend)

    difference = inputs.difference(ours(), rival())
    peak = machine.Ceilings(settings.threads).flops(dtype)
    timings = interleave({OURS: ours, MASKED: rival, OPEN: no_window}, **settings.timing)
    useful = 4.0 * 8 * 128 * float(mask.sum())
    row = Row.of("window", f"N {length}", dtype, settings.threads, timings, difference=difference, flops=useful,
                 peak_flops=peak, bytes=4.0 * q.numel() * q.element_size())  # fmt: skip
    whole = inputs.dense_flops("forward", length=length, width=128)
    row.add(f"x {MASKED}", timings.ratio(MASKED, OURS), goal("window rival", machine.kind()))
    row.add("% of the windowless rate, useful work only", 100 * timings.ratio(OPEN, OURS) * useful / whole,
            goal("window useful rate", machine.kind()))  # fmt: skip
    row.add_ceiling()
    return row
