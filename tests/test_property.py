"""Random specs, sizes, strides and poisons against the oracle: cases that nobody thought of."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewise.choose import backend_list
from tilewise.testing.buffers import ORDERS
from tilewise.testing.case import AppendCase, Case, DenseCase, PackedCase, PagedCase
from tilewise.testing.conform import CHECKS
from tilewise.testing.pairs import Pair, why_not

# TILEWISE_EXAMPLES raises the number for a long run; the default fits into the everyday tests.
EXAMPLES = int(os.environ.get("TILEWISE_EXAMPLES", "60"))
quick = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=EXAMPLES <= 100
)
BACKEND = "cpu" if backend_list.load("cpu").missing() is None else "composed"

lengths = st.one_of(st.integers(0, 12), st.sampled_from([31, 64, 65, 97, 129, 257]))
widths = st.one_of(st.integers(1, 20), st.sampled_from([32, 64, 80]))
dtypes = st.sampled_from(["float32", "bfloat16", "float16", "float64"])
sides = st.one_of(st.none(), st.integers(0, 40))
orders = st.sampled_from(["plain", "plain", "plain", *ORDERS])
values = st.sampled_from(["normal", "normal", "normal", "v ones", "logits -200", "correlated", "rising", "nan v"])


@st.composite
def heads(draw: Any) -> tuple[int, int]:
    kv_heads = draw(st.integers(1, 3))
    return kv_heads * draw(st.integers(1, 6)), kv_heads


@st.composite
def common(draw: Any) -> dict[str, Any]:
    """Fields of every case. The name seeds the values."""
    names = ("q", "k", "v", "dout")
    return {
        "name": f"property/{draw(st.integers(0, 2**32))}", "says": "", "dtype": draw(dtypes), "heads": draw(heads()),
        "widths": (draw(widths), draw(widths)), "values": draw(values), "sinks": draw(st.booleans()),
        "orders": tuple((name, draw(orders)) for name in names), "causal": draw(st.booleans()),
        "window": draw(st.one_of(st.none(), st.tuples(sides, sides))),
        "softcap": draw(st.one_of(st.none(), st.floats(0.1, 50.0))),
        "scale": draw(st.one_of(st.none(), st.floats(-1.0, 1.0).filter(lambda x: abs(x) > 0.01))),
    }  # fmt: skip


@st.composite
def dense(draw: Any) -> DenseCase:
    fields = draw(common())
    batch, q_len, kv_len = draw(st.integers(0, 3)), draw(lengths), draw(lengths)
    axes = st.one_of(st.none(), st.tuples(*(st.sampled_from([axis, "1"]) for axis in "bhts")).map("".join))
    lens = [draw(st.one_of(st.none(), st.tuples(*[st.integers(0, size)] * batch))) for size in (q_len, kv_len)]
    segments = st.sampled_from([None, None, "documents", "padded", "shuffled"])
    return DenseCase(
        **fields, batch=batch, q_len=q_len, kv_len=kv_len, layout=draw(st.sampled_from(["bthd", "bhtd"])),
        bias=draw(axes), mask=draw(axes), segments=draw(segments),
        bias_dtype=draw(st.sampled_from(["float32", "bfloat16", "float16"])), q_lens=lens[0], kv_lens=lens[1],
        mask_values=draw(st.sampled_from(["random", "dead rows", "left padding", "late keys"])),
    )  # fmt: skip


@st.composite
def packed(draw: Any) -> PackedCase:
    pairs = draw(st.lists(st.tuples(lengths, lengths), max_size=4))
    return PackedCase(**draw(common()), q_lens=tuple(q for q, _ in pairs), kv_lens=tuple(kv for _, kv in pairs),
                      lead=draw(st.integers(0, 2)), tail=draw(st.integers(0, 3)))  # fmt: skip


@st.composite
def paged(draw: Any, kind: type[PagedCase] = PagedCase) -> PagedCase:
    fields = draw(common())
    sequences = draw(st.lists(st.tuples(st.integers(0, 9), lengths), max_size=4))
    if kind is AppendCase:
        sequences = [(min(q, kv), kv) for q, kv in sequences]
    combined = draw(st.booleans())
    if combined:
        fields["widths"] = (fields["widths"][0],) * 2
    page_dtype = None
    if fields["dtype"] != "float64":
        page_dtype = draw(st.sampled_from([None, "float32", "bfloat16", "int8", "float8_e4m3fn", "float8_e5m2"]))
    forms = st.sampled_from([None, "number", "scalar", "one", "head", "slot"])
    fields["orders"] = (("q", draw(orders)), ("k_pages", draw(orders)), ("v_pages", draw(orders)))
    if not sequences:
        fields["values"] = "normal"
    draft = draw(st.one_of(st.none(), st.integers(0, 6))) if kind is PagedCase else None
    return kind(
        **fields, q_lens=tuple(q for q, _ in sequences), kv_lens=tuple(kv for _, kv in sequences),
        lead=draw(st.integers(0, 1)), tail=draw(st.integers(0, 3)), combined=combined, page_dtype=page_dtype,
        page_size=draw(st.sampled_from([1, 2, 3, 5, 16, 17])), k_scale=draw(forms), v_scale=draw(forms),
        spare_seqs=draw(st.one_of(st.none(), st.integers(0, 3))), draft=draft,
        batch_invariant=draw(st.booleans()) and kind is PagedCase,
    )  # fmt: skip


def check(case: Case, *names: str) -> None:
    pair = Pair(BACKEND, "numpy")
    if why_not(pair, case) is None:
        for name in names:
            CHECKS[name][0](case, pair)


@quick
@given(dense())
def test_dense(case: DenseCase) -> None:
    check(case, "forward", "backward", "poison")


@quick
@given(packed())
def test_packed(case: PackedCase) -> None:
    check(case, "forward", "backward", "poison")


@quick
@given(paged())
def test_paged(case: PagedCase) -> None:
    check(case, "forward", "poison")


@quick
@given(paged(AppendCase))
def test_append(case: AppendCase) -> None:
    check(replace(case, causal=True, window=None), "append")
