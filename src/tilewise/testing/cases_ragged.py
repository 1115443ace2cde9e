"""Cases of packed attention and of merge()."""

from __future__ import annotations

from typing import Any

from tilewise.testing.case import MergeCase, PackedCase


def packed(name: str, says: str, *reports: str, tags: str = "", **fields: Any) -> PackedCase:
    """A case of attention_packed()."""
    return PackedCase(name=name, says=says, reports=reports, tags=frozenset(tags.split()), **fields)


def merge(name: str, says: str, *reports: str, tags: str = "", **fields: Any) -> MergeCase:
    """A case of merge()."""
    return MergeCase(name=name, says=says, reports=reports, tags=frozenset(tags.split()), **fields)


PACKED = [
    packed("packed/self", "each sequence sees itself; lse is [H, tokens]", "R030", "R265", "R266", tags="smoke every",
           q_lens=(3, 5, 1), kv_lens=(3, 5, 1),
           causal=True),
    packed("packed/longer keys", "the last query of each sequence stands at its last key", "R001",
           tags="smoke every plain",
           q_lens=(1, 2, 3), kv_lens=(7, 2, 9), causal=True),
    packed("packed/more queries than keys", "rows without keys get 0, their gradients too", "R140", tags="smoke",
           q_lens=(76, 34, 46), kv_lens=(1, 1, 1), heads=(1, 1), widths=(32, 32), dtype="float16", causal=True),
    packed("packed/no queries", "sequences without queries: their keys get gradient 0", "R167", "R252",
           tags="smoke every",
           q_lens=(0, 12, 8, 0), kv_lens=(5, 17, 8, 30), heads=(4, 1), causal=True),
    packed("packed/empty in the middle", "zero-length sequences are legal", "R252", q_lens=(15, 0, 15),
           kv_lens=(10, 10, 10)),
    packed("packed/no keys", "sequences without keys", "R140", "R173", q_lens=(3, 4, 2), kv_lens=(5, 0, 3),
           causal=True),
    packed("packed/ends early", "tokens past the last start are no sequence's: zeros, no NaN", "R139", "R167",
           tags="smoke every plain", q_lens=(3, 5), kv_lens=(3, 5), tail=2, causal=True),
    packed("packed/starts late", "tokens before the first start are no sequence's", tags="smoke every", q_lens=(3, 5),
           kv_lens=(4, 4), lead=3, tail=2),
    packed("packed/unowned rows and sinks", "rows of no sequence have no sink", "R139", tags="every", q_lens=(3, 5),
           kv_lens=(4, 0), lead=1, tail=2, sinks=True),
    packed("packed/no sequences", "n = 0", "R184", q_lens=(), kv_lens=(), tail=4),
    packed("packed/no tokens", "sequences, but no token", "R183", "R175", q_lens=(0, 0), kv_lens=(0, 0)),
    packed("packed/one", "one sequence is a dense call", q_lens=(9,), kv_lens=(12,), causal=True),
    packed("packed/many small", "hundreds of sequences of a few tokens", "R184", q_lens=(1, 2, 0, 3) * 60,
           kv_lens=(2, 2, 1, 0) * 60, heads=(2, 1), widths=(8, 8), causal=True),
    packed("packed/window", "windows within sequences", tags="every", q_lens=(5, 9), kv_lens=(8, 9), window=(2, 1)),
    packed("packed/softcap", "with a soft cap", "R067", "R227", dtype="bfloat16", q_lens=(28, 17), kv_lens=(28, 17),
           softcap=15.0, widths=(128, 128), causal=True),
    packed("packed/sinks", "with sinks", "R068", tags="smoke", q_lens=(5, 7), kv_lens=(2, 9), sinks=True, causal=True),
    packed("packed/across tiles", "sequences that end within tiles", "R141", tags="smoke", q_lens=(65, 1, 130),
           kv_lens=(65, 257, 131), heads=(2, 1), causal=True),
    packed("packed/bfloat16", "in bfloat16", tags="every", dtype="bfloat16", q_lens=(20, 33), kv_lens=(20, 40),
           causal=True),
    packed("packed/float16", "in float16", dtype="float16", q_lens=(20, 33), kv_lens=(20, 40)),
    packed("packed/float64", "in float64", tags="every", dtype="float64", q_lens=(5, 3), kv_lens=(5, 4), causal=True),
    packed("packed/wide values", "E differs from D", "R069", widths=(24, 10), q_lens=(5, 3), kv_lens=(5, 4)),
    packed("packed/group of 5", "any group", "R229", heads=(10, 2), q_lens=(5, 3), kv_lens=(5, 4), causal=True),
    packed("packed/int64", "starts may be int64", ints="int64", causal=True),
    packed("packed/nan of a neighbour", "a NaN stays within its sequence", tags="smoke", values="nan first v",
           q_lens=(5, 7), kv_lens=(5, 9)),
    packed("packed/logits of -1e5", "a shift of all logits changes nothing", "R103", values="logits -1e5",
           q_lens=(5, 7), kv_lens=(5, 9), causal=True),
    packed("packed/transposed", "[tokens, H, D] as a view of [H, tokens, D]", "R035", tags="smoke",
           orders=(("*", "transposed"),), q_lens=(5, 7), kv_lens=(5, 9), causal=True),
    packed("packed/interleaved", "k and v are slices of one array", orders=(("k", "interleaved"), ("v", "interleaved")),
           q_lens=(5, 7), kv_lens=(5, 9)),
    packed("packed/columns", "the innermost axis is not dense", orders=(("*", "columns"),)),
    packed("packed/dout of one number", "dout is an expanded scalar", "R181", orders=(("dout", "scalar"),)),
]  # fmt: skip

MERGES = [
    merge("merge/two", "parts of the keys, put together", "R113", "R114", "R115", "R116", tags="smoke every plain"),
    merge("merge/five", "any number of parts", states=("normal",) * 5),
    merge("merge/one", "a single state is itself", tags="every", states=("normal",)),
    merge("merge/empty first", "a state with lse -inf is the identity, whatever its out holds", "R118",
          tags="smoke every",
          states=("empty", "normal")),
    merge("merge/empty last", "on either side", states=("normal", "empty")),
    merge("merge/all empty", "no NaN: out 0, lse -inf", "R119", "R004", tags="every", states=("empty", "empty",
          "empty")),
    merge("merge/some empty", "rows may be empty in one state only", "R118", tags="every plain",
          states=("some empty", "some empty", "normal", "some empty")),
    merge("merge/far apart", "no overflow at a gap of 200", "R121", tags="every", states=("normal", "far above")),
    merge("merge/further apart", "nor at 1e5", "R121", "R122", states=("huge", "far below", "normal")),
    merge("merge/infinite", "lse +inf outweighs all finite ones, without NaN", "R119", states=("normal", "infinite")),
    merge("merge/tokens", "[tokens, H, E] with [H, tokens]", tags="every", batch=None),
    merge("merge/bfloat16", "out in bfloat16, lse in float32", tags="smoke every", dtype="bfloat16",
          states=("normal", "some empty", "far above")),
    merge("merge/float16", "out in float16", dtype="float16"),
    merge("merge/float64", "float64 throughout", tags="every", dtype="float64"),
    merge("merge/transposed", "outs are views", states=("normal", "some empty"), orders=(("out", "transposed"),)),
    merge("merge/odd width", "a width that is no vector", widths=(8, 5)),
    merge("merge/no rows", "nothing to merge", q_len=0),
]  # fmt: skip

CASES = [*PACKED, *MERGES]
