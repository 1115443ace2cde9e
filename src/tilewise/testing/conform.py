"""The conformance suite: what is checked of one case on one pair, and verify(), which checks them all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilewise
from tilewise.errors import Unsupported
from tilewise.testing import oracle, tolerance
from tilewise.testing.case import AppendCase, Case, DenseCase, MergeCase, PackedCase, PagedCase
from tilewise.testing.inputs import Inputs, make
from tilewise.testing.pairs import Pair, covers, usable_pairs, why_not

Outputs = dict[str, np.ndarray]


@dataclass(frozen=True)
class Result:
    """What one check found. status: "ok", "refused" (in words, as the pair said it would) or "failed"."""

    case: Case
    pair: Pair
    check: str
    status: str
    message: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        text = f"{self.status:8} {self.pair} {self.check} {self.case.name}"
        return f"{text}: {self.message}" if self.message else text


class Mismatch(AssertionError):
    """A result is not what it must be; the text says which."""


def run(case: Case, pair: Pair, inputs: Inputs) -> Outputs:
    """The call of a case on a pair: its results in NumPy."""
    arrays, options = _arguments(case, pair, inputs)
    if isinstance(case, MergeCase):
        results = dict(zip(("out", "lse"), tilewise.merge(**arrays), strict=True))
    elif isinstance(case, AppendCase):
        pages = tilewise.append_to_pages(**arrays, **options)
        results = dict(zip(("k_pages", "v_pages"), pages if isinstance(pages, tuple) else (pages,)))
    else:
        results = dict(zip(("out", "lse"), _function(case)(**arrays, **options, return_lse=True), strict=True))
    return {name: pair.arrays.numpy(x) for name, x in results.items()}


def run_backward(case: DenseCase | PackedCase, pair: Pair, inputs: Inputs) -> Outputs:
    """Gradients of a case on a pair, in NumPy: by the framework's own means where it has them."""
    arrays, options = _arguments(case, pair, inputs)
    dout, dlse = (pair.arrays.array(inputs.cotangents[name]) for name in ("dout", "dlse"))
    wanted = [name for name in oracle.GRADIENTS if name in arrays]
    forward = _function(case)
    if pair.framework == "numpy":
        out, lse = forward(**arrays, **options, return_lse=True)
        backward = tilewise.attention_backward if case.form == "dense" else tilewise.attention_packed_backward
        grads = backward(**arrays, out=out, lse=lse, dout=dout, dlse=dlse, **options)
        results = [getattr(grads, name) for name in wanted]
    else:
        results = pair.arrays.gradients(
            lambda **given: forward(**given, **options, return_lse=True), arrays, wanted, dout, dlse
        )
    return {f"d{name}": pair.arrays.numpy(x) for name, x in zip(wanted, results, strict=True)}


def check_forward(case: Case, pair: Pair) -> None:
    """out and lse are right, the same without return_lse, and nothing but them was written."""
    inputs = make(case)
    got = run(case, pair, inputs)
    _compare(case, got)
    arrays, options = _arguments(case, pair, inputs)
    if not isinstance(case, MergeCase):
        alone = pair.arrays.numpy(_function(case)(**arrays, **options))
        _same_bits("out without return_lse", alone, got["out"])
    _untouched(inputs)


def check_backward(case: Case, pair: Pair) -> None:
    """Gradients are right, exactly 0 where nothing is seen, and nothing but them was written."""
    assert isinstance(case, DenseCase | PackedCase)
    inputs = make(case)
    _compare(case, run_backward(case, pair, inputs))
    _untouched(inputs)


def check_append(case: Case, pair: Pair) -> None:
    """The pages hold the new rows, bit for bit, and whatever they held elsewhere; nothing around them was written."""
    assert isinstance(case, AppendCase)
    inputs = make(case)
    wanted = oracle.appended(case, inputs)
    got = run(case, pair, inputs)
    for name, want in zip(("k_pages", "v_pages"), wanted, strict=True):
        if want is not None:
            _same_bits(name, got[name], want)
    _untouched(inputs, written=("k_pages", "v_pages"))


def check_repeatable(case: Case, pair: Pair) -> None:
    """Two calls give the same bits; so do calls on 1, 2 and 3 threads."""
    inputs = make(case)
    first = _everything(case, pair, inputs)
    _all_same_bits("a second call", _everything(case, pair, make(case)), first)
    if pair.backend != "cpu":
        return
    threads = tilewise.num_threads()
    try:
        for count in (1, 2, 3):
            tilewise.set_num_threads(count)
            _all_same_bits(f"{count} threads", _everything(case, pair, make(case)), first)
    finally:
        tilewise.set_num_threads(threads)


def check_poison(case: Case, pair: Pair) -> None:
    """What may not be looked at changes no bit of the result: NaN, infinity and nonsense against zeros.

    Of gradients, check_backward (whose arrays are poisoned) holds the same within the tolerance.
    """
    clean = run(case, pair, make(case, poisoned=False))
    _all_same_bits("poison", run(case, pair, make(case)), clean)


def check_refused(case: Case, pair: Pair) -> None:
    """The call raises Unsupported with the reason that planning gave."""
    reason = why_not(pair, case)
    if pair.arrays.cannot_hold(case.dtype) or getattr(case, "stored", "").startswith("float8"):
        return  # there is no array to call with
    try:
        run(case, pair, make(case))
    except Unsupported as error:
        if str(reason) not in str(error):
            raise Mismatch(f"refused with {error}, not with {reason}") from None
    else:
        raise Mismatch(f"ran, though planning said: {reason}")


CHECKS: dict[str, tuple[Callable[[Case, Pair], None], tuple[str, ...]]] = {
    "forward": (check_forward, ("dense", "packed", "paged", "merge")),
    "backward": (check_backward, ("dense", "packed")),
    "append": (check_append, ("append",)),
    "repeatable": (check_repeatable, ("dense", "packed", "paged", "append")),
    "poison": (check_poison, ("dense", "packed", "paged")),
}


def verify(
    backends: Iterable[str] | None = None,
    frameworks: Iterable[str] | None = None,
    tags: Iterable[str] | None = None,
    progress: Callable[[Result, int, int], None] | None = None,
) -> list[Result]:
    """Run the conformance suite on this machine.

    Args:
        backends, frameworks: only these; None: all that this machine has.
        tags: cases with one of these tags; None: all but "long" ones.
        progress: called after each check with its result, how many are done, and how many there are.

    Returns:
        A result a check. A failed check does not end the run.
    """
    from tilewise.testing.cases import select

    of_backends, of_frameworks = (None if names is None else set(names) for names in (backends, frameworks))
    pairs = [pair for pair in usable_pairs()
             if (of_backends is None or pair.backend in of_backends)
             and (of_frameworks is None or pair.framework in of_frameworks)]  # fmt: skip
    work = [(case, pair, check) for case in select(tags) for check in CHECKS if case.form in CHECKS[check][1]
            for pair in pairs if covers(pair, case, check)]  # fmt: skip
    results = []
    for case, pair, check in work:
        results.append(one(case, pair, check))
        if progress is not None:
            progress(results[-1], len(results), len(work))
    return results


def one(case: Case, pair: Pair, check: str) -> Result:
    """One check of one case on one pair; its failure is in the result."""
    began = time.perf_counter()
    status, message = "ok", ""
    try:
        if (reason := why_not(pair, case)) is not None:
            status, message = "refused", reason
            check_refused(case, pair)
        else:
            CHECKS[check][0](case, pair)
    except Exception as error:
        kind = "" if isinstance(error, Mismatch) else f"{type(error).__name__}: "
        status, message = "failed", f"{kind}{error}"
    return Result(case, pair, check, status, message, time.perf_counter() - began)


def _function(case: Case) -> Callable[..., Any]:
    functions: dict[str, Callable[..., Any]] = {
        "dense": tilewise.attention, "packed": tilewise.attention_packed, "paged": tilewise.ragged_paged_attention,
    }  # fmt: skip
    return functions[case.form]


def _arguments(case: Case, pair: Pair, inputs: Inputs) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of the call, as the framework's arrays, and its options."""
    convert = pair.arrays.array
    if isinstance(case, MergeCase):
        return {"states": [(convert(out), convert(lse)) for out, lse in inputs.arrays["states"]]}, {}
    arrays = {name: x if isinstance(x, float) else convert(x) for name, x in inputs.arrays.items()}
    if isinstance(case, PagedCase):
        k_pages, v_pages = arrays.pop("k_pages"), arrays.pop("v_pages", None)
        arrays = {"kv_pages": k_pages if v_pages is None else (k_pages, v_pages), **arrays}
    return arrays, {**inputs.options, "backend": pair.backend}


def _everything(case: Case, pair: Pair, inputs: Inputs) -> Outputs:
    results = run(case, pair, inputs)
    if isinstance(case, DenseCase | PackedCase):
        results = {**results, **run_backward(case, pair, inputs)}
    return results


def _compare(case: Case, got: Outputs) -> None:
    expected = oracle.expected(case)
    messages = [tolerance.wrong(name, x, expected[name]) for name, x in got.items()]
    if any(messages):
        raise Mismatch("; ".join(message for message in messages if message))


def _untouched(inputs: Inputs, written: tuple[str, ...] = ()) -> None:
    if (name := inputs.buffers.changed(written)) is not None:
        raise Mismatch(f"the memory of {name}, or the guard bytes around it, was written")


def _all_same_bits(what: str, got: Outputs, want: Outputs) -> None:
    for name, x in got.items():
        _same_bits(f"{name} of {what}", x, want[name])


def _same_bits(what: str, got: np.ndarray, want: np.ndarray) -> None:
    """Equal bit for bit; any NaN equals any other."""
    if got.shape != want.shape or got.dtype != want.dtype:
        raise Mismatch(f"{what} is {list(got.shape)} {got.dtype}, not {list(want.shape)} {want.dtype}")
    raw = np.dtype(f"u{got.dtype.itemsize}")
    one, other = (np.ascontiguousarray(x).view(raw) for x in (got, want))
    different = one != other
    if got.dtype.kind not in "biu":
        with np.errstate(invalid="ignore"):
            different &= ~((got != got) & (want != want))
    if different.any():
        at = tuple(int(i) for i in np.argwhere(different)[0])
        raise Mismatch(f"{what}: {list(at)} is {got[at]!r}, not {want[at]!r}; {int(different.sum())} of "
                       f"{different.size} differ")  # fmt: skip
