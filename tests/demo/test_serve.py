"""The server against generation that keeps nothing and recomputes everything."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.demo.tiny import END, greedy, tiny_llama
from tilewise.demo.check import check_answer
from tilewise.demo.kv_formats import KV_DTYPES, calibrate
from tilewise.demo.llama import Llama
from tilewise.demo.serve import Request, Server

LLAMA = tiny_llama()
PREFIX = [7, 3, 9, 12, 30, 41, 5]


def make_requests(count: int, seed: int, longest: int = 40, new_tokens: int = 9) -> list[Request]:
    random = np.random.default_rng(seed)
    return [
        Request(random.integers(1, 61, random.integers(1, longest)).tolist(), new_tokens, arrival=int(i))
        for i in np.sort(random.integers(0, 12, count))
    ]


def serve(server: Server, requests: list[Request]) -> None:
    for request in requests:
        server.submit(request)
    for _ in range(2000):
        if not server.busy:
            return
        server.step()
    pytest.fail("the server did not finish")


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize(("max_seqs", "token_budget"), [(1, 1), (3, 5), (8, 64)])
def test_answers_are_those_of_plain_generation(page_size: int, max_seqs: int, token_budget: int) -> None:
    server = Server(
        LLAMA, PREFIX, end_token=END, page_size=page_size, num_pages=480 // page_size, max_seqs=max_seqs,
        token_budget=token_budget,
    )  # fmt: skip
    requests = make_requests(6, seed=page_size)
    serve(server, requests)
    for request in requests:
        assert request.finished
        assert request.answer == greedy(LLAMA, [*PREFIX, *request.prompt], request.max_new_tokens)
    assert server.cache.sequence_ids == (server.prefix_sequence,)
    assert server.cache.pages_used == len(server.cache.pages(server.prefix_sequence))


def test_prompts_and_decodes_share_steps_and_prefix_pages() -> None:
    server = Server(LLAMA, PREFIX, end_token=END, page_size=4, num_pages=64, token_budget=8)
    requests = make_requests(5, seed=1)
    for request in requests:
        server.submit(request)
    steps, shared = [], 0
    while server.busy:
        steps.append(server.step())
        shared = max(shared, server.cache.references(server.cache.pages(server.prefix_sequence)[0]))
    assert any(step.prefill_tokens and step.decode_tokens for step in steps)
    assert max(step.prefill_tokens + step.decode_tokens for step in steps) <= 8
    assert sum(step.prefill_tokens for step in steps) == sum(len(request.prompt) for request in requests)
    assert sum(step.page_copies for step in steps) == len(requests)  # the prefix ends inside a page
    assert shared > 2


def test_the_first_in_line_waits_for_pages_and_nobody_overtakes() -> None:
    large, small = Request([5] * 30, 4), Request([6, 7], 4)
    server = Server(LLAMA, PREFIX, end_token=-1, page_size=4, num_pages=12)
    first = Request([4] * 10, 12)
    for request in (first, large, small):
        server.submit(request)
    server.step()
    assert server.running == [first]
    assert list(server.waiting) == [large, small]
    while server.busy:
        server.step()
    assert [len(request.answer) for request in (first, large, small)] == [12, 4, 4]


def test_requests_that_can_never_run_are_refused_at_the_door() -> None:
    server = Server(LLAMA, PREFIX, end_token=END, page_size=4, num_pages=12)
    with pytest.raises(ValueError, match="needs 11 pages; 10 are not taken"):
        server.submit(Request([1] * 30, 8 + 2))
    with pytest.raises(ValueError, match="context of 256"):
        server.submit(Request([1] * 300, 8))
    with pytest.raises(ValueError, match="at least one"):
        server.submit(Request([], 8))
    server.submit(Request([1] * 30, 4))


def test_a_late_request_finds_an_idle_server() -> None:
    server = Server(LLAMA, PREFIX, end_token=END, num_pages=16)
    serve(server, [Request([3, 4], 3, arrival=5)])
    assert server.clock > 5


@pytest.mark.parametrize("kv_dtype", [name for name in KV_DTYPES if name != "f32"])
def test_narrow_pages_stay_near_the_dense_run(kv_dtype: str) -> None:
    server = Server(LLAMA, PREFIX, end_token=END, kv_dtype=kv_dtype, num_pages=64)
    assert server.pools[0].dtype == KV_DTYPES[kv_dtype]
    requests = make_requests(4, seed=3)
    serve(server, requests)
    checks = [check_answer(LLAMA, PREFIX, request, find_ties=False) for request in requests]
    wide = max(np.abs(LLAMA.logits(np.stack(request.hidden))).max() for request in requests)
    # Storing with a relative error r moves logits by some r times their size; fp8 has r = 1/16, the coarsest.
    assert 0 < max(check.largest_logit_difference for check in checks) < wide / 4


def test_calibration_has_one_scale_a_layer_and_head() -> None:
    scales = calibrate(LLAMA, PREFIX, "int8")
    assert [scale.k_scale.shape for scale in scales] == [(2,), (2,)]
    assert all(np.all(scale.v_scale > 0) for scale in scales)
    assert calibrate(LLAMA, PREFIX, "bf16")[0].k_scale is None


class TestCheck:
    def served(self) -> Request:
        request = Request([5, 6, 7, 8], 8)
        serve(Server(LLAMA, PREFIX, end_token=-1, num_pages=16), [request])
        return request

    def test_a_right_answer_is_exact(self) -> None:
        check = check_answer(LLAMA, PREFIX, self.served())
        assert (check.agreed, check.tokens, check.exact) == (8, 8, True)
        assert check.largest_logit_difference < 1e-4

    def test_a_wrong_token_is_found_and_is_no_tie(self) -> None:
        request = self.served()
        request.answer[3] = (request.answer[3] + 1) % 61
        check = check_answer(LLAMA, PREFIX, request)
        assert not check.exact
        first = check.disagreements[0]
        assert (first.position, first.served) == (3, request.answer[3])
        assert first.gap > 2 * first.noise

    def test_wrong_hidden_states_show_as_logit_difference(self) -> None:
        request = self.served()
        request.hidden[2] = request.hidden[2] + 1
        assert check_answer(LLAMA, PREFIX, request).largest_logit_difference > 0.1

    def test_equal_logits_are_a_tie(self) -> None:
        """Two tokens with one embedding have one logit; argmax takes the first, so serving the second is no error."""
        request = Request([5, 6, 7, 8], 1)
        serve(Server(LLAMA, PREFIX, end_token=-1, num_pages=16), [request])
        picked = request.answer[0]
        twin = next(t for t in range(picked + 1, 61) if t not in (*PREFIX, *request.prompt))
        embedding = LLAMA.weights.embedding.copy()
        embedding[twin] = embedding[picked]
        llama = Llama(dataclasses.replace(LLAMA.weights, embedding=embedding))
        request.answer[0] = twin
        check = check_answer(llama, PREFIX, request)
        assert [(d.served, d.dense, d.tie) for d in check.disagreements] == [(twin, picked, True)]
        assert check.exact
