"""Cases with a visible infinity in q, k or v: results follow IEEE arithmetic, so that a fault upstream shows."""

from __future__ import annotations

from typing import Any

from tilewise.testing.cases_meaning import dense
from tilewise.testing.cases_paged import paged
from tilewise.testing.cases_ragged import packed

SAYS = {
    "inf q": "logits of +inf make a row NaN, logits of -inf have weight 0",
    "-inf q": "the same with the other sign",
    "inf first k": "rows that see an infinite key are NaN, or give it weight 0, by the sign of q",
    "-inf first k": "the same with the other sign",
    "inf k": "rows that do not see the last key are ordinary",
    "inf first v": "an infinite value stays in its column and in the rows that see it",
    "inf v": "rows that do not see the last value are ordinary",
    "inf v of both signs": "infinities of both signs give NaN",
    "inf v without weight": "0 * infinity is not 0",
}
EVERY = ("inf q", "inf first k", "inf first v")
WIDELY = (*EVERY, "inf k", "inf v")  # with every option; the others with a few
FEW = ("", ", soft cap", ", mask", ", causal", ", decode", ", bfloat16")

# Long enough for tiles that are seen whole, in part, and not at all.
DENSE: dict[str, dict[str, Any]] = {
    "": {},
    ", causal": {"causal": True, "q_len": 70, "kv_len": 70, "heads": (2, 1)},
    ", soft cap": {"softcap": 3.0},
    ", mask": {"mask": "bhts", "q_len": 20, "kv_len": 40},
    ", soft cap and mask": {"softcap": 3.0, "mask": "b1ts", "q_len": 20, "kv_len": 40},
    ", window": {"window": (3, 1), "q_len": 70, "kv_len": 70, "heads": (2, 1)},
    ", sinks and bias": {"sinks": True, "bias": "1hts", "causal": True},
    ", one query": {"q_len": 1, "kv_len": 300},
    ", bfloat16": {"dtype": "bfloat16", "q_len": 40, "kv_len": 300, "causal": True},
    ", float16": {"dtype": "float16", "q_len": 40, "kv_len": 60, "mask": "b1ts"},
}
PACKED: dict[str, dict[str, Any]] = {
    "": {"q_lens": (5, 7), "kv_lens": (5, 9)},
    ", causal": {"q_lens": (5, 7), "kv_lens": (6, 9), "causal": True},
    ", soft cap": {"q_lens": (5, 7), "kv_lens": (5, 9), "softcap": 3.0, "window": (2, 2)},
}
# The first sequence is the longest, so that its last key is the last of the values.
MIXED: dict[str, Any] = {"q_lens": (4, 1), "kv_lens": (17, 9), "tail": 0, "causal": True}
PAGED: dict[str, dict[str, Any]] = {
    "": MIXED,
    ", decode": {"q_lens": (1, 1), "kv_lens": (9, 5), "tail": 0, "heads": (8, 2)},
    ", long": {"q_lens": (1, 1), "kv_lens": (3001, 40), "page_size": 16, "tail": 0},
    ", prefill": {"q_lens": (40,), "kv_lens": (70,), "page_size": 16, "tail": 0},
    ", soft cap": {"softcap": 3.0, **MIXED},
    ", window": {"window": (6, 0), **MIXED},
    ", draft mask": {"draft": 4, **MIXED},
    ", sinks": {"sinks": True, **MIXED},
    ", bfloat16": {"dtype": "bfloat16", **MIXED},
    ", float8_e5m2": {"page_dtype": "float8_e5m2", "k_scale": "head", "v_scale": "head", **MIXED},
}


def _rows(options: dict[str, dict[str, Any]]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(values, where, fields) for values in SAYS for where, fields in options.items()
            if values in WIDELY or where in FEW]  # fmt: skip


def _tags(values: str, where: str) -> str:
    if values in EVERY and where in ("", ", soft cap"):
        return "smoke every plain"
    return "every" if values in EVERY and "float8" not in where else ""  # MLX has no float8


CASES = [
    dense(f"infinity/{values}{where}", SAYS[values], tags=_tags(values, where), values=values, **fields)
    for values, where, fields in _rows(DENSE)
] + [
    packed(f"infinity/packed, {values}{where}", SAYS[values], tags=_tags(values, where), values=values, **fields)
    for values, where, fields in _rows(PACKED)
] + [
    paged(f"infinity/paged, {values}{where}", SAYS[values], tags=_tags(values, where), values=values, **fields)
    for values, where, fields in _rows(PAGED)
]  # fmt: skip
