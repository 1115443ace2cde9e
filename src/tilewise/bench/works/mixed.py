"""A serving step: chunks of prompts and decodes in one call, against torch in a loop over the sequences."""

from __future__ import annotations

from typing import Any, NamedTuple

from tilewise.bench import machine
from tilewise.bench.goals import goal
from tilewise.bench.rivals import torch_gather
from tilewise.bench.row import OURS, Row
from tilewise.bench.settings import Settings
from tilewise.bench.works import inputs, pages
from tilewise.testing.timing import interleave

TITLE = "Mixed batch over pages, 32 query and 8 kv heads, D 128, pages of 16"
CHUNK = 256


class Case(NamedTuple):
    dtype: str
    contexts: tuple[int, ...]  # keys of each prompt that prefills a chunk
    decodes: int


def cases(settings: Settings) -> list[Case]:
    contexts, decodes = ((1024, 2048), 16) if settings.quick else ((1024, 2048, 3072, 4096), 64)
    return [Case(dtype, contexts, decodes) for dtype in settings.chosen("bfloat16", "float32")]


def measure(case: Case, settings: Settings) -> Row:
    import torch

    import tilewise as tw

    inputs.use_threads(settings.threads)
    dtype, contexts, decodes = case
    lengths = [1024 + 3072 * i // max(1, decodes - 1) for i in range(decodes)]
    cache = pages.make([*contexts, *lengths], dtype)
    new = [CHUNK] * len(contexts) + [1] * decodes
    cu_q_lens = torch.tensor([0, *new], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    q = torch.randn((sum(new), pages.HEADS, pages.WIDTH)).to(getattr(torch, dtype))
    sequences = []
    for i, count in enumerate(new):
        kv_len, first = int(cache.kv_lens[i]), int(cu_q_lens[i])
        used = cache.page_indices[i, : -(-kv_len // pages.PAGE)].long()
        mask = None
        if count > 1:
            mask = torch.arange(kv_len)[None] <= torch.arange(kv_len - count, kv_len)[:, None]
        sequences.append((slice(first, first + count), kv_len, used, mask))

    def ours() -> Any:
        return tw.ragged_paged_attention(
            q, (cache.k, cache.v), cache.kv_lens, cache.page_indices, cu_q_lens, backend=settings.backend
        )

    def rival() -> Any:
        return torch_gather.mixed(q, cache.k, cache.v, sequences)

    difference = inputs.difference(ours(), rival())
    timings = interleave({OURS: ours, torch_gather.NAME: rival}, **settings.timing)
    seen = sum(count * (kv - count) + count * (count + 1) // 2 for count, kv in zip(new, cache.kv_lens.tolist()))
    name = f"{len(contexts)} chunks of {CHUNK}, {decodes} decodes at 1k to 4k"
    row = Row.of("mixed", name, dtype, settings.threads, timings, difference=difference, bytes=cache.bytes,
                 flops=4.0 * seen * pages.HEADS * pages.WIDTH)  # fmt: skip
    row.add(f"x {torch_gather.NAME}, a loop", timings.ratio(torch_gather.NAME, OURS), goal("mixed", machine.kind()))
    return row
