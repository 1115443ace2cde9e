"""Cases of ragged paged attention and of append_to_pages()."""

from __future__ import annotations

from typing import Any

from tilewise.testing.case import AppendCase, PagedCase


def paged(name: str, says: str, *reports: str, tags: str = "", **fields: Any) -> PagedCase:
    """A case of ragged_paged_attention()."""
    return PagedCase(name=name, says=says, reports=reports, tags=frozenset(tags.split()), **fields)


def append(name: str, says: str, *reports: str, tags: str = "", **fields: Any) -> AppendCase:
    """A case of append_to_pages()."""
    return AppendCase(name=name, says=says, reports=reports, tags=frozenset(tags.split()), **fields)


DECODE: dict[str, Any] = {"q_lens": (1, 1, 1), "kv_lens": (5, 17, 33), "tail": 0}
PREFILL: dict[str, Any] = {"q_lens": (9, 20), "kv_lens": (9, 31), "tail": 0}
MIXED: dict[str, Any] = {"q_lens": (1, 7, 0, 1, 12), "kv_lens": (40, 7, 5, 1, 25), "tail": 3}
PHASES = {"decode": DECODE, "prefill": PREFILL, "mixed": MIXED}

BATCHES = [
    paged(f"paged/{phase}", "decode, prefill and mixed rows mean the same", "R001", "R013", "R129", "R152", "R261",
          tags="smoke every plain", **sizes)
    for phase, sizes in PHASES.items()
] + [
    paged(f"paged/{phase}, pair", "K and V pages in two arrays, E differs from D", tags="smoke every", combined=False,
          widths=(16, 12), **sizes)
    for phase, sizes in PHASES.items()
] + [
    paged("paged/spare rows", "rows past num_seqs hold nonsense and are not read", "R206", "R257",
          tags="smoke every plain",
          spare_seqs=3, **MIXED),
    paged("paged/num_seqs of all", "num_seqs equals max_seqs", "R222", spare_seqs=0, **DECODE),
    paged("paged/rows before the first", "cu_q_lens may start past 0", lead=2, **MIXED),
    paged("paged/no keys", "kv_len 0: out 0, lse -inf", "R153", "R177", "R173", tags="smoke every", q_lens=(1, 0, 2, 1),
          kv_lens=(0, 0, 0, 5)),
    paged("paged/only empty", "no sequence has a key", "R177", q_lens=(1, 3), kv_lens=(0, 0)),
    paged("paged/more queries than keys", "rows before the first key see nothing", "R004", tags="every", q_lens=(5, 9),
          kv_lens=(2, 8)),
    paged("paged/no queries", "no token in the step", q_lens=(0, 0), kv_lens=(5, 3), tail=0),
    paged("paged/no sequences", "an empty batch", "R183", q_lens=(), kv_lens=(), tail=3),
    paged("paged/not causal", "all keys of the sequence", "R048", tags="every", causal=False, **MIXED),
    paged("paged/q of zeros", "the mean of the keys there are: padding lanes do not count", "R048", causal=False,
          values="q zero", **MIXED),
    paged("paged/int64", "the int arrays may be int64", ints="int64", spare_seqs=1, **MIXED),
    paged("paged/long", "one long sequence is split over its keys", "R045", "R049", "R131", tags="smoke", q_lens=(1,),
          kv_lens=(3001,), page_size=16, heads=(4, 1)),
    paged("paged/long and short", "lengths far apart", "R218", "R131", q_lens=(1, 1, 1, 1), kv_lens=(2049, 3, 1024,
          130),
          page_size=16),
    paged("paged/long, sinks", "a sink counts once however the keys are split", "R090", "R111", tags="smoke",
          q_lens=(1, 2),
          kv_lens=(3001, 700), page_size=16, sinks=True),
    paged("paged/long prefill", "chunks of a long prompt", tags="smoke", q_lens=(100, 130), kv_lens=(600, 130),
          page_size=16, heads=(2, 1)),
    paged("paged/many sequences", "a large decode batch", q_lens=(1,) * 90, kv_lens=tuple(range(1, 91)), heads=(2, 1)),
]  # fmt: skip

SIZES = [
    paged(f"paged/page of {size}", "any page size", "R050", "R051", "R058", "R195", "R232", "R247", *reports,
          tags="smoke every" if size in (3, 16) else "", page_size=size, combined=size % 2 == 0, **MIXED)
    for size, reports in (
        (1, ("R042",)), (2, ()), (3, ()), (5, ()), (16, ("R050",)), (17, ()), (64, ()), (256, ("R040",)), (512,
        ("R247",)),
        (544, ("R243",)),
    )
] + [
    paged(f"paged/{kv} keys", "lengths at the edges of pages and splits", "R046", "R047", "R055", q_lens=(1, 3),
          kv_lens=(kv, kv), page_size=32, heads=(4, 1), widths=(8, 8))
    for kv in (31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 513, 1023, 1024, 1025)
] + [
    paged(f"paged/heads {q}_{kv}", "any group size, in decode and in chunks", "R061", *reports, heads=(q, kv),
          tags="smoke" if q == 48 else "", q_lens=(1, 5), kv_lens=(40, 9))
    for q, kv, reports in (
        (1, 1, ()), (4, 4, ()), (3, 1, ("R228",)), (5, 1, ("R192", "R229")), (12, 2, ("R231",)), (14, 2, ("R229",)),
        (16, 2, ()), (24, 2, ("R217",)), (32, 2, ("R230",)), (48, 1, ("R193",)), (48, 2, ("R064",)),
    )
] + [
    paged(f"paged/widths {d}_{e}", "any width", "R194", "R238", combined=d == e, widths=(d, e), heads=(2, 1),
          q_lens=(1, 3), kv_lens=(40, 9))
    for d, e in ((1, 1), (3, 3), (5, 17), (80, 80), (96, 96), (192, 128), (256, 256), (512, 512), (576, 512))
]  # fmt: skip

FEATURES = [
    paged(f"paged/window, {phase}", "windows over pages", "R007", "R008", "R023", "R052", "R185", "R297",
          tags="smoke every", window=(5, 0), page_size=3, **sizes)
    for phase, sizes in PHASES.items()
] + [
    paged("paged/window, long", "pages left of the window are never read", "R007", tags="smoke", window=(99, 0),
          q_lens=(1, 4), kv_lens=(2000, 700), page_size=16),
    paged("paged/window, long prefill", "many queries: neither pages nor ids left of the window are read", "R007",
          tags="smoke", window=(20, 0), q_lens=(40, 90), kv_lens=(300, 650), page_size=4),
    paged("paged/window, long prefill, slot scales", "nor scales of slots left of the window", "R007", tags="smoke",
          window=(20, 0), q_lens=(40, 90), kv_lens=(300, 650), page_size=3, dtype="bfloat16", page_dtype="int8",
          k_scale="slot", v_scale="slot"),
    paged("paged/window wider than the context", "the same as none", "R031", window=(10**6, 0), **MIXED),
    paged("paged/window, both sides", "not causal, a centred window", causal=False, window=(4, 2), **MIXED),
    paged("paged/softcap", "with a soft cap", "R066", tags="smoke every", softcap=1.5, **MIXED),
    paged("paged/sinks", "with sinks", "R111", "R090", tags="smoke every", sinks=True, **MIXED),
    paged("paged/sinks without keys", "kv_len 0: out 0, lse = sink", "R142", tags="every", sinks=True, q_lens=(1, 2),
          kv_lens=(0, 4)),
    paged("paged/scale", "the scale is used as it is", "R108", scale=0.3, **MIXED),
    paged("paged/logits of -1e5", "no finite stand-in for -inf", "R103", "R154", tags="smoke every",
          values="logits -1e5",
          **MIXED),
    paged("paged/massive activations", "in bfloat16", "R154", dtype="bfloat16", values="massive", heads=(8, 2),
          widths=(128, 128), q_lens=(1, 4), kv_lens=(50, 70), page_size=16),
    paged("paged/float16 scores overflow", "q.k passes 65504", "R158", dtype="float16", values="overflow",
          widths=(64, 64), **MIXED),
    paged("paged/v of ones", "V = 1 gives 1", "R100", dtype="bfloat16", values="v ones", q_lens=(1, 3),
          kv_lens=(300, 70), page_size=16),
    paged("paged/nan query", "a NaN in q stays in its row", "R095", values="nan q", tail=0, q_lens=(1, 3),
          kv_lens=(5, 9)),
    paged("paged/everything", "window, soft cap, sinks and scales at once", tags="smoke every plain", window=(20, 0),
          softcap=3.0, sinks=True, k_scale="head", v_scale="slot", page_dtype="int8", **MIXED),
    paged("paged/batch invariant", "the flag changes no meaning", "R314", "R315", tags="every", batch_invariant=True,
          **MIXED),
    paged("paged/batch invariant, long", "with splits", "R314", batch_invariant=True, q_lens=(1, 1),
          kv_lens=(3001, 40), page_size=16),
] + [
    paged(f"paged/draft, {columns} columns", "a draft mask replaces causality among a sequence's new tokens", "R295",
          "R296", "R302", tags="smoke every plain" if columns == 4 else "", q_lens=(4, 1, 3), kv_lens=(20, 9, 3),
          draft=columns)
    for columns in (0, 1, 4, 9)
] + [
    paged("paged/draft and window", "the window still holds", "R296", draft=4, q_lens=(4, 1, 3), kv_lens=(20, 9, 3),
          window=(2, 0)),
    paged("paged/draft, long", "draft tokens over many pages", draft=8, q_lens=(8, 5), kv_lens=(300, 700), page_size=16,
          heads=(8, 2)),
    paged("paged/draft, int8", "with quantised pages and sinks", draft=4, q_lens=(4, 3), kv_lens=(20, 9),
          page_dtype="int8", k_scale="head", v_scale="head", sinks=True),
]  # fmt: skip

DTYPES = [
    paged(f"paged/{dtype}, {phase}", "every dtype in every phase", "R056",
          tags="smoke every" if phase == "mixed" else "",
          dtype=dtype, **sizes)
    for dtype in ("bfloat16", "float16", "float64") for phase, sizes in PHASES.items()
] + [
    paged(f"paged/{dtype} on {pages} pages", "q and the pages may differ in dtype", "R056", "R244", "R318", dtype=dtype,
          page_dtype=pages, **MIXED)
    for dtype, pages in (("float32", "bfloat16"), ("float32", "float16"), ("bfloat16", "float32"), ("float16",
    "bfloat16"),
                         ("bfloat16", "float16"), ("float16", "float32"))
] + [
    paged(f"paged/{dtype} on {pages} pages", "float64 goes with float64", dtype=dtype, page_dtype=pages, **DECODE)
    for dtype, pages in (("float64", "float32"), ("float32", "float64"), ("float64", "int8"))
] + [
    paged(f"paged/{pages}, scale {form}, {phase}", "scales are applied on every path", "R082", "R084", "R171", "R316",
          "R319",
          "R320", tags="smoke every" if (form, phase) in (("head", "decode"), ("slot", "mixed"), ("number",
          "prefill")) else "",
          dtype=dtype, page_dtype=pages, k_scale=form, v_scale=form, **sizes)
    for pages, dtype in (("int8", "float32"), ("float8_e4m3fn", "bfloat16"), ("float8_e5m2", "float32"))
    for form in ("number", "scalar", "one", "head", "slot") for phase, sizes in PHASES.items()
] + [
    paged(f"paged/{pages} without scales", "stored values as they are", page_dtype=pages, **MIXED)
    for pages in ("int8", "float8_e4m3fn", "float8_e5m2")
] + [
    paged(f"paged/{pages}, only {name}", "one scale without the other", page_dtype=pages, **{name: "head"}, **MIXED)
    for pages in ("int8", "float8_e4m3fn") for name in ("k_scale", "v_scale")
] + [
    paged("paged/forms of scale differ", "k by head, v by slot, two arrays", page_dtype="float8_e4m3fn", k_scale="head",
          v_scale="slot", combined=False, widths=(24, 10), **MIXED),
    paged("paged/int8, float16 queries", "float16 q on int8 pages", "R318", dtype="float16", page_dtype="int8",
          k_scale="slot", v_scale="head", **MIXED),
    paged("paged/int8, long", "quantised and split", dtype="bfloat16", page_dtype="int8", k_scale="slot",
          v_scale="slot", q_lens=(1, 2), kv_lens=(2000, 130), page_size=16),
    paged("paged/scales on float pages", "a scale is legal on any page dtype", "R082", tags="every", k_scale="head",
          v_scale="scalar", **MIXED),
]  # fmt: skip

LAYOUTS = [
    paged(f"paged/pages {order}", "page, slot and head strides are the array's own", "R053", "R054", "R168",
          combined=combined,
          tags="smoke" if order == "unbound" else "", orders=(("k_pages", order), ("v_pages", order)), **MIXED)
    for order, combined in (("unbound", False), ("interleaved", False), ("transposed", True), ("pages_last", False),
                            ("padded", True), ("columns", False), ("backwards", True))
] + [
    paged("paged/only v pages", "v pages have other strides than k pages", "R054", combined=False,
          orders=(("v_pages", "unbound"),), **MIXED),
    paged("paged/q transposed", "q is a view", orders=(("q", "transposed"),), **MIXED),
    paged("paged/int arrays strided", "the int arrays are slices", orders=(("kv_lens", "every_second"),
          ("page_indices", "columns"), ("cu_q_lens", "every_second")), **MIXED),
    paged("paged/draft mask strided", "the draft mask is a slice", draft=4, q_lens=(4, 3), kv_lens=(20, 9),
          orders=(("draft_mask", "every_second"),)),
]  # fmt: skip

APPENDS = [
    append(f"append/{phase}", "row r of a sequence goes to position kv_len - q_len + r", "R043", "R045",
           tags="smoke every", **sizes)
    for phase, sizes in PHASES.items()
] + [
    append(f"append/{dtype} to {pages}, {form}", "stored = x / scale, to nearest even, saturating", "R316", "R082",
           tags="every smoke plain" if form == "slot" else "", dtype=dtype, page_dtype=pages, k_scale=form,
           v_scale=form,
           combined=combined, **MIXED)
    for dtype, pages in (("float32", "int8"), ("bfloat16", "float8_e4m3fn"), ("float32", "float8_e5m2"), ("float16",
    "int8"))
    for form, combined in ((None, True), ("number", False), ("head", True), ("slot", False))
] + [
    append(f"append/{dtype} to {pages}", "a cast between float dtypes", "R056", dtype=dtype, page_dtype=pages, **MIXED)
    for dtype, pages in (("bfloat16", "bfloat16"), ("float16", "float16"), ("float64", "float64"), ("float32",
    "bfloat16"),
                         ("float32", "float16"), ("bfloat16", "float32"), ("float16", "bfloat16"))
] + [
    append("append/pair", "two arrays, E differs from D", tags="smoke every", combined=False, widths=(16, 5), **MIXED),
    append("append/spare rows", "rows past num_seqs and past the last start are skipped, -1 wraps nowhere", "R057",
           "R206",
           tags="smoke every plain", spare_seqs=2, lead=1, **MIXED),
    append("append/no queries", "nothing is written", q_lens=(0, 0), kv_lens=(5, 3), tail=2),
    append("append/page of 1", "a page a token", page_size=1, **MIXED),
    append("append/page of 17", "an odd page", page_size=17, **MIXED),
    append("append/strided pages", "the pages' own strides", "R053", tags="smoke", combined=False,
           orders=(("k_pages", "unbound"), ("v_pages", "transposed")), **MIXED),
    append("append/columns", "pages whose innermost axis is not dense", "R053", combined=True,
           orders=(("k_pages", "columns"),), **MIXED),
    append("append/strided rows", "k and v are slices", orders=(("k", "padded"), ("v", "transposed")), **MIXED),
    append("append/int64", "the int arrays may be int64", ints="int64", **MIXED),
]  # fmt: skip

CASES = [*BATCHES, *SIZES, *FEATURES, *DTYPES, *LAYOUTS, *APPENDS]
