"""The arrays of a case: what may not be looked at holds NaN, infinity or nonsense, and guard bytes stand around it."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tilewise.frameworks.numpy_adapter import DTYPES, adapter
from tilewise.spec import reference, validate
from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import Operands, Problem, real_dtype
from tilewise.testing import values
from tilewise.testing.buffers import Buffers
from tilewise.testing.case import Case, DenseCase, MergeCase, PackedCase, PagedCase

POISON = (np.nan, np.inf, -np.inf, 3e38)


@dataclass
class Inputs:
    """A case's arrays, by their names in the call, in NumPy.

    Attributes:
        arrays: arguments of the forward call; dout and dlse of the backward one are in `cotangents`.
        spec, problem: the call as planning sees it.
        sees: bool [B, T, H]: rows that see a key. seen: bool [B, S, Hkv]: keys that a row sees.
    """

    arrays: dict[str, Any]
    options: dict[str, Any]
    buffers: Buffers
    spec: AttentionSpec
    problem: Any  # Problem | PagedProblem, by the form of the case
    cotangents: dict[str, np.ndarray] = field(default_factory=dict)
    sees: np.ndarray | None = None
    seen: np.ndarray | None = None


def random_of(case: Case) -> np.random.Generator:
    """The case's own random numbers."""
    return np.random.default_rng(zlib.crc32(case.name.encode()))


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """float64 -> dtype, quietly."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(x).astype(DTYPES[dtype])


def poison(x: np.ndarray, where: np.ndarray) -> None:
    """Put NaN, +inf, -inf and 3e38 in turn where `where`, which broadcasts to x from the left, is true."""
    where = np.broadcast_to(where.reshape(where.shape + (1,) * (x.ndim - where.ndim)), x.shape)
    x[where] = np.resize(np.array(POISON), int(where.sum()))


def make(case: Case, fenced: bool = False, poisoned: bool = True) -> Inputs:
    """The arrays of a case; the same at every call. `poisoned=False`: zeros where nothing may look."""
    buffers = Buffers(fenced)
    if isinstance(case, DenseCase):
        return _dense(case, buffers, poisoned)
    if isinstance(case, PackedCase):
        return _packed(case, buffers, poisoned)
    if isinstance(case, MergeCase):
        return _merge(case, buffers)
    from tilewise.testing import inputs_paged

    assert isinstance(case, PagedCase)
    return inputs_paged.make(case, buffers, poisoned)


def scale_of(case: Case) -> float:
    """The factor on q.k, for those who fill values; 1 where it is 0."""
    return (1.0 / math.sqrt(case.widths[0]) if case.scale is None else case.scale) or 1.0


def tokens(case: Case, batch: int, q_len: int, kv_len: int, random: np.random.Generator) -> values.Tokens:
    """q, k and v in [B, T, H, D] and float64."""
    (heads, kv_heads), (qk_dim, v_dim) = case.heads, case.widths
    x = values.normal(random, (batch, q_len, heads, qk_dim), (batch, kv_len, kv_heads, qk_dim),
                      (batch, kv_len, kv_heads, v_dim), scale_of(case))  # fmt: skip
    if q_len and kv_len and batch:
        values.VALUES[case.values](random, x)
    return x


def _dense(case: DenseCase, buffers: Buffers, poisoned: bool) -> Inputs:
    random = random_of(case)
    x = tokens(case, case.batch, case.q_len, case.kv_len, random)
    sizes = {"b": case.batch, "h": case.heads[0], "t": case.q_len, "s": case.kv_len}
    arrays: dict[str, Any] = {"q": x.q, "k": x.k, "v": x.v}
    if case.bias is not None:
        shape = tuple(sizes.get(axis, 1) for axis in case.bias)
        arrays["bias"] = values.BIASES[case.bias_values](random, shape)
    if case.mask is not None:
        arrays["mask"] = values.MASKS[case.mask_values](random, tuple(sizes.get(axis, 1) for axis in case.mask))
    if case.sinks:
        arrays["sinks"] = random.standard_normal(case.heads[0])
    if case.segments is not None:
        draw = partial(values.SEGMENTS[case.segments], random, case.batch)
        arrays.update(q_segment_ids=draw(case.q_len), kv_segment_ids=draw(case.kv_len))
    for name in ("q_lens", "kv_lens"):
        if getattr(case, name) is not None:
            arrays[name] = np.array(getattr(case, name))
    ints = ("q_segment_ids", "kv_segment_ids", "q_lens", "kv_lens")
    arrays.update({name: arrays[name].astype(case.ints) for name in ints if name in arrays})

    judge = partial(validate.attention, framework="numpy", needs_grad=True, **case.options())
    spec, problem, sees, seen = _look(case, judge, arrays)
    cotangents = _cotangents(case, random, sees)
    _hide(x, cotangents, sees, seen, poisoned)
    if "bias" in arrays and poisoned:
        _hide_bias(arrays["bias"], spec, problem, arrays)

    def store(name: str, array: np.ndarray, dtype: str) -> np.ndarray:
        if array.ndim == 4 and case.layout == "bhtd" and name not in ("bias", "mask"):
            array = array.swapaxes(1, 2)
        return buffers.place(name, rounded(array, dtype), case.order(name))

    return _stored(case, arrays, cotangents, store, buffers, spec, problem, sees, seen)


def _packed(case: PackedCase, buffers: Buffers, poisoned: bool) -> Inputs:
    random = random_of(case)
    q_starts, kv_starts = (case.lead + np.cumsum([0, *lens]) for lens in (case.q_lens, case.kv_lens))
    x = tokens(case, 1, int(q_starts[-1]) + case.tail, int(kv_starts[-1]) + case.tail, random)
    arrays: dict[str, Any] = {"q": x.q[0], "k": x.k[0], "v": x.v[0]}
    arrays.update(q_starts=q_starts.astype(case.ints), kv_starts=kv_starts.astype(case.ints))
    if case.sinks:
        arrays["sinks"] = random.standard_normal(case.heads[0])
    judge = partial(validate.attention_packed, framework="numpy", needs_grad=True, **case.options())
    spec, problem, sees, seen = _look(case, judge, arrays)
    cotangents = {name: x[0] for name, x in _cotangents(case, random, sees).items()}
    lifted = {"dout": cotangents["dout"][None], "dlse": cotangents["dlse"][None]}
    _hide(x, lifted, sees, seen, poisoned)

    def store(name: str, array: np.ndarray, dtype: str) -> np.ndarray:
        return buffers.place(name, rounded(array, dtype), case.order(name))

    return _stored(case, arrays, cotangents, store, buffers, spec, problem, sees, seen)


def _look(case: Case, judge: Any, arrays: dict[str, Any]) -> tuple[AttentionSpec, Any, np.ndarray, np.ndarray]:
    """(spec, problem, rows that see a key [B, T, H], keys that are seen [B, S, Hkv])."""
    layout = getattr(case, "layout", "bthd")
    turned = {name: x.swapaxes(1, 2) if name in "qkv" and layout == "bhtd" else x for name, x in arrays.items()}
    dtypes = {"q": case.dtype, "k": case.dtype, "v": case.dtype, "bias": getattr(case, "bias_dtype", "float32")}
    dtypes["sinks"] = real_dtype(case.dtype)
    given = {name: adapter.info(name, x) for name, x in turned.items()}
    given = {name: info._replace(dtype=dtypes.get(name, info.dtype)) for name, info in given.items()}
    spec, problem = judge(given)
    visible, _ = reference.visibility(adapter.namespace, spec, problem, Operands(**arrays))
    kv_heads, group = case.heads[1], case.heads[0] // case.heads[1]
    full = np.broadcast_to(visible, (problem.batch if problem.form == "dense" else 1, kv_heads, group,
                                     problem.q_len, problem.kv_len))  # fmt: skip
    sees = np.any(full, -1).reshape(full.shape[0], case.heads[0], problem.q_len).swapaxes(1, 2)
    seen = np.asarray(full.any((2, 3))).swapaxes(1, 2)
    return spec, problem, sees, seen


def _cotangents(case: Case, random: np.random.Generator, sees: np.ndarray) -> dict[str, np.ndarray]:
    batch, rows, heads = sees.shape
    dout, dlse = random.standard_normal((batch, rows, heads, case.widths[1])), random.standard_normal(sees.shape)
    if case.order("dout") == "scalar":
        dout[...] = 1.0
    return {"dout": dout, "dlse": dlse.swapaxes(1, 2)}


def _hide(x: values.Tokens, cotangents: dict[str, np.ndarray], sees: np.ndarray, seen: np.ndarray,
          poisoned: bool) -> None:  # fmt: skip
    """Rows that see nothing and keys that nobody sees hold poison (or zeros)."""
    targets = [(x.q, ~sees), (x.k, ~seen), (x.v, ~seen), (cotangents["dout"], ~sees)]
    for array, where in targets:
        poison(array, where) if poisoned else array.__setitem__(where, 0.0)


def _hide_bias(bias: np.ndarray, spec: AttentionSpec, problem: Problem, arrays: dict[str, Any]) -> None:
    """A bias entry that no visible pair reads holds poison."""
    visible, _ = reference.visibility(adapter.namespace, spec, problem, Operands(**arrays))
    shape = (problem.batch, problem.kv_heads, problem.group, problem.q_len, problem.kv_len)
    used = np.broadcast_to(visible, shape).reshape(shape[0], problem.q_heads, *shape[3:])
    axes = tuple(axis for axis in range(4) if bias.shape[axis] == 1)
    poison(bias, ~np.asarray(used.any(axes, keepdims=True)))


def _stored(case: Case, arrays: dict[str, Any], cotangents: dict[str, np.ndarray], store: Any, buffers: Buffers,
            spec: AttentionSpec, problem: Problem, sees: np.ndarray, seen: np.ndarray) -> Inputs:  # fmt: skip
    dtypes = {"q": case.dtype, "k": case.dtype, "v": case.dtype, "dout": case.dtype, "dlse": real_dtype(case.dtype)}
    dtypes.update(bias=getattr(case, "bias_dtype", "float32"), sinks=real_dtype(case.dtype))
    placed = {name: store(name, x, dtypes.get(name, x.dtype.name)) for name, x in arrays.items()}
    given = {name: store(name, x, dtypes[name]) if name == "dout" else buffers.place(name, rounded(x, dtypes[name]))
             for name, x in cotangents.items()}  # fmt: skip
    return Inputs(placed, case.options(), buffers, spec, problem, given, sees, seen)


def _merge(case: MergeCase, buffers: Buffers) -> Inputs:
    random = random_of(case)
    rows = (case.q_len, case.heads[0])
    batch = () if case.batch is None else (case.batch,)
    states = []
    for i, kind in enumerate(case.states):
        out = random.standard_normal((*batch, *rows, case.widths[1]))
        lse = random.standard_normal((*batch, *rows[::-1]))
        values.STATES[kind](random, lse)
        poison(out, lse.swapaxes(-1, -2) == -np.inf)
        states.append((
            buffers.place(f"out {i}", rounded(out, case.dtype), case.order("out")),
            buffers.place(f"lse {i}", rounded(lse, real_dtype(case.dtype))),
        ))  # fmt: skip
    problem = Problem("merge", case.batch or 1, case.q_len, 0, *case.heads, *case.widths, case.dtype, "cpu", "numpy")
    return Inputs({"states": states}, {}, buffers, AttentionSpec(scale=1.0), problem)
