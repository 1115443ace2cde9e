"""One step over a paged KV cache: its arrays, and the page copies that must come before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewise.errors import InvalidInput

Int32 = NDArray[np.int32]


class PageCopy(NamedTuple):
    """Page `source` must be copied onto page `destination` before the step's tokens are appended."""

    source: int
    destination: int


class BatchArrays(NamedTuple):
    """The four int32 arrays of a step, in the order in which the paged calls take them."""

    kv_lens: Int32  # [max_seqs], new tokens counted, 0 past num_seqs
    page_indices: Int32  # [max_seqs, pages_per_seq], -1 past a sequence's last page
    cu_q_lens: Int32  # [max_seqs + 1], constant past num_seqs
    num_seqs: Int32  # [1]


class PagedBatch:
    """One step: its arrays, and the page copies that must come first.

    While copies are pending the arrays cannot be read, so that copying cannot be forgotten. `copies` says what they
    are, for a caller that moves pages by other means and then calls `mark_copied()`.
    """

    def __init__(self, arrays: BatchArrays, copies: tuple[PageCopy, ...]) -> None:
        self._arrays = arrays
        self._applied = False
        self.copies = copies

    def __repr__(self) -> str:
        copies = f", {len(self.copies)} pages to copy first" if self.copies_pending else ""
        return f"PagedBatch({int(self._arrays.num_seqs[0])} sequences, {self.num_tokens} new tokens{copies})"

    @property
    def copies_pending(self) -> bool:
        return bool(self.copies) and not self._applied

    @property
    def arrays(self) -> BatchArrays:
        """The four arrays. Raises InvalidInput while copies are pending."""
        if self.copies_pending:
            raise InvalidInput(
                f"{len(self.copies)} pages must be copied before this batch is used: "
                f"call batch.apply_copies(pools) with the pools of all layers"
            )
        return self._arrays

    @property
    def kv_lens(self) -> Int32:
        return self.arrays.kv_lens

    @property
    def page_indices(self) -> Int32:
        return self.arrays.page_indices

    @property
    def cu_q_lens(self) -> Int32:
        return self.arrays.cu_q_lens

    @property
    def num_seqs(self) -> Int32:
        return self.arrays.num_seqs

    @property
    def num_tokens(self) -> int:
        """New tokens in this step: the rows of q, k and v that count."""
        return int(self._arrays.cu_q_lens[-1])

    def apply_copies(self, pools: Any) -> Any:
        """Copy the pages of `copies` in every pool, once a step; returns `pools` in the form they came in.

        pools: an array whose first axis is pages ([num_pages, page_size, ...], scales too), or lists, tuples (named
        ones too) and dicts of them. NumPy, torch and MLX arrays are changed in place; JAX arrays are replaced.
        A second call is refused: after an append it would overwrite the new tokens.

        Raises:
            InvalidInput: something in `pools` is no array that can be written, or has too few pages, or the copies were
                made before. No pool is changed then.
        """
        self._not_twice()
        _judge(pools, max((max(copy) for copy in self.copies), default=-1))
        pools = _copy_pages(pools, self.copies)
        self._applied = True
        return pools

    def mark_copied(self) -> None:
        """Say that the copies have been made. Refused the second time."""
        self._not_twice()
        self._applied = True

    def _not_twice(self) -> None:
        if self._applied:
            raise InvalidInput(
                "the page copies of this batch were already applied: pass the pools of all layers at once"
            )


# What cannot be written: the words for it, and the look. Frameworks are asked by name: none is imported here.
FAULTS: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    ("a read-only NumPy array", lambda x: isinstance(x, np.ndarray) and not x.flags.writeable),
    ("a tensor that requires a gradient; detach it", lambda x: getattr(x, "requires_grad", False)),
    ("a sparse tensor", lambda x: getattr(x, "is_sparse", False)),
    ("an inference tensor; copy inside inference_mode", lambda x: hasattr(x, "is_inference") and x.is_inference()),
    ("a deleted (donated) array", lambda x: hasattr(x, "is_deleted") and x.is_deleted()),
)


def _judge(pools: Any, last_page: int) -> None:
    """Refuse what cannot be copied, before anything is."""
    if isinstance(pools, (dict, list, tuple)):
        for pool in pools.values() if isinstance(pools, dict) else pools:
            _judge(pool, last_page)
        return
    shape = getattr(pools, "shape", None)
    if shape is None or not hasattr(pools, "dtype") or not hasattr(pools, "__getitem__"):
        raise InvalidInput(f"apply_copies: a pool must be an array, but is {type(pools).__name__}.")
    if len(shape) == 0 or shape[0] <= last_page:
        raise InvalidInput(f"apply_copies: page {last_page} is to be copied, but a pool has the shape {list(shape)}.")
    for words, fault in FAULTS:
        if fault(pools):
            raise InvalidInput(f"apply_copies: a pool is {words}.")


def _copy_pages(pools: Any, copies: tuple[PageCopy, ...]) -> Any:
    if isinstance(pools, dict):
        return {name: _copy_pages(pool, copies) for name, pool in pools.items()}
    if isinstance(pools, (list, tuple)):
        copied = [_copy_pages(pool, copies) for pool in pools]
        return type(pools)(*copied) if hasattr(pools, "_fields") else type(pools)(copied)
    for source, destination in copies:
        # Immutable arrays (JAX) have `.at[i].set`; all others take an assignment.
        replace = getattr(pools.at[destination], "set", None) if hasattr(pools, "at") else None
        if replace is None:
            pools[destination] = pools[source]
        else:
            pools = replace(pools[source])
    return pools
