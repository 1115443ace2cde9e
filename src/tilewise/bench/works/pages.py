"""A paged cache for the paged works: pages in random order, as they lie after a while of serving."""

from __future__ import annotations

from typing import Any, NamedTuple

HEADS, KV_HEADS, WIDTH, PAGE = 32, 8, 128, 16


class Pages(NamedTuple):
    """torch tensors: pages [N, PAGE, KV_HEADS, WIDTH], and the page table."""

    k: Any
    v: Any
    kv_lens: Any  # int32 [B]
    page_indices: Any  # int32 [B, pages_per_seq], -1 past the last page

    @property
    def bytes(self) -> int:
        """What decode must read at least."""
        return int(self.kv_lens.sum()) * KV_HEADS * WIDTH * (self.k.element_size() + self.v.element_size())


def make(kv_lens: list[int], dtype: str) -> Pages:
    """A cache of these sequences."""
    import torch

    generator = torch.Generator().manual_seed(0)
    counts = [-(-length // PAGE) for length in kv_lens]
    total = sum(counts)
    order = torch.randperm(total, generator=generator, dtype=torch.int32)
    table = torch.full((len(kv_lens), max(counts)), -1, dtype=torch.int32)
    first = 0
    for row, count in enumerate(counts):
        table[row, :count] = order[first : first + count]
        first += count
    shape = (total, PAGE, KV_HEADS, WIDTH)
    k, v = (torch.randn(shape, generator=generator).to(getattr(torch, dtype)) for _ in range(2))
    return Pages(k, v, torch.tensor(kv_lens, dtype=torch.int32), table)


def quantise(pages: Pages, dtype: str) -> tuple[Pages, Any, Any]:
    """(8-bit pages, k_scale [KV_HEADS], v_scale [KV_HEADS])."""
    import torch

    largest = {"int8": 127.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}[dtype]
    stored, scales = [], []
    for x in (pages.k.float(), pages.v.float()):
        scale = x.abs().amax((0, 1, 3)) / largest
        y = x / scale[:, None]
        stored.append((y.round() if dtype == "int8" else y).to(getattr(torch, dtype)))
        scales.append(scale)
    return pages._replace(k=stored[0], v=stored[1]), *scales
