"""A server in one page: requests, continuous batching, and the paged cache under them.

Every step takes one token of each request that is writing its answer, fills the rest of the token budget with chunks
of prompts that are still being read, and runs them all together: one GEMM a matrix, one `ragged_paged_attention` a
layer. A request that was let in can always finish, because its pages were reserved at the door.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tilewise as tw
from tilewise.demo.kv_formats import KV_DTYPES, calibrate
from tilewise.demo.llama import Llama
from tilewise.errors import InvalidInput

Array = NDArray[Any]


@dataclass
class Request:
    """A prompt (the tokens after the shared prefix) and, as steps go by, its answer."""

    prompt: list[int]
    max_new_tokens: int
    arrival: int = 0  # the step in which it knocks
    sequence: int | None = None  # its sequence in the cache, while it runs
    fed: int = 0  # tokens of prompt + answer whose keys are in the cache
    answer: list[int] = field(default_factory=list)
    hidden: list[Array] = field(default_factory=list)  # [width] behind each token of the answer, for the check
    finished: bool = False

    @property
    def unfed(self) -> list[int]:
        return self.prompt[self.fed :] if self.fed < len(self.prompt) else self.answer[self.fed - len(self.prompt) :]

    @property
    def decoding(self) -> bool:
        return self.fed >= len(self.prompt)


@dataclass(frozen=True)
class Step:
    """What one step did."""

    prefill_tokens: int
    decode_tokens: int
    page_copies: int
    seconds: float
    attention_seconds: float


class Server:
    """Serves requests that share a prefix (the system prompt), greedily.

    kv_dtype: "f32", "bf16", "fp8" or "int8". token_budget: rows of a step. max_seqs: requests that run at once.
    """

    def __init__(
        self, llama: Llama, prefix: Sequence[int], *, end_token: int, kv_dtype: str = "f32", num_pages: int = 192,
        page_size: int = 16, max_seqs: int = 8, token_budget: int = 128,
    ) -> None:  # fmt: skip
        c = llama.config
        self.llama = llama
        self.end_token = end_token
        self.max_seqs = max_seqs
        self.token_budget = max(token_budget, max_seqs)
        self.cache = tw.PagedCache(num_pages, page_size)
        shape = (num_pages, page_size, 2 * c.kv_heads, c.head_dim)
        self.pools = [np.zeros(shape, KV_DTYPES[kv_dtype]) for _ in range(c.layers)]
        self.scales = calibrate(llama, prefix, kv_dtype)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.clock = 0
        self.prefix_length = len(prefix)
        self.prefix_sequence = self.cache.allocate()
        for start in range(0, len(prefix), self.token_budget):
            self._compute([self.prefix_sequence], [list(prefix[start : start + self.token_budget])])

    def submit(self, request: Request) -> None:
        """Queue a request. Refused if it could not run even alone."""
        tokens = self.prefix_length + len(request.prompt) + request.max_new_tokens
        if not request.prompt or request.max_new_tokens < 1:
            raise InvalidInput("a request needs at least one prompt token and one new token")
        if tokens > self.llama.config.context:
            raise InvalidInput(f"{tokens} tokens are more than the model's context of {self.llama.config.context}")
        shared = self.prefix_length // self.cache.page_size
        pages = -(-tokens // self.cache.page_size) - shared
        room = self.cache.num_pages - len(self.cache.pages(self.prefix_sequence))
        if pages > room:
            raise InvalidInput(f"a request of {tokens} tokens needs {pages} pages; {room} are not taken by the prefix")
        self.waiting.append(request)

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def step(self) -> Step:
        """Admit, schedule, compute, and read one token off every request whose prompt has been read."""
        began = time.perf_counter()
        self._admit()
        chosen = self._schedule()
        self.clock += 1
        if not chosen:  # everybody is still on the way
            return Step(0, 0, 0, time.perf_counter() - began, 0.0)
        decode = sum(len(tokens) for request, tokens in chosen if request.decoding)
        sequences = [request.sequence for request, _ in chosen if request.sequence is not None]
        hidden, copies, attention = self._compute(sequences, [tokens for _, tokens in chosen])
        for request, tokens in chosen:
            request.fed += len(tokens)
        ready = [(request, row) for (request, _), row in zip(chosen, hidden, strict=True) if request.decoding]
        if ready:
            logits = self.llama.logits(np.stack([row for _, row in ready]))
            for (request, row), token in zip(ready, logits.argmax(axis=1).tolist(), strict=True):
                self._take_token(request, row, token)
        prefill = sum(len(tokens) for _, tokens in chosen) - decode
        return Step(prefill, decode, copies, time.perf_counter() - began, attention)

    def _admit(self) -> None:
        """First come, first served: the first in line waits for its pages, and nobody overtakes it."""
        while self.waiting and len(self.running) < self.max_seqs:
            request = self.waiting[0]
            if request.arrival > self.clock:
                return
            sequence = self.cache.fork(self.prefix_sequence)
            try:
                self.cache.reserve(sequence, len(request.prompt) + request.max_new_tokens)
            except tw.OutOfPages:
                self.cache.free(sequence)
                return
            request.sequence = sequence
            self.running.append(self.waiting.popleft())

    def _schedule(self) -> list[tuple[Request, list[int]]]:
        """One token for everyone who decodes, then chunks of prompts, oldest first, while the budget lasts."""
        chosen = [(request, request.unfed) for request in self.running if request.decoding]
        budget = self.token_budget - len(chosen)
        for request in self.running:
            if not request.decoding and budget > 0:
                chunk = request.unfed[:budget]
                chosen.append((request, chunk))
                budget -= len(chunk)
        return chosen

    def _compute(self, sequences: list[int], tokens: list[list[int]]) -> tuple[Array, int, float]:
        """Run the rows of a step; returns the last hidden state of each sequence, page copies, attention seconds."""
        batch = self.cache.batch(sequences, [len(row) for row in tokens])
        batch.apply_copies(self.pools)
        ends = batch.cu_q_lens[1:]
        lengths = zip(batch.kv_lens, tokens, strict=True)
        positions = np.concatenate([np.arange(end - len(row), end) for end, row in lengths])
        attention_seconds = 0.0

        def attend(layer: int, q: Array, k: Array, v: Array) -> Array:
            nonlocal attention_seconds
            began = time.perf_counter()
            pages, scales = self.pools[layer], vars(self.scales[layer])
            tw.append_to_pages(pages, k, v, *batch.arrays, **scales)
            out: Array = tw.ragged_paged_attention(q, pages, *batch.arrays, **scales)
            attention_seconds += time.perf_counter() - began
            return out

        hidden = self.llama.forward(np.concatenate(tokens), positions, attend)
        return hidden[ends - 1], len(batch.copies), attention_seconds

    def _take_token(self, request: Request, hidden: Array, token: int) -> None:
        request.answer.append(token)
        request.hidden.append(hidden)
        if token == self.end_token or len(request.answer) == request.max_new_tokens:
            request.finished = True
            self.running.remove(request)
            if request.sequence is not None:
                self.cache.free(request.sequence)
                request.sequence = None
