"""Decode over a paged cache: how near to reading memory once, against what torch can do, and what 8-bit pages gain."""

from __future__ import annotations

from typing import Any, NamedTuple

from tilewise.bench import machine
from tilewise.bench.goals import goal
from tilewise.bench.rivals import torch_folded, torch_gather
from tilewise.bench.row import OURS, Row
from tilewise.bench.settings import Settings
from tilewise.bench.works import inputs, pages
from tilewise.testing.timing import interleave

TITLE = f"Paged decode, {pages.HEADS} query and {pages.KV_HEADS} kv heads, D {pages.WIDTH}, pages of {pages.PAGE}"
OWN = "tilewise on bfloat16 pages"


class Case(NamedTuple):
    page_dtype: str
    batch: int
    length: int


def cases(settings: Settings) -> list[Case]:
    sizes = [(4, 4096)] if settings.quick else [(4, 1024), (1, 16384), (4, 4096), (16, 4096)]
    while not settings.quick and _bytes(*sizes[-1]) < 2 * dram_sized():  # 8-bit pages too shall lie in memory
        sizes.append((2 * sizes[-1][0], sizes[-1][1]))
    found = []
    if settings.chosen("bfloat16"):
        found += [Case("bfloat16", *size) for size in sizes]
    for dtype in settings.chosen("int8", "float8_e4m3fn"):
        found += [Case(dtype, *size) for size in sizes[-1:]]
    return found


def dram_sized() -> float:
    """Bytes of KV of which the last-level cache can keep little from one call to the next."""
    return max(64e6, 2.0 * machine.last_level_cache())


def _bytes(batch: int, length: int) -> int:
    return batch * length * pages.KV_HEADS * pages.WIDTH * 2 * 2


def measure(case: Case, settings: Settings) -> Row:
    import torch

    import tilewise as tw

    inputs.use_threads(settings.threads)
    page_dtype, batch, length = case
    own = pages.make([length] * batch, "bfloat16")
    cache, k_scale, v_scale = (own, None, None) if page_dtype == "bfloat16" else pages.quantise(own, page_dtype)
    q = torch.randn((batch, pages.HEADS, pages.WIDTH)).bfloat16()
    cu_q_lens = torch.arange(batch + 1, dtype=torch.int32)

    def run(of: pages.Pages, **scales: Any) -> Any:
        return tw.ragged_paged_attention(
            q, (of.k, of.v), of.kv_lens, of.page_indices, cu_q_lens, backend=settings.backend, **scales
        )

    calls: dict[str, Any] = {OURS: lambda: run(cache, k_scale=k_scale, v_scale=v_scale)}
    if page_dtype == "bfloat16":
        table = own.page_indices.long()
        k, v = (x[table].view(batch, length, *x.shape[2:]).transpose(1, 2).contiguous() for x in (own.k, own.v))
        calls[torch_gather.NAME] = lambda: torch_gather.decode(q, own.k, own.v, table)
        calls[torch_folded.NAME] = lambda: torch_folded.decode(q, k, v)
        difference = inputs.difference(calls[OURS](), calls[torch_folded.NAME]())
    else:
        calls[OWN] = lambda: run(own)
        difference = inputs.difference(calls[OURS](), calls[OWN]())
    read = machine.Ceilings(settings.threads).read(cache.bytes)
    timings = interleave(calls, **settings.timing)
    in_dram = cache.bytes >= dram_sized()
    where = "DRAM" if in_dram else "in cache" if cache.bytes < dram_sized() / 2 else "partly in cache"
    flops = 4.0 * batch * length * pages.HEADS * pages.WIDTH
    name = f"pages, {batch} x {length} keys, {cache.bytes / 1e6:.0f} MB, {where}"
    row = Row.of("paged", name, page_dtype, settings.threads, timings, difference=difference, bytes=cache.bytes,
                 peak_bytes=read)  # fmt: skip
    kind = machine.kind()
    if page_dtype == "bfloat16":
        for rival, name in ((torch_gather.NAME, "decode gather"), (torch_folded.NAME, "decode folded")):
            row.add(f"x {rival}", timings.ratio(rival, OURS), goal(name, kind) if in_dram else None)
        limit = goal("decode read 1" if settings.threads == 1 else "decode read", kind)
        row.add_ceiling(limit if in_dram else None)
    else:
        row.add(f"x {OWN}", timings.ratio(OWN, OURS), goal("decode 8-bit", kind) if in_dram else None)
        row.add_ceiling()
    row.flops, row.peak_flops = flops, machine.Ceilings(settings.threads).flops("bfloat16")
    return row
