"""How wrong a result may be, without magic numbers.

error(kernel) <= 2 * error(the plain computation in the same dtypes) + one unit in the last place of the result, and
of the float32 (float64) numbers that were added up to it; both against the reference in wider floats. The plain
computation adds up in the order of a BLAS and one by one, and the worse of them counts: where results are few, one
order may be lucky. Zeros of rows that see nothing, infinities and NaN must be exact; where a visible infinity may come
out as either, only finite numbers are wrong.
The idea is FlashAttention's (tests of its CuTe kernels).
"""

from __future__ import annotations

import numpy as np

from tilewise.spec.problem import real_dtype
from tilewise.testing.oracle import Expected

# Bits of the significand without the leading one, and the exponent of the smallest normal number.
FORMATS = {"float64": (52, -1022), "float32": (23, -126), "bfloat16": (7, -126), "float16": (10, -14)}


def last_place(x: np.ndarray, dtype: str) -> np.ndarray:
    """The distance between neighbouring numbers of this dtype at |x|."""
    bits, lowest = FORMATS[dtype]
    _, exponent = np.frexp(np.abs(np.where(np.isfinite(x), x, 0.0)).astype(np.float64))
    return np.ldexp(1.0, np.maximum(exponent - 1, lowest) - bits)


def wrong(name: str, got: np.ndarray, expected: Expected) -> str | None:
    """What is wrong with a result, in a line, or None."""
    want = expected.want
    if got.shape != want.shape:
        return f"{name} is {list(got.shape)}, not {list(want.shape)}"
    if got.dtype.name != expected.dtype:
        return f"{name} is {got.dtype.name}, not {expected.dtype}"
    got = got.astype(want.dtype)
    if expected.zero is not None:
        zero = np.broadcast_to(expected.zero[..., None] if expected.zero.ndim < got.ndim else expected.zero, got.shape)
        if (message := _first(name, zero & (got != 0), got, "0, for no key and query meet there")) is not None:
            return message
    with np.errstate(invalid="ignore"):
        special = np.where(np.isnan(want), ~np.isnan(got), np.isinf(want) & (got != want))
        special &= ~(expected.any_kind & ~np.isfinite(got))
        special |= np.isfinite(want) & ~np.isfinite(got)
    if special.any():
        return _first(name, special, got, want)
    finite = np.isfinite(want)
    if not finite.any():
        return None
    with np.errstate(invalid="ignore"):
        plain = expected.plain.astype(want.dtype) - want
        plain = np.abs(np.where(finite & np.isfinite(plain), plain, 0.0)).max()
        error = np.abs(np.where(finite, got - want, 0.0))
    real = real_dtype(expected.dtype)
    summands = last_place(np.array(expected.size), expected.size_dtype or real)
    allowed = 2 * plain + last_place(want, expected.dtype) + summands
    if (error <= allowed).all():
        return None
    at = np.unravel_index(int(np.argmax(error / allowed)), error.shape)
    return (
        f"{name}{list(map(int, at))} is {float(got[at]):.9g}, not {float(want[at]):.9g}: error {float(error[at]):.2e} "
        f"of {float(allowed[at]):.2e} allowed (plain computation {float(plain):.2e}); "
        f"{int((error > allowed).sum())} of {error.size} are wrong"
    )


def _first(name: str, bad: np.ndarray, got: np.ndarray, want: np.ndarray | str) -> str | None:
    if not bad.any():
        return None
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    wanted = want if isinstance(want, str) else f"{float(want[at]):.9g}"
    return f"{name}{list(at)} is {float(got[at]):.9g}, not {wanted}; {int(bad.sum())} of {bad.size} are wrong"
