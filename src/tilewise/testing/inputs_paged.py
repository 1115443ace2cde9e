"""The arrays of a paged case: pages in random order, nonsense in every slot, page id and row that nobody may read."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewise.attention import infos
from tilewise.frameworks.numpy_adapter import adapter
from tilewise.spec import validate
from tilewise.spec.problem import QUANTISED, PagedOperands, real_dtype
from tilewise.testing.buffers import Buffers
from tilewise.testing.case import AppendCase, PagedCase
from tilewise.testing.inputs import Inputs, poison, random_of, rounded, tokens

# Stored values stay near this size, so that each 8-bit format holds them well.
STORED_SIZE = {"int8": 40.0, "float8_e4m3fn": 8.0, "float8_e5m2": 8.0}
NONSENSE_IDS = (-1, 2**31 - 1, -(2**31), 10**6)


def make(case: PagedCase, buffers: Buffers, poisoned: bool) -> Inputs:
    """Arrays of ragged_paged_attention(), or of append_to_pages() for an AppendCase."""
    random = random_of(case)
    table = _Table(case, random, poisoned)
    q_tokens = case.lead + sum(case.q_lens) + case.tail
    longest = max((*case.kv_lens, 0))
    x = tokens(case, max(len(case.kv_lens), 1), q_tokens, max(longest, 1), random)
    arrays: dict[str, Any] = table.ints(case.ints)
    k_scale, v_scale = (_scale(case, form, random) for form in (case.k_scale, case.v_scale))
    full = [_per_slot(case, scale, table.num_pages) for scale in (k_scale, v_scale)]
    k_pages = table.pages(x.k, full[0], case, poisoned)
    v_pages = table.pages(x.v, full[1], case, poisoned)
    for name, form, scale in (("k_scale", case.k_scale, k_scale), ("v_scale", case.v_scale, v_scale)):
        if form is not None:
            given = table.slots(scale, poisoned) if form == "slot" else scale
            arrays[name] = float(given) if form == "number" else rounded(given, "float32")
    owned = np.zeros(q_tokens, bool)
    owned[case.lead : case.lead + sum(case.q_lens)] = True

    if isinstance(case, AppendCase):
        new_k, new_v = (random.standard_normal((q_tokens, case.heads[1], width)) for width in case.widths)
        for new in (new_k, new_v):
            new[: len(new) // 2] *= 300.0 if case.stored in QUANTISED else 1.0  # past the largest stored value
            poison(new, ~owned)
        arrays.update(k=rounded(new_k, case.dtype), v=rounded(new_v, case.dtype))
    else:
        q = x.q[0]
        if poisoned:
            poison(q, ~owned)
        arrays["q"] = rounded(q, case.dtype)
        if case.sinks:
            arrays["sinks"] = rounded(random.standard_normal(case.heads[0]), real_dtype(case.dtype))
        if case.draft is not None:
            arrays["draft_mask"] = random.random((q_tokens, case.draft)) < 0.6
    if case.combined:
        both = np.stack([k_pages, v_pages], 3).reshape(*k_pages.shape[:2], 2 * case.heads[1], case.widths[0])
        arrays["k_pages"] = both
    else:
        arrays.update(k_pages=k_pages, v_pages=v_pages)
    placed = {
        name: buffers.place(name, x, case.order(name)) if isinstance(x, np.ndarray) and x.ndim else x
        for name, x in arrays.items()
    }
    spec, problem = judged(case, placed)
    return Inputs(placed, case.options(), buffers, spec, problem)


def judged(case: PagedCase, arrays: dict[str, Any]) -> tuple[Any, Any]:
    """(spec, problem) of the call with these NumPy arrays."""
    arrays = {name: np.float32(x) if isinstance(x, float) else x for name, x in arrays.items()}
    if isinstance(case, AppendCase):
        return validate.append_to_pages(infos(adapter, arrays), framework="numpy")
    operands = PagedOperands(**{"v_pages": None, **arrays})
    return validate.ragged_paged_attention(infos(adapter, operands._asdict()), framework="numpy", **case.options())


class _Table:
    """Which page holds which keys."""

    def __init__(self, case: PagedCase, random: np.random.Generator, poisoned: bool) -> None:
        self.case, self.random = case, random
        size = case.page_size
        needed = [-(-length // size) for length in case.kv_lens]
        spare = case.spare_seqs or 0
        self.num_pages = sum(needed) + 2
        self.columns = max((*needed, 0)) + 1
        order = list(random.permutation(self.num_pages))
        nonsense = NONSENSE_IDS if poisoned else (0,)
        self.indices = np.resize(np.array(nonsense), (len(needed) + spare, self.columns))
        self.places = np.zeros((len(needed), self.columns), int)  # where the rows are, also those that nobody may read
        self.used = np.zeros((self.num_pages, size), bool)
        for row, (count, length) in enumerate(zip(needed, case.kv_lens, strict=True)):
            ids = [order.pop() for _ in range(count)]
            first = _first_seen(case, case.q_lens[row], length)
            left = first // size if poisoned else 0  # entries left of the window may be anything
            self.indices[row, left:count] = ids[left:]
            self.places[row, :count] = ids
            for at, page in enumerate(ids):
                self.used[page, max(first - at * size, 0) : min(size, length - at * size)] = True

    def ints(self, dtype: str) -> dict[str, np.ndarray]:
        """kv_lens, page_indices, cu_q_lens and num_seqs; rows past num_seqs hold nonsense."""
        case, spare = self.case, self.case.spare_seqs or 0
        starts = case.lead + np.cumsum([0, *case.q_lens])
        result = {
            "kv_lens": np.array([*case.kv_lens, *[-7, 10**6] * spare][: len(case.kv_lens) + spare]),
            "page_indices": self.indices,
            "cu_q_lens": np.array([*starts, *[0, 10**6] * spare][: len(starts) + spare]),
        }
        if case.spare_seqs is not None:
            result["num_seqs"] = np.array([len(case.kv_lens)])
        return {name: x.astype(dtype) for name, x in result.items()}

    def pages(self, rows: np.ndarray, scale: np.ndarray, case: PagedCase, poisoned: bool) -> np.ndarray:
        """Pages with the first kv_len rows [B, S, Hkv, D] of each sequence, divided by the scale of their slot."""
        size, dtype = case.page_size, case.stored
        stored = np.zeros((self.num_pages, size, *rows.shape[2:]))
        for sequence, length in enumerate(case.kv_lens):
            at = np.arange(length)
            page, slot = self.places[sequence, at // size], at % size
            stored[page, slot] = rows[sequence, :length] / scale[page, slot][..., None]
        if dtype == "int8":
            stored = np.clip(np.rint(stored), -127, 127)
        elif poisoned:
            poison(stored, ~self.used)
        return rounded(stored, dtype)

    def slots(self, scale: np.ndarray, poisoned: bool) -> np.ndarray:
        scale = scale.copy()
        if poisoned:
            poison(scale, ~self.used)
        return scale


def _scale(case: PagedCase, form: str | None, random: np.random.Generator) -> np.ndarray:
    """Factors that bring normal values to a good size in the stored dtype, different in each place they can differ."""
    base = 1.0 / STORED_SIZE.get(case.stored, 0.5)
    if form is None:
        return np.array(1.0)
    pages = sum(-(-length // case.page_size) for length in case.kv_lens) + 2
    shape = {"one": (1,), "head": (case.heads[1],), "slot": (pages, case.page_size, case.heads[1])}.get(form, ())
    factors = base * random.uniform(0.6, 1.6, shape)
    return np.asarray(factors, np.float32).astype(np.float64)


def _per_slot(case: PagedCase, scale: np.ndarray, num_pages: int) -> np.ndarray:
    return np.broadcast_to(scale, (num_pages, case.page_size, case.heads[1]))


def _first_seen(case: PagedCase, q_len: int, kv_len: int) -> int:
    """The first key of a sequence that a query of it may see."""
    if isinstance(case, AppendCase):
        return 0
    if q_len == 0:
        return kv_len
    left = case.window[0] if case.window else None
    return 0 if left is None else max(0, kv_len - q_len - left)
