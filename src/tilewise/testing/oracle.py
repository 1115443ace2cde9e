"""What a case must give: spec/reference.py in the widest floats, and the plain computation that sets the tolerance."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from tilewise.frameworks.numpy_adapter import DTYPES, NumpyNamespace
from tilewise.spec import merge_reference, paged_reference, reference
from tilewise.spec.problem import Operands, PagedOperands, real_dtype
from tilewise.testing import values
from tilewise.testing.case import AppendCase, Case, DenseCase, MergeCase, PackedCase, PagedCase
from tilewise.testing.inputs import Inputs, make

# exp(s - lse) is wrong by the rounding of lse, which grows with it: from here on (1 %), gradients must not be.
LARGE_LSE = 2.0**17
MOST_PRODUCTS = 30_000_000  # of a matrix product that is done one by one
GRADIENTS = ("q", "k", "v", "bias", "sinks")


class WideNamespace(NumpyNamespace):
    """NumPy with its widest float in place of float64: what float64 calls are measured against."""

    def real(self, dtype: str) -> Any:
        return np.dtype(np.longdouble) if dtype == "float64" else super().real(dtype)

    def cast(self, x: Any, dtype: Any) -> np.ndarray:
        wide = isinstance(dtype, str) and dtype == "float64"
        return super().cast(x, np.dtype(np.longdouble) if wide else dtype)

    def full(self, shape: tuple[int, ...], value: Any, dtype: Any = "bool") -> np.ndarray:
        return np.full(shape, value, np.longdouble) if dtype == "float64" else super().full(shape, value, dtype)


class PlainNamespace(NumpyNamespace):
    """NumPy with e^x as 2^(x log2 e), which every kernel takes: one more rounding of each logit."""

    def exp(self, x: Any) -> np.ndarray:  # type: ignore[override]
        return np.exp2(x * np.asarray(math.log2(math.e), x.dtype))


class OneByOne(PlainNamespace):
    """The same, products added one after another as a kernel's inner loop does, not in the order of a BLAS."""

    def matmul(self, a: Any, b: Any) -> np.ndarray:
        shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
        if math.prod(shape) * a.shape[-1] > MOST_PRODUCTS:
            return super().matmul(a, b)
        total = np.zeros(shape, np.result_type(a, b))
        with np.errstate(all="ignore"):
            for i in range(a.shape[-1]):
                total += a[..., :, i, None] * b[..., None, i, :]
        return total


@dataclass(frozen=True)
class Expected:
    """One result: the value wanted, the plain computation's, its dtype, and where it must be 0 exactly.

    plain: a sum's rounding is a matter of luck and of its order, so the less lucky one of two orders.
    size: the largest of the numbers that were added up to it, in steps of size_dtype (None: float32 or float64).
    any_kind: where a number that is not finite may be NaN or either infinity, whichever is wanted.
    """

    want: np.ndarray
    plain: np.ndarray
    dtype: str
    zero: np.ndarray | None = None
    size: float = 0.0
    size_dtype: str | None = None
    any_kind: np.ndarray | bool = False


@lru_cache(maxsize=16)
def expected(case: Case) -> dict[str, Expected]:
    """Results of a case by name: out, lse; of dense and packed cases also dq, dk, dv, dbias, dsinks."""
    inputs = make(case)
    with np.errstate(all="ignore"):
        if isinstance(case, MergeCase):
            return _merge(case, inputs)
        if isinstance(case, PagedCase):
            return _paged(case, inputs)
        assert isinstance(case, DenseCase | PackedCase)
        return _dense(case, inputs)


def appended(case: AppendCase, inputs: Inputs) -> tuple[np.ndarray, np.ndarray | None]:
    """What append_to_pages() must leave in copies of the pages, bit for bit."""
    arrays = {name: np.array(x) if name.endswith("pages") else x for name, x in inputs.arrays.items()}
    k, v = arrays.pop("k"), arrays.pop("v")
    operands = PagedOperands(**{"q": None, "v_pages": None, **_as_arrays(arrays)})
    with np.errstate(all="ignore"):
        return paged_reference.append(NumpyNamespace(), inputs.problem, operands, k, v)


def rounding(dtype: str) -> Any:
    """Rounds to a dtype and comes back: what a plain computation in this dtype does to its softmax weights."""
    if dtype in ("float32", "float64"):
        return reference.exact
    return lambda x: x.astype(DTYPES[dtype]).astype(x.dtype)


def _dense(case: DenseCase | PackedCase, inputs: Inputs) -> dict[str, Expected]:
    given = Operands(**inputs.arrays)
    dout, dlse = inputs.cotangents["dout"], inputs.cotangents["dlse"]
    bthd = getattr(case, "layout", "bthd") == "bthd"
    assert inputs.sees is not None
    assert inputs.seen is not None
    blind, unseen = ~inputs.sees, ~inputs.seen
    if case.form == "packed":
        blind, unseen = blind[0], unseen[0]
    elif not bthd:
        blind, unseen = blind.swapaxes(1, 2), unseen.swapaxes(1, 2)
    zero = {"q": blind, "k": unseen, "v": unseen}

    def run(xp: Any, dtype: str, rounded: Any, kept: bool = False) -> dict[str, np.ndarray]:
        problem = replace(inputs.problem, dtype=dtype)
        out, lse = reference.forward(xp, inputs.spec, problem, given, rounded)
        large = np.abs(np.where(np.isfinite(lse), lse, 0.0)).max(initial=0.0) >= LARGE_LSE
        stored = (_in(out, case.dtype), None if large else _neighbour(lse)) if kept else None
        widest = given._replace(bias=xp.cast(given.bias, dtype)) if given.bias is not None else given
        if given.sinks is not None:
            widest = widest._replace(sinks=xp.cast(given.sinks, dtype))
        grads = reference.backward(xp, inputs.spec, problem, widest, dout, dlse, rounded, stored)
        found = {f"d{name}": grad for name, grad in zip(GRADIENTS, grads, strict=True) if grad is not None}
        return {"out": out, "lse": lse, **found}

    wide = run(*_widest(case.dtype), reference.exact)
    plain = _less_lucky(wide, *(
        run(xp, _plain_dtype(case.dtype), rounding(case.dtype), kept=True) for xp in (PlainNamespace(), OneByOne())
    ))  # fmt: skip
    dtypes = {"dbias": getattr(case, "bias_dtype", ""), "dsinks": real_dtype(case.dtype), "lse": real_dtype(case.dtype)}
    zeros = {"out": zero["q"], **{f"d{name}": x for name, x in zero.items()}}
    v_size, dout_size = _largest(given.v, ~unseen), _largest(dout, ~blind)
    ds_size = abs(inputs.spec.scale) * v_size * dout_size * math.sqrt(case.widths[1])
    sizes = {
        "out": v_size, "lse": _of_lse(wide["lse"]), "dv": dout_size, "dq": ds_size * _largest(given.k, ~unseen),
        "dk": ds_size * _largest(given.q, ~blind),
    }  # fmt: skip
    # Gradients of bias and sinks gather delta = out . dout of many rows, and out was rounded to the case's dtype.
    gathered = v_size * dout_size * math.sqrt(case.widths[1] * max(1, int(inputs.sees.sum())))
    sizes |= {"dbias": gathered, "dsinks": gathered}
    steps = dict.fromkeys(("dbias", "dsinks"), case.dtype)
    lse = wide["lse"].swapaxes(-1, -2) if bthd else wide["lse"]
    kinds: dict[str, np.ndarray | bool] = {"out": _any_kind(case, lse), "lse": False}
    return {
        name: Expected(want, _in(plain[name], dtypes.get(name, case.dtype)), dtypes.get(name, case.dtype),
                       zeros.get(name), sizes.get(name, _largest(want)), steps.get(name),
                       kinds.get(name, case.values in values.INFINITE))
        for name, want in wide.items()
    }  # fmt: skip


def _paged(case: PagedCase, inputs: Inputs) -> dict[str, Expected]:
    if isinstance(case, AppendCase):
        return {}
    operands = PagedOperands(**{"v_pages": None, **_as_arrays(inputs.arrays)})

    def run(xp: Any, dtype: str, rounded: Any) -> dict[str, np.ndarray]:
        problem = replace(inputs.problem, dtype=dtype)
        out, lse = paged_reference.paged(xp, inputs.spec, problem, operands, rounded)
        return {"out": out, "lse": lse}

    wide = run(*_widest(case.dtype), reference.exact)
    plain = _less_lucky(wide, *(
        run(xp, _plain_dtype(case.dtype), rounding(case.dtype)) for xp in (PlainNamespace(), OneByOne())
    ))  # fmt: skip
    dead = (wide["lse"] == -np.inf).T
    return {
        "out": Expected(wide["out"], _in(plain["out"], case.dtype), case.dtype, dead, 4.0,
                        any_kind=_any_kind(case, wide["lse"].T)),
        "lse": Expected(wide["lse"], plain["lse"], real_dtype(case.dtype), None, _of_lse(wide["lse"])),
    }  # fmt: skip


def _merge(case: MergeCase, inputs: Inputs) -> dict[str, Expected]:
    states = inputs.arrays["states"]
    xp, dtype = _widest(case.dtype)
    wide = merge_reference.merge(xp, [(xp.cast(out, dtype), xp.cast(lse, dtype)) for out, lse in states])
    plain = merge_reference.merge(PlainNamespace(), states)
    return {
        "out": Expected(wide[0], plain[0], case.dtype, (wide[1] == -np.inf).swapaxes(-1, -2), _largest(states[0][0])),
        "lse": Expected(wide[1], plain[1], real_dtype(case.dtype), None, _of_lse(wide[1])),
    }


def _less_lucky(wide: dict[str, np.ndarray], *plain: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Result by result, the computation whose largest error is the largest."""

    def error(name: str, found: np.ndarray) -> float:
        off = found.astype(wide[name].dtype) - wide[name]
        return float(np.abs(np.where(np.isfinite(off), off, 0.0)).max(initial=0.0))

    return {name: max((p[name] for p in plain), key=lambda found: error(name, found)) for name in wide}


def _neighbour(lse: np.ndarray) -> np.ndarray:
    """Every lse moved by two units in its last place: it was rounded, and a backward pass computes its logits anew."""
    away = np.where(np.arange(lse.size).reshape(lse.shape) % 2, np.inf, -np.inf).astype(lse.dtype)
    return np.nextafter(np.nextafter(lse, away), away)


def _any_kind(case: Case, lse: np.ndarray) -> np.ndarray:
    """Where an infinite value may come out as NaN: in rows that are not NaN as a whole. lse: as the rows of out lie."""
    return np.asarray(~np.isnan(lse) & (case.values in values.INFINITE))[..., None]


def _largest(x: np.ndarray, where: np.ndarray | None = None) -> float:
    """The largest finite |x|, of the rows where `where` is true."""
    x = np.abs(x.astype(np.float64) if where is None else x.astype(np.float64)[where])
    return float(np.where(np.isfinite(x), x, 0.0).max(initial=0.0))


def _of_lse(lse: np.ndarray) -> float:
    """lse = m + log(sum): either may be the larger one, and cancel the other."""
    return max(_largest(lse), 1.0)


def _as_arrays(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: np.float32(x) if isinstance(x, float) else x for name, x in arrays.items()}


def _plain_dtype(dtype: str) -> str:
    """The plain computation works in this dtype; results are then rounded to that of the case."""
    return real_dtype(dtype)


def _in(x: np.ndarray, dtype: str) -> np.ndarray:
    return x.astype(DTYPES[dtype])


def _widest(dtype: str) -> tuple[Any, str]:
    return (WideNamespace() if dtype == "float64" else NumpyNamespace()), "float64"
