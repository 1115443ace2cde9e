"""What a soft cap, a bias, sinks, segments and a mask cost on top of the plain call."""

from __future__ import annotations

from typing import Any, NamedTuple

from tilewise.bench import machine
from tilewise.bench.goals import goal
from tilewise.bench.row import OURS, Row
from tilewise.bench.settings import Settings
from tilewise.bench.works import inputs
from tilewise.testing.timing import interleave

TITLE = "Features, B 1, H 8, D 128: time over the plain call"
PLAIN = "plain call"


class Case(NamedTuple):
    dtype: str
    length: int
    feature: str


def cases(settings: Settings) -> list[Case]:
    length = 1024 if settings.quick else 2048
    features = ("soft cap 30", "bias", "sinks", "segments, 4 documents", "segments, odd and even", "mask")
    return [Case(dtype, length, name) for dtype in settings.chosen("float32", "bfloat16") for name in features]


def options(feature: str, length: int, dtype: str) -> dict[str, Any]:
    """Keywords of tw.attention for a feature."""
    import torch

    generator = torch.Generator().manual_seed(1)
    if feature.startswith("soft cap"):
        return {"softcap": 30.0}
    if feature == "bias":
        return {"bias": torch.randn((1, 8, length, length), generator=generator).to(getattr(torch, dtype))}
    if feature == "sinks":
        return {"sinks": torch.randn(8, generator=generator)}
    if feature == "mask":
        return {"mask": torch.rand((1, 1, length, length), generator=generator) < 0.9}
    at = torch.arange(length, dtype=torch.int32)[None]
    ids = at // (length // 4) if feature.endswith("documents") else at % 2
    return {"q_segment_ids": ids, "kv_segment_ids": ids}


def measure(case: Case, settings: Settings) -> Row:
    import tilewise as tw

    inputs.use_threads(settings.threads)
    dtype, length, feature = case
    q, k, v = inputs.qkv(dtype, length=length, width=128)
    keywords = options(feature, length, dtype)
    calls = {
        OURS: lambda: tw.attention(q, k, v, layout="bhtd", backend=settings.backend, **keywords),
        PLAIN: lambda: tw.attention(q, k, v, layout="bhtd", backend=settings.backend),
    }
    timings = interleave(calls, **settings.timing)
    row = Row.of("features", f"{feature}, N {length}", dtype, settings.threads, timings)
    bound = None if feature in ("mask", "segments, odd and even") else goal("feature", machine.kind())
    row.add("x the plain call's time", 1 / timings.ratio(PLAIN, OURS), bound)
    return row
