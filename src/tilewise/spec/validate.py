"""Where a user's call is judged: from shapes, dtypes and options alone, before any value is looked at.

Each function returns the (spec, problem) of the call, or raises InvalidInput with every known value.
Values (lengths, page ids, starts) are judged by tilewise.check_values.
"""

from __future__ import annotations

from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.judged_call import Call, Given
from tilewise.spec.problem import PAGE_DTYPES, QUANTISED, QUERY_DTYPES, PagedProblem, Problem

INTEGERS = ("int32", "int64")


def attention(given: Given, *, framework: str, needs_grad: bool, causal: object, window: object, scale: object,
              softcap: object, layout: object) -> tuple[AttentionSpec, Problem]:  # fmt: skip
    """Judge a dense call: q [B, T, H, D], k [B, S, Hkv, D], v [B, S, Hkv, E] (or "bhtd")."""
    options = {"causal": causal, "window": window, "scale": scale, "softcap": softcap, "layout": layout}
    call = Call("attention", given, options)
    if layout not in ("bthd", "bhtd"):
        raise call.refuse(f'layout must be "bthd" or "bhtd", but is {layout!r}')
    axes = ("B T H D", "B S Hkv D", "B S Hkv E") if layout == "bthd" else ("B H T D", "B Hkv S D", "B Hkv S E")
    shapes = [call.rank(name, names) for name, names in zip("qkv", axes, strict=True)]
    if layout == "bhtd":
        shapes = [(b, t, h, d) for b, h, t, d in shapes]
    (batch, q_len, q_heads, qk_dim), (k_batch, kv_len, kv_heads, k_dim), (v_batch, v_len, v_heads, v_dim) = shapes
    _same_dtype(call)
    if not batch == k_batch == v_batch:
        raise call.refuse(f"q, k and v must have the same batch, got {batch}, {k_batch} and {v_batch}")
    if (kv_len, kv_heads) != (v_len, v_heads):
        raise call.refuse(
            f"k and v must have the same length and heads, got {kv_len} x {kv_heads} and {v_len} x {v_heads}"
        )
    if qk_dim != k_dim:
        raise call.refuse(f"q and k must have the same width, got {qk_dim} and {k_dim}{_layout_hint(layout, shapes)}")
    call.widths(qk_dim, v_dim)
    call.heads(q_heads, kv_heads)
    call.countable(q_len=q_len, kv_len=kv_len, batch=batch)
    call.sinks(q_heads)
    pairs = (batch, q_heads, q_len, kv_len)
    _pair_operand(call, "bias", pairs, QUERY_DTYPES)
    _pair_operand(call, "mask", pairs, ("bool",))
    if ("q_segment_ids" in call) != ("kv_segment_ids" in call):
        raise call.refuse("q_segment_ids and kv_segment_ids are given together or not at all")
    for name, shape in (("q_segment_ids", (batch, q_len)), ("kv_segment_ids", (batch, kv_len))):
        call.shape(name, shape, "[B, T]" if name[0] == "q" else "[B, S]")
        call.dtype(name, INTEGERS)
    for name in ("q_lens", "kv_lens"):
        call.shape(name, (batch,), "[B]")
        call.dtype(name, INTEGERS)
    device = call.same_device()
    factor = call.scale(scale, qk_dim)
    spec = AttentionSpec(
        scale=factor, window=call.window(causal, window, q_len, kv_len),
        softcap=call.softcap(softcap, factor), bias="bias" in call, mask="mask" in call, sinks="sinks" in call,
        segments="q_segment_ids" in call, q_lens="q_lens" in call, kv_lens="kv_lens" in call,
    )  # fmt: skip
    problem = Problem(
        "dense", batch, q_len, kv_len, q_heads, kv_heads, qk_dim, v_dim, call["q"].dtype, device, framework,
        layout, needs_grad, given.get("bias"), given.get("mask"),
    )  # fmt: skip
    return spec, problem


def attention_packed(given: Given, *, framework: str, needs_grad: bool, causal: object, window: object, scale: object,
                     softcap: object) -> tuple[AttentionSpec, Problem]:  # fmt: skip
    """Judge a packed call: q [tokens, H, D], k [kv_tokens, Hkv, D], v [kv_tokens, Hkv, E], starts [n + 1]."""
    options = {"causal": causal, "window": window, "scale": scale, "softcap": softcap}
    call = Call("attention_packed", given, options)
    q_len, q_heads, qk_dim = call.rank("q", "tokens H D")
    kv_len, kv_heads, k_dim = call.rank("k", "kv_tokens Hkv D")
    v_len, v_heads, v_dim = call.rank("v", "kv_tokens Hkv E")
    _same_dtype(call)
    if (kv_len, kv_heads) != (v_len, v_heads):
        raise call.refuse(
            f"k and v must have the same tokens and heads, got {kv_len} x {kv_heads} and {v_len} x {v_heads}"
        )
    if qk_dim != k_dim:
        raise call.refuse(f"q and k must have the same width, got {qk_dim} and {k_dim}")
    call.widths(qk_dim, v_dim)
    call.heads(q_heads, kv_heads)
    call.countable(tokens=q_len, kv_tokens=kv_len)
    call.sinks(q_heads)
    sizes = [call.rank(name, "n+1")[0] for name in ("q_starts", "kv_starts")]
    if sizes[0] != sizes[1] or sizes[0] < 1:
        raise call.refuse(f"q_starts and kv_starts must both have n + 1 entries, got {sizes[0]} and {sizes[1]}")
    for name in ("q_starts", "kv_starts"):
        call.dtype(name, INTEGERS)
    device = call.same_device()
    factor = call.scale(scale, qk_dim)
    spec = AttentionSpec(
        scale=factor, window=call.window(causal, window, q_len, kv_len),
        softcap=call.softcap(softcap, factor), sinks="sinks" in call,
    )  # fmt: skip
    problem = Problem(
        "packed", sizes[0] - 1, q_len, kv_len, q_heads, kv_heads, qk_dim, v_dim, call["q"].dtype, device, framework,
        needs_grad=needs_grad,
    )  # fmt: skip
    return spec, problem


def ragged_paged_attention(given: Given, *, framework: str, causal: object, window: object, scale: object,
                           softcap: object, batch_invariant: object) -> tuple[AttentionSpec, PagedProblem]:  # fmt: skip
    """Judge a paged call. `given` names: q, k_pages, v_pages (None: combined), kv_lens, page_indices, ..."""
    options = {"causal": causal, "window": window, "scale": scale, "softcap": softcap}
    call = Call("ragged_paged_attention", given, options)
    max_tokens, q_heads, qk_dim = call.rank("q", "max_tokens H D")
    call.dtype("q", QUERY_DTYPES)
    num_pages, page_size, kv_heads, k_dim, v_dim = _pages(call)
    if qk_dim != k_dim:
        raise call.refuse(f"q and the key pages must have the same width, got {qk_dim} and {k_dim}")
    call.widths(qk_dim, v_dim)
    call.heads(q_heads, kv_heads)
    call.sinks(q_heads)
    max_seqs, pages_per_seq = _page_batch(call, max_tokens, page_size)
    if not isinstance(batch_invariant, bool):
        raise call.refuse(f"batch_invariant must be True or False, but is {batch_invariant!r}")
    left, right = call.window(causal, window, max_tokens, pages_per_seq * page_size)
    max_new = 0
    if "draft_mask" in call:
        call.dtype("draft_mask", ("bool",))
        rows, max_new = call.rank("draft_mask", "max_tokens max_new")
        if rows != max_tokens:
            raise call.refuse(f"draft_mask must have a row for each of the {max_tokens} tokens, but has {rows}")
        right = None if right == 0 else right  # the draft mask takes the place of causality, however it was said
    device = call.same_device()
    factor = call.scale(scale, qk_dim)
    spec = AttentionSpec(
        scale=factor, window=(left, right), softcap=call.softcap(softcap, factor), sinks="sinks" in call,
        draft_mask="draft_mask" in call, batch_invariant=batch_invariant,
        k_scale=_page_scale(call, "k_scale", num_pages, page_size, kv_heads),
        v_scale=_page_scale(call, "v_scale", num_pages, page_size, kv_heads),
    )  # fmt: skip
    problem = PagedProblem(
        max_tokens, max_seqs, num_pages, page_size, pages_per_seq, q_heads, kv_heads, qk_dim, v_dim,
        call["q"].dtype, call["k_pages"].dtype, device, framework, "v_pages" not in call, max_new,
    )  # fmt: skip
    return spec, problem


def append_to_pages(given: Given, *, framework: str) -> tuple[AttentionSpec, PagedProblem]:
    """Judge an append: k [max_tokens, Hkv, D], v [max_tokens, Hkv, E] into pages."""
    call = Call("append_to_pages", given, {})
    max_tokens, kv_heads, qk_dim = call.rank("k", "max_tokens Hkv D")
    v_tokens, v_heads, v_dim = call.rank("v", "max_tokens Hkv E")
    call.dtype("k", QUERY_DTYPES)
    if call["k"].dtype != call["v"].dtype:
        raise call.refuse(f"k and v must have one dtype, got {call['k'].dtype} and {call['v'].dtype}")
    if (max_tokens, kv_heads) != (v_tokens, v_heads):
        raise call.refuse(f"k and v must have the same tokens and heads, got {max_tokens} x {kv_heads} and "
                          f"{v_tokens} x {v_heads}")  # fmt: skip
    num_pages, page_size, page_heads, k_dim, page_v_dim = _pages(call)
    if (page_heads, k_dim, page_v_dim) != (kv_heads, qk_dim, v_dim):
        raise call.refuse(f"the pages hold {page_heads} heads of widths {k_dim} and {page_v_dim}, but k and v have "
                          f"{kv_heads} heads of widths {qk_dim} and {v_dim}")  # fmt: skip
    call.heads(kv_heads, kv_heads)
    call.widths(qk_dim, v_dim)
    max_seqs, pages_per_seq = _page_batch(call, max_tokens, page_size)
    device = call.same_device()
    spec = AttentionSpec(
        scale=1.0,
        k_scale=_page_scale(call, "k_scale", num_pages, page_size, kv_heads),
        v_scale=_page_scale(call, "v_scale", num_pages, page_size, kv_heads),
    )  # fmt: skip
    problem = PagedProblem(
        max_tokens, max_seqs, num_pages, page_size, pages_per_seq, kv_heads, kv_heads, qk_dim, v_dim,
        call["k"].dtype, call["k_pages"].dtype, device, framework, "v_pages" not in call, form="append",
    )  # fmt: skip
    return spec, problem


def backward_arrays(name: str, problem: Problem, given: Given) -> None:
    """Judge out, dout (like the result) and lse, dlse (like its log-sum-exp) of a backward call."""
    call = Call(name, given, {})
    p = problem
    for array in ("out", "lse", "dout"):
        call[array]  # refused if absent
    for array, info in call.given.items():
        if info.device != p.device:
            raise call.refuse(f"all arrays must be on one device, but {array} is on {info.device}, not {p.device}")
    if p.form == "packed":
        out: tuple[int, ...] = (p.q_len, p.q_heads, p.v_dim)
        lse: tuple[int, ...] = (p.q_heads, p.q_len)
    else:
        rows = (p.q_len, p.q_heads) if p.layout == "bthd" else (p.q_heads, p.q_len)
        out, lse = (p.batch, *rows, p.v_dim), (p.batch, p.q_heads, p.q_len)
    for array in ("out", "dout"):
        call.shape(array, out, "like the result")
        call.dtype(array, (p.dtype,))
    for array in ("lse", "dlse"):
        call.shape(array, lse, "like the log-sum-exp")
        call.dtype(array, (p.real,))


def _same_dtype(call: Call) -> None:
    dtypes = [call[name].dtype for name in "qkv"]
    for name, dtype in zip("qkv", dtypes, strict=True):
        if dtype in QUANTISED:
            raise call.refuse(f"{name} is {dtype}: 8-bit keys and values are for pages (ragged_paged_attention) only")
    call.dtype("q", QUERY_DTYPES)
    if len(set(dtypes)) != 1:
        raise call.refuse(f"q, k and v must have one dtype, got {', '.join(dtypes)}")


def _layout_hint(layout: object, shapes: list[tuple[int, ...]]) -> str:
    other = "bhtd" if layout == "bthd" else "bthd"
    return f' (is the layout "{other}"?)' if shapes[0][1:] != shapes[1][1:] else ""


def _pair_operand(call: Call, name: str, full: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
    if name not in call:
        return
    dtype = call[name].dtype
    if dtype not in dtypes:
        hint = ""
        if name == "bias" and dtype == "bool":
            hint = "; a bool array is a mask: pass it as mask"
        elif name == "mask":
            hint = "; a float array is additive: pass it as bias" if dtype in QUERY_DTYPES else "; pass mask != 0"
        raise call.refuse(f"{name} must be of dtype {' or '.join(dtypes)}, but is {dtype}{hint}")
    shape = call.rank(name, "B|1 H|1 T|1 S|1")
    if any(size not in (1, whole) for size, whole in zip(shape, full, strict=True)):
        raise call.refuse(f"{name} must broadcast to [B, H, T, S] = {list(full)}, but is {list(shape)}")


def _pages(call: Call) -> tuple[int, int, int, int, int]:
    """(num_pages, page_size, kv_heads, D, E) of either page form."""
    call.dtype("k_pages", PAGE_DTYPES)
    if "v_pages" not in call:
        num_pages, page_size, combined, k_dim = call.rank("k_pages", "num_pages page_size 2*Hkv D")
        if combined % 2:
            raise call.refuse(f"kv_pages has K at even and V at odd heads, but {combined} heads is an odd number")
        kv_heads, v_dim = combined // 2, k_dim
    else:
        num_pages, page_size, kv_heads, k_dim = call.rank("k_pages", "num_pages page_size Hkv D")
        *others, v_dim = call.rank("v_pages", "num_pages page_size Hkv E")
        if tuple(others) != (num_pages, page_size, kv_heads):
            raise call.refuse(f"k_pages and v_pages must agree but for their widths, got "
                              f"{list(call['k_pages'].shape)} and {list(call['v_pages'].shape)}")  # fmt: skip
        if call["v_pages"].dtype != call["k_pages"].dtype:
            raise call.refuse(f"k_pages and v_pages must have one dtype, got {call['k_pages'].dtype} and "
                              f"{call['v_pages'].dtype}")  # fmt: skip
    if page_size < 1:
        raise call.refuse(f"page_size must be at least 1, but is {page_size}")
    return num_pages, page_size, kv_heads, k_dim, v_dim


def _page_batch(call: Call, max_tokens: int, page_size: int) -> tuple[int, int]:
    """(max_seqs, pages_per_seq) of the four int32 arrays."""
    (max_seqs,) = call.rank("kv_lens", "max_seqs")
    rows, pages_per_seq = call.rank("page_indices", "max_seqs pages_per_seq")
    if rows != max_seqs:
        raise call.refuse(f"page_indices must have a row a sequence: {rows} rows for {max_seqs} kv_lens")
    call.shape("cu_q_lens", (max_seqs + 1,), "[max_seqs + 1]")
    if "num_seqs" in call and call["num_seqs"].shape not in ((1,), ()):
        raise call.refuse(f"num_seqs must be [1], but is {list(call['num_seqs'].shape)}")
    for name in ("kv_lens", "page_indices", "cu_q_lens", "num_seqs"):
        call.dtype(name, INTEGERS)
    call.countable(max_tokens=max_tokens, context=pages_per_seq * page_size)
    return max_seqs, pages_per_seq


def _page_scale(call: Call, name: str, num_pages: int, page_size: int, kv_heads: int) -> str:
    """Which form a scale has: none, scalar, head, slot."""
    if name not in call:
        return "none"
    call.dtype(name, QUERY_DTYPES)
    shape = call[name].shape
    forms = {(): "scalar", (1,): "scalar", (kv_heads,): "head", (num_pages, page_size, kv_heads): "slot"}
    if shape not in forms:
        raise call.refuse(
            f"{name} must be a scalar, [Hkv] = [{kv_heads}] or [N, P, Hkv] = [{num_pages}, {page_size}, {kv_heads}], "
            f"but is {list(shape)}"
        )
    return forms[shape]
