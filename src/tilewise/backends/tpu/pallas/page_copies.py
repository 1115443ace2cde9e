"""Copies of a block of keys from pages in HBM to one of two buffers in VMEM: a DMA a piece of a page."""

from __future__ import annotations

from typing import Any, NamedTuple

from jax import lax
from jax import numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tilewise.backends.tpu.pallas.paged_shape import PagedShape

Ref = Any
SLOTS = 2  # buffers: one is read while the other is filled


class Pages(NamedTuple):
    """One array of pages [N, P, rows, packing, 128], or of scales [N, P, Hkv], and its buffers."""

    hbm: Ref
    buffers: Ref  # [SLOTS, buffer_keys, buffer rows, packing, 128]; of scales [SLOTS, buffer_keys, Hkv]
    rows: int  # of a key, in a head block (paged_shape.Stack); 0 for scales

    def at(self, slot: Any, keys: Any) -> Ref:
        """Where keys of a block lie in a buffer slot."""
        return self.buffers.at[slot, keys, pl.ds(0, self.rows)] if self.rows else self.buffers.at[slot, keys]


class PageCopies:
    """Starts and awaits the copies of blocks of keys."""

    def __init__(self, shape: PagedShape, arrays: tuple[Pages, ...], table: Ref, semaphores: Ref) -> None:
        self.shape, self.arrays, self.table, self.semaphores = shape, arrays, table, semaphores

    def start(self, head_block: Any, seq: Any, first: Any, end: Any, slot: Any) -> None:
        """Begin to copy keys first .. min(first + block_keys, end) - 1 of a sequence; pages past `end` stay unread."""

        per_page = self.shape.page_size // self.shape.piece
        begin = lax.div(first, jnp.int32(self.shape.piece))
        row = seq * self.shape.pages_per_seq

        def piece(i: Any, carry: Any) -> Any:
            page, part = (begin + i, 0) if per_page == 1 else divide(begin + i, per_page)
            for copy in self._copies(head_block, self.table[row + page], part * self.shape.piece, i, slot):
                copy.start()
            return carry

        lax.fori_loop(0, self.count(first, end), piece, 0)

    def wait(self, first: Any, end: Any, slot: Any) -> None:
        """Until all copies that start() began with the same arguments have arrived."""
        count = self.count(first, end)
        whole = self.shape.block_pieces

        # A wait takes as many bytes off the semaphore as its copy would bring: a full block needs one wait an array.
        @pl.when(count == whole)
        def _() -> None:
            for pages in self.arrays:
                place = pages.at(slot, pl.ds(0, self.shape.block_keys))
                pltpu.make_async_copy(place, place, self.semaphores.at[slot]).wait()

        @pl.when(count != whole)
        def _() -> None:
            def piece(_: Any, carry: Any) -> Any:
                for copy in self._copies(0, 0, 0, 0, slot):
                    copy.wait()
                return carry

            lax.fori_loop(0, count, piece, 0)

    def count(self, first: Any, end: Any) -> Any:
        """Pieces of the block at `first` that hold keys before `end`."""
        return jnp.minimum(lax.div(end - first + self.shape.piece - 1, self.shape.piece), self.shape.block_pieces)

    def _copies(self, head_block: Any, page: Any, at: Any, i: Any, slot: Any) -> list[Any]:
        """The copies of one piece of every array."""
        size, copies = self.shape.piece, []
        for pages in self.arrays:
            source = pages.hbm.at[page, pl.ds(at, size)]
            if pages.rows and self.shape.head_blocks > 1:
                source = source.at[:, pl.ds(head_block * pages.rows, pages.rows)]
            copies.append((source, pages.at(slot, pl.ds(i * size, size))))
        return [pltpu.make_async_copy(source, to, self.semaphores.at[slot]) for source, to in copies]


def divide(x: Any, by: int) -> tuple[Any, Any]:
    """(quotient, remainder) of a number that is not negative."""
    return lax.div(x, jnp.int32(by)), lax.rem(x, jnp.int32(by))
