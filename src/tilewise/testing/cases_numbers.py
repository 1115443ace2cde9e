"""Cases of dense attention that show its numbers: sizes, heads, widths, dtypes, values, soft cap, memory layouts."""

from __future__ import annotations

from tilewise.testing.cases_meaning import dense

HEADS = [
    dense(f"heads/{q}_{kv}", "query head h reads kv head h // (H / Hkv); any group size", *reports,
          tags="smoke" if q in (8, 3, 48) else "", heads=(q, kv), q_len=5, kv_len=11, causal=True)
    for q, kv, reports in (
        (1, 1, ()), (8, 8, ("R060",)), (2, 1, ()), (8, 2, ("R062", "R063", "R069")), (4, 2, ("R062",)),
        (3, 1, ("R228",)), (9, 3, ("R061", "R228")), (10, 2, ("R192", "R229")), (12, 2, ("R231",)), (14, 2, ("R229",)),
        (16, 2, ("R061",)), (24, 2, ("R217",)), (32, 2, ("R230",)), (48, 1, ("R193",)), (48, 2, ("R064",)),
        (40, 2, ("R064",)), (5, 5, ("R060",)),
    )
] + [
    dense("heads/grouped gradients", "gradients of k and v sum over the group in float32", "R069", tags="smoke every",
          dtype="bfloat16", heads=(16, 2), q_len=40, kv_len=40, causal=True),
    dense("heads/one query, any group", "heads are packed into one tile only within a group", "R064", "R200",
          heads=(14, 2), q_len=1, kv_len=70),
]  # fmt: skip

WIDTHS = [
    dense(f"widths/{d}", "any head_dim, with the default scale of the caller's own", "R109", "R187", *reports,
          tags="smoke" if d in (5, 80) else "", heads=(2, 1), widths=(d, d), q_len=6, kv_len=37)
    for d, reports in (
        (1, ()), (2, ("R162",)), (3, ()), (4, ("R187",)), (5, ()), (7, ()), (17, ()), (31, ()), (32, ()), (33, ()),
        (48, ("R163",)), (64, ("R237", "R238")), (80, ("R194", "R240")), (96, ()), (128, ("R092",)), (192, ("R216",
        "R310")),
        (256, ("R098", "R241")), (512, ("R110", "R212", "R308")),
    )
] + [
    dense(f"widths/{d} and {e}", "E of v differs from D of q and k", "R069", *reports,
          tags="every smoke" if (d, e) == (12, 5) else "", heads=(4, 2), widths=(d, e), q_len=6, kv_len=19, causal=True)
    for d, e, reports in (
        (12, 5, ()), (1, 17, ()), (17, 1, ()), (192, 128, ("R237", "R310")), (128, 144, ("R161",)), (64, 128, ("R236",
        )),
        (576, 512, ("R309",)), (3, 80, ()),
    )
] + [
    dense("widths/80, bfloat16", "an odd width in bfloat16", "R240", dtype="bfloat16", widths=(80, 80), kv_len=70),
    dense("widths/5, bfloat16", "a width that is no pair", "R187", dtype="bfloat16", widths=(5, 3), kv_len=70),
    dense("widths/17, float16", "an odd width in float16", dtype="float16", widths=(17, 17), kv_len=70),
    dense("widths/33, float64", "an odd width in float64", dtype="float64", widths=(33, 7), kv_len=70),
]  # fmt: skip

SIZES = [
    dense(f"sizes/{q}x{kv}", "any length, at the edges of tiles too", "R099", "R180", *reports,
          tags="smoke" if (q, kv) in ((65, 63), (3, 257)) else "", batch=1, heads=(2, 1), widths=(8, 8), q_len=q,
          kv_len=kv, causal=causal)
    for q, kv, causal, reports in (
        (1, 1, True, ()), (1, 97, False, ("R134",)), (1, 128, False, ("R134",)), (8, 70, False, ("R046",)),
        (63, 64, True, ()), (64, 64, True, ()), (65, 63, True, ("R151",)), (65, 65, False, ()), (95, 97, True, ()),
        (96, 96, True, ()), (97, 95, False, ()), (127, 129, True, ("R148",)), (191, 193, True, ()),
        (255, 256, True, ()), (256, 255, False, ()), (257, 257, True, ("R148",)), (3, 256, False, ("R048",)),
        (3, 257, False, ("R048",)), (2, 511, True, ()), (2, 513, False, ()), (4, 1023, True, ("R055", "R150")),
        (4, 1024, True, ("R055", "R150")), (4, 1025, True, ("R055", "R150")), (1, 2049, False, ("R045",)),
        (600, 5, False, ()),
    )
] + [
    dense(f"sizes/{dtype}", "tile edges in 16 bits", "R070", "R148", "R255", tags="smoke", dtype=dtype, batch=1,
          heads=(2, 1), q_len=99, kv_len=259, widths=(16, 24), causal=True)
    for dtype in ("bfloat16", "float16")
] + [
    dense("sizes/batch of 65536", "the batch axis has no limit of a device", "R178", tags="long", batch=65536,
          heads=(2, 1), widths=(4, 4), q_len=2, kv_len=3),
    dense("sizes/batch of 3000", "many small sequences", "R178", batch=3000, heads=(1, 1), widths=(4, 4), q_len=2,
          kv_len=3, causal=True),
    dense("sizes/long context", "a context of 65 k keys", "R201", "R239", tags="long", batch=1, heads=(1, 1),
          widths=(8, 8), q_len=2, kv_len=70001),
    dense("sizes/long square", "many tiles both ways", tags="long", batch=1, heads=(2, 1), widths=(64, 64), q_len=1100,
          kv_len=1100, causal=True),
]  # fmt: skip

DTYPES = [
    dense(f"dtypes/{dtype}{name}", "out in q's dtype, gradients in their input's, accumulation wider", "R074", "R101",
          "R270",
          tags="smoke every", dtype=dtype, q_len=33, kv_len=41, **fields)
    for dtype in ("float32", "bfloat16", "float16", "float64")
    for name, fields in (("", {}), (" with everything", {"window": (20, 2), "softcap": 4.0, "bias": "1hts",
    "sinks": True,
                                                         "mask": "b1ts", "segments": "documents"}))
]  # fmt: skip

VALUES = [
    dense("values/constant 1000", "large equal logits give finite gradients", "R146", "R147", tags="smoke every",
          values="constant 1000"),
    dense("values/constant 10000", "larger ones too", "R146", values="constant 10000", q_len=50, kv_len=50),
    dense("values/ones", "all ones, lengths that are no multiple of a block", "R151", values="ones", q_len=137,
          kv_len=129, batch=1, heads=(1, 1), causal=True),
    dense("values/v of ones, bfloat16", "V = 1 gives 1: the row sum is that of the weights used", "R100",
          tags="smoke every", dtype="bfloat16", values="v ones", kv_len=300, widths=(32, 32)),
    dense("values/v of ones, float16", "V = 1 gives 1", "R100", dtype="float16", values="v ones", kv_len=300),
    dense("values/v of ones, float32", "V = 1 gives 1", "R100", values="v ones", kv_len=300),
    dense("values/q of zeros", "the mean of the visible rows of v", "R048", "R097", values="q zero", kv_len=259),
    dense("values/scale 0", "scale 0 is legal: the mean of v", "R273", "R097", tags="every", scale=0.0),
    dense("values/scale below 0", "a negative scale is plain softmax(scale * qk)", "R107", scale=-0.7),
    dense("values/scale given", "the scale is used as it is", "R108", tags="every", scale=1.0),
    dense("values/scale in float32", "the scale is not rounded to 16 bits", "R112", dtype="bfloat16", scale=0.1234567,
          q_len=32, kv_len=32, heads=(8, 2), widths=(128, 128)),
    dense("values/logits of -1e5", "a shift of all logits changes nothing: no finite stand-in for -inf", "R103", "R154",
          tags="smoke every", values="logits -1e5", causal=True),
    dense("values/logits of 1e5", "the same upwards", "R137", values="logits 1e5", causal=True),
    dense("values/logits of -1e5, bfloat16", "in bfloat16", "R154", tags="smoke", dtype="bfloat16",
          values="logits -1e5", causal=True, kv_len=70),
    dense("values/logits of -1e5, mask", "a masked key never beats a visible one", "R154", values="logits -1e5",
          mask="b1ts"),
    dense("values/logits of -200", "lse far below -88: exp(0 - lse) of padded keys must not enter", "R134", "R151",
          tags="smoke every", q_len=1, kv_len=128, values="logits -200"),
    dense("values/massive activations", "one channel of 448 and -1880", "R154", dtype="bfloat16", values="massive",
          heads=(8, 2), widths=(128, 128), causal=True),
    dense("values/float16 scores overflow", "q.k passes 65504 before it is scaled", "R158", "R159", tags="smoke every",
          dtype="float16", values="overflow", widths=(64, 64)),
    dense("values/correlated", "activations are not random normal", "R079", tags="smoke", dtype="bfloat16",
          values="correlated", heads=(16, 2), widths=(64, 64), q_len=40, kv_len=40, causal=True),
    dense("values/correlated, wide", "head_dim 256, batch 2", "R079", dtype="bfloat16", values="correlated",
          heads=(16, 2), widths=(256, 256), q_len=20, kv_len=20, causal=True),
    dense("values/far apart", "most weights underflow", values="far apart", q_len=30, kv_len=300, heads=(2, 1)),
    dense("values/rising", "every block rescales what came before", tags="smoke", values="rising", kv_len=900,
          heads=(2, 1)),
    dense("values/rising, bfloat16", "in bfloat16", values="rising", kv_len=900, heads=(2, 1), dtype="bfloat16"),
    dense("values/negative", "all logits far below 0", tags="smoke", values="negative", kv_len=300, heads=(2, 1)),
    dense("values/negative, window", "the first visited tile is masked for some rows", values="negative", q_len=100,
          kv_len=300, heads=(2, 1), window=(50, 0)),
]  # fmt: skip

SOFTCAPS = [
    dense("softcap/plain", "c * tanh(scale * qk / c), with 1 - tanh^2 in the gradients", "R066", "R227",
          tags="smoke every plain", softcap=1.5),
    dense("softcap/causal", "hidden pairs stay hidden", "R066", "R165", softcap=10.0, causal=True, q_len=70, kv_len=70,
          heads=(4, 1)),
    dense("softcap/large logits", "no overflow at any finite logit", tags="smoke", softcap=30.0, values="logits 1e5"),
    dense("softcap/large negative logits", "nor below", softcap=30.0, values="logits -1e5"),
    dense("softcap/before the bias", "the bias is not capped", tags="every", softcap=0.7, bias="1hts"),
    dense("softcap/small", "all logits saturate", softcap=1e-3),
    dense("softcap/huge", "a huge cap is none", softcap=1e30),
    dense("softcap/bfloat16", "in bfloat16, D 128", "R067", dtype="bfloat16", softcap=15.0, widths=(128, 128), q_len=40,
          kv_len=70, causal=True),
    dense("softcap/float64", "in float64", dtype="float64", softcap=2.0, causal=True),
    dense("softcap/float16", "in float16", dtype="float16", softcap=2.0, window=(5, 0)),
]  # fmt: skip

LAYOUTS = [
    dense("layout/bhtd", "[B, H, T, D] by name", "R248", "R256", "R267", tags="smoke every plain", layout="bhtd",
          causal=True),
    dense("layout/bhtd, transposed", "[B, H, T, D] as a view of [B, T, H, D]", layout="bhtd", causal=True,
          orders=(("*", "transposed"),)),
    dense("layout/only v", "v is a transposed view, q and k are not", "R035", "R036", "R077", tags="smoke every",
          orders=(("v", "transposed"),), widths=(16, 12)),
    dense("layout/only k", "k is a transposed view", "R034", orders=(("k", "transposed"),)),
    dense("layout/only q", "q is a transposed view", "R034", orders=(("q", "transposed"),), causal=True),
    dense("layout/only dout", "dout has its own strides", "R072", "R078", "R207", tags="smoke",
          orders=(("dout", "transposed"),)),
    dense("layout/dout of one number", "dout is an expanded scalar", "R181", tags="smoke every",
          orders=(("dout", "scalar"),)),
    dense("layout/all", "everything transposed", tags="every", orders=(("*", "transposed"),)),
    dense("layout/columns", "the innermost axis is not dense", "R038", "R162", tags="smoke every",
          orders=(("q", "columns"), ("k", "columns"))),
    dense("layout/columns of v", "of v and dout", "R038", orders=(("v", "columns"), ("dout", "columns"))),
    dense("layout/every second", "last stride 2", "R038", orders=(("*", "every_second"),)),
    dense("layout/padded", "rows further apart than they are long", tags="smoke", orders=(("*", "padded"),),
          widths=(13, 9)),
    dense("layout/interleaved", "K and V heads take turns in one buffer", "R054", tags="smoke",
          orders=(("k", "interleaved"), ("v", "interleaved"))),
    dense("layout/expanded heads", "kv heads of stride 0", "R035", values="equal heads", heads=(4, 4),
          orders=(("k", "expanded"), ("v", "expanded"))),
    dense("layout/backwards", "a negative token stride", orders=(("*", "backwards"),)),
    dense("layout/last backwards", "a negative innermost stride", orders=(("*", "last_backwards"),)),
    dense("layout/unaligned", "addresses that are no multiple of the element", orders=(("*", "unaligned"),)),
    dense("layout/one of each", "every array its own strides", tags="smoke", widths=(16, 16), dtype="bfloat16",
          orders=(("q", "transposed"), ("k", "padded"), ("v", "interleaved"), ("dout", "columns"))),
    dense("layout/size 1", "odd strides of axes of size 1", "R162", batch=1, heads=(1, 1), q_len=1, kv_len=1,
          widths=(2, 2), orders=(("*", "every_second"),)),
    dense("layout/float64", "strides in float64", dtype="float64", orders=(("*", "transposed"),)),
]  # fmt: skip

CASES = [*HEADS, *WIDTHS, *SIZES, *DTYPES, *VALUES, *SOFTCAPS, *LAYOUTS]
