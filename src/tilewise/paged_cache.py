"""The host side of a paged KV cache: which pages hold which tokens of which sequence.

`PagedCache` counts pages and nothing else: it holds no keys or values, imports no array framework but NumPy, and knows
nothing of models. A step of a server is

    batch = cache.batch([a, b, c], [1, 1, 64])       # a and b decode, c prefills a chunk: the lengths move forward
    pools = batch.apply_copies(pools)                # pages that stopped being shared (every layer's pool, one call)
    for each layer:
        tw.append_to_pages(pages, k, v, *batch.arrays)
        out = tw.ragged_paged_attention(q, pages, *batch.arrays)

Three rules hold at any time. A page that is written has exactly one owner (copy on write). A call either does all of
what it says or raises and changes nothing. A sequence id is never used twice, so a stale id is found, not misread.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewise.errors import InvalidInput, OutOfPages
from tilewise.paged_batch import BatchArrays, PageCopy, PagedBatch


@dataclass
class _Sequence:
    length: int = 0
    pages: list[int] = field(default_factory=list)  # exactly those that hold tokens
    reserved: list[int] = field(default_factory=list)  # taken for later tokens, nothing in them yet


class PagedCache:
    """Page table, reference counts and free list of a pool of `num_pages` pages of `page_size` tokens.

    max_seqs: rows of the arrays of a batch (fixed shapes, for compilers); None sizes them to each batch. It does not
        limit how many sequences exist, only how many take part in one step.
    pages_per_seq: columns of `page_indices`, so the longest sequence; None sizes them to each batch.
    Not thread-safe: one scheduler owns one cache.
    """

    def __init__(
        self, num_pages: int, page_size: int, max_seqs: int | None = None, pages_per_seq: int | None = None
    ) -> None:
        self.num_pages = _at_least(1, "num_pages", num_pages)
        self.page_size = _at_least(1, "page_size", page_size)
        self.max_seqs = None if max_seqs is None else _at_least(1, "max_seqs", max_seqs)
        self.pages_per_seq = None if pages_per_seq is None else _at_least(1, "pages_per_seq", pages_per_seq)
        if self.num_pages * self.page_size >= 2**31:
            raise InvalidInput(f"{num_pages=} * {page_size=} must be below 2**31: lengths are int32")
        self._references = [0] * self.num_pages
        self._free = list(range(self.num_pages))[::-1]  # a stack: page 0 goes first, a warm page goes out again
        self._sequences: dict[int, _Sequence] = {}
        self._next_id = 0
        self._last_batch: PagedBatch | None = None

    # -- what there is -------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return (f"PagedCache({len(self._sequences)} sequences, {self.pages_used} of {self.num_pages} pages of "
                f"{self.page_size} tokens used, {self.pages_shared} shared)")  # fmt: skip

    @property
    def sequence_ids(self) -> tuple[int, ...]:
        return tuple(self._sequences)

    @property
    def pages_free(self) -> int:
        return len(self._free)

    @property
    def pages_used(self) -> int:
        """Pages that hold tokens or are reserved."""
        return self.num_pages - len(self._free)

    @property
    def pages_shared(self) -> int:
        """Pages that more than one sequence reads."""
        return sum(count > 1 for count in self._references)

    @property
    def pages_saved(self) -> int:
        """Pages that would be needed on top if nothing were shared."""
        return sum(count - 1 for count in self._references if count > 1)

    def length(self, sequence_id: int) -> int:
        return self._find(sequence_id).length

    def pages(self, sequence_id: int) -> tuple[int, ...]:
        """The pages that hold the sequence's tokens, in order."""
        return tuple(self._find(sequence_id).pages)

    def reserved_pages(self, sequence_id: int) -> tuple[int, ...]:
        """The pages set aside for the sequence, nothing in them yet."""
        return tuple(self._find(sequence_id).reserved)

    def references(self, page: int) -> int:
        """How many sequences hold this page; 0 is free."""
        if not 0 <= page < self.num_pages:
            raise InvalidInput(f"{page=} is not among {self.num_pages} pages")
        return self._references[page]

    # -- the life of a sequence ----------------------------------------------------------------------------------

    def allocate(self) -> int:
        """A new, empty sequence. Takes no page."""
        return self._add(_Sequence())

    def fork(self, sequence_id: int, length: int | None = None) -> int:
        """A new sequence that begins with the first `length` tokens (None: all) of another. Takes no page.

        Every page is shared, the partly filled last one too: whoever appends to that one first gets a copy of it
        (`PagedBatch.copies`). A reservation made before a fork does not count that copy.
        """
        parent = self._find(sequence_id)
        length = parent.length if length is None else _at_least(0, "length", length)
        if length > parent.length:
            raise InvalidInput(f"{length=} is more than the {parent.length} tokens of sequence {sequence_id}")
        pages = parent.pages[: self._pages_for(length)]
        for page in pages:
            self._references[page] += 1
        return self._add(_Sequence(length, pages))

    def reserve(self, sequence_id: int, new_tokens: int) -> None:
        """Set pages aside so that the next `new_tokens` tokens of this sequence cannot run out of pages.

        Raises OutOfPages (nothing taken) when the pool cannot promise that.
        """
        sequence = self._find(sequence_id)
        new_tokens = _at_least(0, "new_tokens", new_tokens)
        self._check_room(sequence_id, sequence.length + new_tokens)
        copied = self._writes_last_page(sequence, new_tokens) and self._references[sequence.pages[-1]] > 1
        needed = self._pages_needed(sequence, new_tokens, copied) - len(sequence.reserved)
        self._check_free(needed, f"to reserve {new_tokens} tokens for sequence {sequence_id}")
        sequence.reserved += [self._take() for _ in range(needed)]

    def truncate(self, sequence_id: int, length: int) -> None:
        """Forget the tokens from `length` on (rejected drafts, a cancelled step). Reserved pages stay reserved."""
        sequence = self._find(sequence_id)
        length = _at_least(0, "length", length)
        if length > sequence.length:
            raise InvalidInput(f"{length=} is more than the {sequence.length} tokens of sequence {sequence_id}")
        keep = self._pages_for(length)
        self._drop(sequence.pages[keep:])
        del sequence.pages[keep:]
        sequence.length = length

    def free(self, sequence_id: int) -> None:
        """End a sequence. A page goes back to the pool with its last reader."""
        sequence = self._find(sequence_id)
        del self._sequences[operator.index(sequence_id)]
        self._drop(sequence.reserved)
        self._drop(sequence.pages)

    # -- a step --------------------------------------------------------------------------------------------------

    def batch(self, sequence_ids: Sequence[int], new_tokens: Sequence[int]) -> PagedBatch:
        """Make room for `new_tokens[i]` more tokens of `sequence_ids[i]`, and describe the step.

        Row i of the arrays is sequence_ids[i]; its queries are its `new_tokens[i]` last positions. 0 new tokens are
        allowed. Raises OutOfPages or InvalidInput with no sequence changed.
        """
        ids = [_at_least(0, "sequence_id", i) for i in sequence_ids]
        counts = [_at_least(0, "new_tokens", n) for n in new_tokens]
        sequences = self._check_batch(ids, counts)
        copied = self._plan_copies(sequences, counts)
        needed = [self._pages_needed(*row) for row in zip(sequences, counts, copied, strict=True)]
        self._check_free(
            sum(max(0, n - len(s.reserved)) for n, s in zip(needed, sequences, strict=True)),
            f"to append {sum(counts)} tokens to {len(ids)} sequences",
        )

        copies = []
        for sequence, count, copy in zip(sequences, counts, copied, strict=True):
            if copy:
                source, destination = sequence.pages[-1], self._take(sequence)
                self._references[source] -= 1
                sequence.pages[-1] = destination
                copies.append(PageCopy(source, destination))
            sequence.length += count
            while len(sequence.pages) < self._pages_for(sequence.length):
                sequence.pages.append(self._take(sequence))
        self._last_batch = PagedBatch(self._arrays(sequences, counts), tuple(copies))
        return self._last_batch

    def _check_batch(self, ids: list[int], counts: list[int]) -> list[_Sequence]:
        if self._last_batch is not None and self._last_batch.copies_pending:
            raise InvalidInput("the page copies of the previous batch were never applied: call its apply_copies(pools)")
        if len(ids) != len(counts):
            raise InvalidInput(f"{len(ids)} sequence_ids but {len(counts)} new_tokens")
        if self.max_seqs is not None and len(ids) > self.max_seqs:
            raise InvalidInput(f"{len(ids)} sequences in one batch, but max_seqs={self.max_seqs}")
        if len(set(ids)) != len(ids):
            raise InvalidInput(f"a sequence may be in a batch once, sequence_ids={ids}")
        sequences = [self._find(i) for i in ids]
        for i, sequence, count in zip(ids, sequences, counts, strict=True):
            self._check_room(i, sequence.length + count)
        return sequences

    def _plan_copies(self, sequences: list[_Sequence], counts: list[int]) -> list[bool]:
        """Which rows must copy their last page: all that share it, save the last owner when nobody else reads it."""
        owners: dict[int, int] = {}
        copied = []
        for sequence, count in zip(sequences, counts, strict=True):
            if not self._writes_last_page(sequence, count):
                copied.append(False)
                continue
            page = sequence.pages[-1]
            left = owners.get(page, self._references[page])
            copied.append(left > 1)
            owners[page] = left - 1
        return copied

    def _arrays(self, sequences: list[_Sequence], counts: list[int]) -> BatchArrays:
        rows = len(sequences) if self.max_seqs is None else self.max_seqs
        columns = self.pages_per_seq or max([1, *(len(s.pages) for s in sequences)])
        kv_lens = np.zeros(rows, np.int32)
        page_indices = np.full((rows, columns), -1, np.int32)
        cu_q_lens = np.zeros(rows + 1, np.int32)
        for row, sequence in enumerate(sequences):
            kv_lens[row] = sequence.length
            page_indices[row, : len(sequence.pages)] = sequence.pages
        cu_q_lens[1 : len(counts) + 1] = counts
        return BatchArrays(
            kv_lens, page_indices, np.cumsum(cu_q_lens, dtype=np.int32), np.array([len(sequences)], np.int32)
        )

    # -- pages ---------------------------------------------------------------------------------------------------

    def _pages_for(self, length: int) -> int:
        return -(-length // self.page_size)

    def _writes_last_page(self, sequence: _Sequence, count: int) -> bool:
        return count > 0 and sequence.length % self.page_size != 0

    def _pages_needed(self, sequence: _Sequence, count: int, copied: bool) -> int:
        return self._pages_for(sequence.length + count) - len(sequence.pages) + copied

    def _take(self, owner: _Sequence | None = None) -> int:
        if owner is not None and owner.reserved:
            return owner.reserved.pop()
        page = self._free.pop()
        self._references[page] = 1
        return page

    def _drop(self, pages: list[int]) -> None:
        for page in reversed(pages):
            self._references[page] -= 1
            if self._references[page] == 0:
                self._free.append(page)

    def _check_free(self, needed: int, why: str) -> None:
        if needed > len(self._free):
            raise OutOfPages(
                f"{needed} pages are needed {why}, and {len(self._free)} of {self.num_pages} pages "
                f"(of {self.page_size} tokens) are free"
            )

    def _check_room(self, sequence_id: int, length: int) -> None:
        limit = self.pages_per_seq or self.num_pages
        if self._pages_for(length) > limit:
            name = "pages_per_seq" if self.pages_per_seq else "num_pages"
            raise (InvalidInput if self.pages_per_seq else OutOfPages)(
                f"sequence {sequence_id} would hold {length} tokens: {self._pages_for(length)} pages of "
                f"{self.page_size}, but {name}={limit}"
            )

    def _add(self, sequence: _Sequence) -> int:
        self._next_id += 1
        self._sequences[self._next_id - 1] = sequence
        return self._next_id - 1

    def _find(self, sequence_id: int) -> _Sequence:
        number = _at_least(0, "sequence_id", sequence_id)
        if number not in self._sequences:
            known = number < self._next_id
            raise InvalidInput(f"sequence {number} {'was already freed' if known else 'was never allocated'}")
        return self._sequences[number]


def _at_least(minimum: int, name: str, value: int) -> int:
    try:
        number = int(operator.index(value))
    except TypeError:
        raise InvalidInput(f"{name} must be an integer, not {value!r}") from None
    if number < minimum:
        raise InvalidInput(f"{name} must be at least {minimum}, not {number}")
    return number
