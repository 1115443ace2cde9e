"""Mistakes in values: lengths past their arrays, page ids out of range, starts that fall.

NumPy and torch-CPU calls always run these checks; elsewhere they cost a copy to the host, so they run on request.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilewise.errors import InvalidInput


def check_values(
    *,
    q_len: int | None = None,
    kv_len: int | None = None,
    q_lens: Any = None,
    kv_lens: Any = None,
    q_starts: Any = None,
    kv_starts: Any = None,
    q_segment_ids: Any = None,
    kv_segment_ids: Any = None,
    page_indices: Any = None,
    cu_q_lens: Any = None,
    num_seqs: Any = None,
    num_pages: int | None = None,
    page_size: int | None = None,
    max_tokens: int | None = None,
    left: int | None = None,
    append: bool = False,
) -> None:
    """Judge the values of the integer arrays of a call. Pass what the call has; arrays of any framework.

    Args:
        q_len, kv_len: sizes T and S that q_lens and kv_lens (dense) or the starts (packed) may not pass.
        q_lens, kv_lens: int [B] of a dense call; or kv_lens int [max_seqs] of a paged one, with page_indices.
        q_starts, kv_starts: int [n + 1] of a packed call.
        q_segment_ids, kv_segment_ids: int [B, T] and [B, S]; they must fit int32.
        page_indices, cu_q_lens, num_seqs: int [max_seqs, pages_per_seq], [max_seqs + 1] and [1] of a paged call.
        num_pages, page_size, max_tokens: sizes of a paged call.
        left: the left side of a paged call's window. Pages that no query of the step sees are not judged: they are
            never read, and their entries may hold anything.
        append: the arrays are for append_to_pages(): its pages are those of the new tokens, and kv_lens count them.

    Raises:
        InvalidInput: with the first wrong value and where it stands.
    """
    if page_indices is not None:
        if kv_lens is None or cu_q_lens is None:
            raise InvalidInput("check_values: page_indices go with kv_lens and cu_q_lens.")
        batch = _Batch(
            _ints("kv_lens", kv_lens), _ints("page_indices", page_indices, 2), _ints("cu_q_lens", cu_q_lens),
            None if num_seqs is None else _ints("num_seqs", num_seqs, None),
        )  # fmt: skip
        _paged(batch, num_pages, page_size, max_tokens, 0 if append else left, append)
        return
    for name, lens, size in (("q_lens", q_lens, q_len), ("kv_lens", kv_lens, kv_len)):
        if lens is not None:
            _in_range(name, _ints(name, lens), 0, size)
    for name, starts, size in (("q_starts", q_starts, q_len), ("kv_starts", kv_starts, kv_len)):
        if starts is not None:
            _starts(name, _ints(name, starts), size, "tokens")
    for name, ids in (("q_segment_ids", q_segment_ids), ("kv_segment_ids", kv_segment_ids)):
        if ids is not None:
            _in_range(f"{name}.flat", _ints(name, ids, None).reshape(-1), -(2**31), 2**31 - 1)


class _Batch(NamedTuple):
    """The integers of a paged call."""

    kv_lens: np.ndarray
    page_indices: np.ndarray
    cu_q_lens: np.ndarray
    num_seqs: np.ndarray | None


def _ints(name: str, array: Any, axes: int | None = 1) -> np.ndarray:
    """Host copy as int64, whatever the framework. axes: how many it must have; None: any."""
    if hasattr(array, "detach"):
        array = array.detach().cpu()
    try:
        found = np.asarray(array)
    except ValueError as error:
        raise InvalidInput(f"{name} must be an array of integers ({error}).") from None
    if axes is not None and found.ndim != axes:
        raise InvalidInput(f"{name} must have {axes} axes, but has {found.ndim}.")
    if found.size and found.dtype.kind not in "iu":
        raise InvalidInput(f"{name} must hold integers, but is of dtype {found.dtype}.")
    return found.astype(np.int64)


def _in_range(name: str, values: np.ndarray, low: int, high: int | None, why: str = "") -> None:
    wrong = values < low
    if high is not None:
        wrong |= values > high
    if wrong.any():
        at = int(np.argmax(wrong))
        bounds = f"at least {low}" if high is None else f"in [{low}, {high}]{why}"
        raise InvalidInput(f"{name}[{at}] must be {bounds}, but is {int(values[at])}.")


def _starts(name: str, starts: np.ndarray, size: int | None, words: str) -> None:
    if not starts.size:
        raise InvalidInput(f"{name} must have n + 1 entries, but is empty.")
    falls = np.diff(starts) < 0
    if falls.any():
        at = int(np.argmax(falls))
        here, after = int(starts[at]), int(starts[at + 1])
        raise InvalidInput(f"{name} must not fall, but {name}[{at}] is {here} and {name}[{at + 1}] is {after}.")
    if starts[0] < 0:
        raise InvalidInput(f"{name}[0] must be at least 0, but is {int(starts[0])}.")
    if size is not None and starts[-1] > size:
        raise InvalidInput(f"{name} ends at {int(starts[-1])}, but there are only {size} {words}.")


def _paged(
    batch: _Batch,
    num_pages: int | None,
    page_size: int | None,
    max_tokens: int | None,
    left: int | None,
    append: bool,
) -> None:
    kv_lens, page_indices, cu_q_lens, num_seqs = batch
    max_seqs, pages_per_seq = page_indices.shape
    if kv_lens.size != max_seqs or cu_q_lens.size != max_seqs + 1:
        raise InvalidInput(f"page_indices of {max_seqs} sequences go with as many kv_lens and one more cu_q_lens, but "
                           f"there are {kv_lens.size} and {cu_q_lens.size}.")  # fmt: skip
    if num_seqs is not None and num_seqs.size != 1:
        raise InvalidInput(f"num_seqs must be one number, but has {num_seqs.size}.")
    count = max_seqs if num_seqs is None else int(num_seqs.reshape(-1)[0])
    if not 0 <= count <= max_seqs:
        raise InvalidInput(f"num_seqs must be in [0, {max_seqs}] (the rows of page_indices), but is {count}.")
    _starts("cu_q_lens", cu_q_lens[: count + 1], max_tokens, "rows of q")
    kv_lens = kv_lens[:count]
    most = None if page_size is None else pages_per_seq * page_size
    _in_range("kv_lens", kv_lens, 0, most, f" ({pages_per_seq} pages of {page_size})")
    q_lens = np.diff(cu_q_lens[: count + 1])
    if append and (q_lens > kv_lens).any():
        at = int(np.argmax(q_lens > kv_lens))
        raise InvalidInput(f"kv_lens[{at}] is {int(kv_lens[at])}, but sequence {at} has {int(q_lens[at])} new tokens: "
                           "kv_lens count them.")  # fmt: skip
    if num_pages is None or page_size is None:
        return
    first = np.zeros_like(kv_lens) if left is None else np.maximum(kv_lens - q_lens - left, 0)
    end = np.where(q_lens > 0, kv_lens, 0)
    page = np.arange(pages_per_seq)[None, :]
    seen = (page >= first[:, None] // page_size) & (page < -(-end[:, None] // page_size))
    wrong = seen & ((page_indices[:count] < 0) | (page_indices[:count] >= num_pages))
    if wrong.any():
        sequence, column = (int(i[0]) for i in np.nonzero(wrong))
        raise InvalidInput(
            f"page_indices[{sequence}, {column}] must be in [0, {num_pages}), but is "
            f"{int(page_indices[sequence, column])} (sequence {sequence} has {int(kv_lens[sequence])} keys)."
        )
