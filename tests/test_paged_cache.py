"""PagedCache: who holds which page, and what a refused call leaves behind."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tilewise.errors import InvalidInput, OutOfPages
from tilewise.paged_cache import PagedCache


def snapshot(cache: PagedCache) -> dict[str, object]:
    """Everything a cache knows, for comparison."""
    return copy.deepcopy({name: value for name, value in vars(cache).items() if name != "_last_batch"})


def grow(cache: PagedCache, sequence: int, tokens: int) -> None:
    cache.batch([sequence], [tokens]).mark_copied()


def test_a_step_in_numbers() -> None:
    cache = PagedCache(num_pages=8, page_size=4, max_seqs=3, pages_per_seq=4)
    a, b = cache.allocate(), cache.allocate()
    batch = cache.batch([a, b], [5, 4])
    assert batch.kv_lens.tolist() == [5, 4, 0]
    assert batch.page_indices.tolist() == [[0, 1, -1, -1], [2, -1, -1, -1], [-1, -1, -1, -1]]
    assert batch.cu_q_lens.tolist() == [0, 5, 9, 9]
    assert batch.num_seqs.tolist() == [2]
    assert batch.num_tokens == 9
    assert all(array.dtype == np.int32 for array in batch.arrays)
    batch = cache.batch([b, a], [1, 0])
    assert batch.kv_lens.tolist() == [5, 5, 0]
    assert batch.cu_q_lens.tolist() == [0, 1, 1, 1]


def test_arrays_fit_the_batch_when_no_limits_are_given() -> None:
    cache = PagedCache(8, 4)
    batch = cache.batch([cache.allocate(), cache.allocate()], [9, 1])
    assert batch.page_indices.shape == (2, 3)
    empty = cache.batch([], [])
    assert empty.page_indices.shape == (0, 1)
    assert empty.cu_q_lens.tolist() == [0]


def test_fork_shares_pages_and_the_first_writer_copies() -> None:
    cache = PagedCache(8, 4)
    a = cache.allocate()
    grow(cache, a, 6)
    b, c = cache.fork(a), cache.fork(a)
    assert cache.pages(a) == cache.pages(b) == cache.pages(c) == (0, 1)
    assert (cache.pages_used, cache.pages_shared, cache.pages_saved) == (2, 2, 4)
    batch = cache.batch([b, c, a], [1, 1, 1])
    assert batch.copies == ((1, 2), (1, 3))  # a is the last owner, and writes in place
    batch.mark_copied()
    assert (cache.pages(a), cache.pages(b), cache.pages(c)) == ((0, 1), (0, 2), (0, 3))


def test_a_fork_at_a_page_boundary_copies_nothing() -> None:
    cache = PagedCache(8, 4)
    a = cache.allocate()
    grow(cache, a, 7)
    b = cache.fork(a, 4)
    assert cache.pages(b) == (0,)
    assert cache.batch([b, a], [1, 1]).copies == ()


def test_a_fork_inside_a_full_page_copies_it() -> None:
    cache = PagedCache(8, 4)
    a = cache.allocate()
    grow(cache, a, 8)
    b = cache.fork(a, 2)
    assert cache.batch([b], [1]).copies == ((0, 2),)


def test_copied_pages_hold_the_prefix_in_every_pool() -> None:
    cache = PagedCache(4, 2)
    pools = {"layers": [np.zeros((4, 2, 1)), np.zeros((4, 2, 1))], "scales": np.zeros((4, 2))}
    a = cache.allocate()
    grow(cache, a, 1)
    for pool in (*pools["layers"], pools["scales"]):
        pool[0, 0] = 7.0
    batch = cache.batch([cache.fork(a)], [1])
    assert batch.apply_copies(pools)["layers"][0] is pools["layers"][0]
    for pool in (*pools["layers"], pools["scales"]):
        assert np.all(pool[1, 0] == 7.0)


class Pools(NamedTuple):
    k: Any
    v: Any


def test_named_tuples_of_pools() -> None:
    cache = PagedCache(4, 2)
    a = cache.allocate()
    grow(cache, a, 1)
    k, v = np.arange(8.0).reshape(4, 2), np.arange(8.0).reshape(4, 2) + 10
    batch = cache.batch([cache.fork(a)], [1])
    found = batch.apply_copies(Pools(k, v))
    assert isinstance(found, Pools)
    assert found.k is k
    assert not batch.copies_pending
    assert (k[1].tolist(), v[1].tolist()) == ([0.0, 1.0], [10.0, 11.0])


@pytest.mark.parametrize(("pool", "words"), [
    (None, "NoneType"), ("pages", "str"), (np.zeros(()), r"\[\]"), (np.zeros((1, 2)), r"page 1 .*\[1, 2\]"),
    (np.broadcast_to(np.zeros(2), (4, 2)), "read-only"),
])  # fmt: skip
def test_refused_pools_change_nothing(pool: object, words: str) -> None:
    cache = PagedCache(4, 2)
    a = cache.allocate()
    grow(cache, a, 1)
    batch = cache.batch([cache.fork(a)], [1])
    good = np.arange(8.0).reshape(4, 2)
    with pytest.raises(InvalidInput, match=words):
        batch.apply_copies({"k": [good], "v": pool})
    assert batch.copies_pending
    assert good[1].tolist() == [2.0, 3.0]
    batch.apply_copies(good)
    assert good[1].tolist() == [0.0, 1.0]


def test_immutable_arrays_are_replaced() -> None:
    jnp = pytest.importorskip("jax.numpy")
    cache = PagedCache(4, 2)
    a = cache.allocate()
    grow(cache, a, 1)
    before = jnp.arange(8.0).reshape(4, 2)
    (after,) = cache.batch([cache.fork(a)], [1]).apply_copies((before,))
    assert after[1].tolist() == [0.0, 1.0]
    assert before[1].tolist() == [2.0, 3.0]


@pytest.mark.parametrize("framework", ["torch", "mlx.core"])
def test_mutable_arrays_of_other_frameworks_are_changed(framework: str) -> None:
    arrays = pytest.importorskip(framework)
    make = getattr(arrays, "asarray", None) or arrays.array
    pool = make(np.arange(8.0, dtype=np.float32).reshape(4, 2))
    cache = PagedCache(4, 2)
    a = cache.allocate()
    grow(cache, a, 1)
    assert cache.batch([cache.fork(a)], [1]).apply_copies([pool])[0][1].tolist() == [0.0, 1.0]


def test_copies_cannot_be_forgotten() -> None:
    cache = PagedCache(8, 4)
    a = cache.allocate()
    grow(cache, a, 2)
    b = cache.fork(a)
    batch = cache.batch([b], [1])
    for name in ("arrays", "kv_lens", "page_indices", "cu_q_lens", "num_seqs"):
        with pytest.raises(InvalidInput, match="1 pages must be copied before"):
            getattr(batch, name)
    with pytest.raises(InvalidInput, match="previous batch were never applied"):
        cache.batch([a], [1])
    batch.apply_copies(np.zeros((8, 4)))
    assert batch.kv_lens.tolist() == [3]
    with pytest.raises(InvalidInput, match="already applied"):
        batch.apply_copies(np.zeros((8, 4)))


def test_out_of_pages_changes_nothing() -> None:
    cache = PagedCache(4, 2)
    a, b = cache.allocate(), cache.allocate()
    grow(cache, a, 3)
    c = cache.fork(a)
    before = snapshot(cache)
    with pytest.raises(OutOfPages, match=r"3 pages are needed .* and 2 of 4 pages"):
        cache.batch([a, b, c], [1, 2, 2])  # a copy for a; one page for b; one for c, which writes its old one in place
    with pytest.raises(OutOfPages):
        cache.reserve(b, 5)
    with pytest.raises(OutOfPages, match="num_pages=4"):
        cache.batch([b], [9])
    assert snapshot(cache) == before
    grow(cache, b, 4)
    assert cache.pages_free == 0


def test_a_reservation_is_a_promise() -> None:
    cache = PagedCache(4, 2)
    a, b = cache.allocate(), cache.allocate()
    cache.reserve(a, 6)
    assert cache.pages_free == 1
    assert cache.pages(a) == ()
    cache.reserve(a, 5)  # already covered
    assert cache.pages_free == 1
    with pytest.raises(OutOfPages):
        cache.batch([b], [3])
    grow(cache, b, 2)
    for _ in range(6):
        grow(cache, a, 1)
    assert cache.length(a) == 6
    cache.free(a)
    assert cache.pages_free == 3


def test_a_reservation_counts_the_copy_of_a_shared_page() -> None:
    cache = PagedCache(3, 4)
    a = cache.allocate()
    grow(cache, a, 3)
    b = cache.fork(a)
    cache.reserve(b, 2)
    assert cache.pages_free == 0
    assert cache.batch([b], [2]).copies == ((0, cache.pages(b)[0]),)


def test_truncate_gives_pages_back_and_respects_sharing() -> None:
    cache = PagedCache(8, 4)
    a = cache.allocate()
    grow(cache, a, 10)
    b = cache.fork(a)
    cache.truncate(a, 5)
    assert (cache.length(a), cache.pages(a), cache.pages(b)) == (5, (0, 1), (0, 1, 2))
    assert cache.references(2) == 1
    assert cache.batch([a], [1]).copies == ((1, 3),)


def test_misuse_is_refused_in_words() -> None:
    cache = PagedCache(8, 4, max_seqs=2, pages_per_seq=2)
    a, b, c = cache.allocate(), cache.allocate(), cache.allocate()
    cache.free(c)
    refused = [
        (lambda: cache.free(c), "sequence 2 was already freed"),
        (lambda: cache.free(99), "sequence 99 was never allocated"),
        (lambda: cache.fork(c), "already freed"),
        (lambda: cache.fork(a, 1), "length=1 is more than the 0 tokens"),
        (lambda: cache.fork(a, -1), "length must be at least 0, not -1"),
        (lambda: cache.batch([a], [-1]), "new_tokens must be at least 0, not -1"),
        (lambda: cache.batch([a], [1.5]), "new_tokens must be an integer, not 1.5"),
        (lambda: cache.batch(["a"], [1]), "sequence_id must be an integer, not 'a'"),
        (lambda: cache.batch([a, b], [1]), "2 sequence_ids but 1 new_tokens"),
        (lambda: cache.batch([a, a], [1, 1]), "may be in a batch once"),
        (lambda: cache.batch([a, b, a], [1, 1, 1]), "but max_seqs=2"),
        (lambda: cache.batch([a, c], [1, 1]), "already freed"),
        (lambda: cache.batch([a], [9]), "3 pages of 4, but pages_per_seq=2"),
        (lambda: cache.reserve(a, -3), "at least 0, not -3"),
        (lambda: cache.reserve(a, 9), "pages_per_seq=2"),
        (lambda: cache.truncate(a, 1), "more than the 0 tokens"),
        (lambda: cache.references(8), "not among 8 pages"),
        (lambda: PagedCache(0, 4), "num_pages must be at least 1"),
        (lambda: PagedCache(4, 0), "page_size must be at least 1"),
        (lambda: PagedCache(4, 4, max_seqs=0), "max_seqs must be at least 1"),
        (lambda: PagedCache(2**20, 2**11), "must be below 2\\*\\*31"),
    ]
    before = snapshot(cache)
    for call, words in refused:
        with pytest.raises(InvalidInput, match=words):
            call()
    assert snapshot(cache) == before


class CacheMachine(RuleBasedStateMachine):
    """Random lives of sequences, against a model that keeps every sequence's tokens, and a pool that stores them."""

    @initialize(num_pages=st.integers(1, 16), page_size=st.integers(1, 5), tokens=st.integers(0, 7))
    def start(self, num_pages: int, page_size: int, tokens: int) -> None:
        self.cache = PagedCache(num_pages, page_size)
        self.pool = np.full((num_pages, page_size), -1, np.int64)
        self.texts: dict[int, list[int]] = {}
        self.promised: dict[int, int] = {}
        self.next_token = 0
        self.allocate()
        self.run([0], [tokens])

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.texts)))

    @rule()
    def allocate(self) -> None:
        if len(self.texts) < 6:
            self.texts[self.cache.allocate()] = []

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        if self.texts and len(self.texts) < 6:
            parent = self.pick(data)
            length = data.draw(st.integers(0, len(self.texts[parent])))
            self.texts[self.cache.fork(parent, length)] = self.texts[parent][:length]
            self.promised.pop(parent, None)  # a fork may cost the reservation a copy more

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        if len(self.texts) > 2:
            sequence = self.pick(data)
            self.cache.free(sequence)
            del self.texts[sequence]
            self.promised.pop(sequence, None)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        if self.texts:
            sequence = self.pick(data)
            length = data.draw(st.integers(0, len(self.texts[sequence])))
            self.cache.truncate(sequence, length)
            self.texts[sequence] = self.texts[sequence][:length]
            self.promised.pop(sequence, None)

    @rule(data=st.data(), tokens=st.integers(0, 12))
    def reserve(self, data: st.DataObject, tokens: int) -> None:
        if self.texts:
            sequence, before = self.pick(data), snapshot(self.cache)
            try:
                self.cache.reserve(sequence, tokens)
                self.promised[sequence] = max(tokens, self.promised.get(sequence, 0))
            except OutOfPages:
                assert snapshot(self.cache) == before

    @rule(data=st.data())
    def fork_and_step(self, data: st.DataObject) -> None:
        """Forks that write at once: where copies are decided."""
        self.fork(data)
        self.step(data)

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        ids = data.draw(st.permutations(sorted(self.texts)))[: data.draw(st.integers(1, 6))]
        self.run(ids, [data.draw(st.integers(0, 3)) for _ in ids])

    def run(self, ids: list[int], counts: list[int]) -> None:
        before = snapshot(self.cache)
        try:
            batch = self.cache.batch(ids, counts)
        except OutOfPages:
            assert snapshot(self.cache) == before
            assert not ids or any(n > self.promised.get(i, 0) for i, n in zip(ids, counts, strict=True))
            return
        batch.apply_copies(self.pool)
        for row, (sequence, count) in enumerate(zip(ids, counts, strict=True)):
            for _ in range(count):
                position = len(self.texts[sequence])
                page = batch.page_indices[row, position // self.cache.page_size]
                self.pool[page, position % self.cache.page_size] = self.next_token
                self.texts[sequence].append(self.next_token)
                self.next_token += 1
            assert batch.kv_lens[row] == len(self.texts[sequence])
            if sequence in self.promised:
                self.promised[sequence] = max(0, self.promised[sequence] - count)

    @invariant()
    def every_sequence_reads_its_own_tokens(self) -> None:
        for sequence, text in getattr(self, "texts", {}).items():
            slots = self.pool[list(self.cache.pages(sequence))].reshape(-1)
            assert slots[: len(text)].tolist() == text

    @invariant()
    def pages_are_counted(self) -> None:
        if not hasattr(self, "cache"):
            return
        held = Counter(page for i in self.texts for page in self.cache.pages(i))
        reserved = Counter(page for i in self.texts for page in self.cache.reserved_pages(i))
        assert set(self.cache.sequence_ids) == set(self.texts)
        assert not set(reserved) & set(held)
        assert all(n == 1 for n in reserved.values())
        for page in range(self.cache.num_pages):
            assert self.cache.references(page) == held[page] + reserved[page]
        free = self.cache._free
        assert sorted(free) == [p for p in range(self.cache.num_pages) if self.cache.references(p) == 0]
        for i, text in self.texts.items():
            assert len(self.cache.pages(i)) == -(-len(text) // self.cache.page_size)

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            for sequence in self.texts:
                self.cache.free(sequence)
            assert self.cache.pages_free == self.cache.num_pages


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
