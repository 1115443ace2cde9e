"""What PyTorch must know of our writes, and what it cannot ask of our gradients."""

from __future__ import annotations

import pytest

import tilewise as tw
from tests.conftest import require

torch = require("torch")
STEP = (torch.tensor([3]), torch.tensor([[0]]), torch.tensor([0, 3]))


@pytest.mark.parametrize("backend", ["cpu", "composed"])
def test_appended_pages_are_seen_by_autograd(backend: str) -> None:
    pages, k, w = torch.zeros(2, 4, 2, 8), torch.ones(3, 1, 8), torch.ones((), requires_grad=True)
    loss = (pages * w).sum()
    tw.append_to_pages(pages, k, k, *STEP, backend=backend)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_pages_that_share_memory_with_themselves() -> None:
    pages = torch.zeros(1, 4, 2, 8).expand(3, -1, -1, -1)
    with pytest.raises(tw.InvalidInput, match="share memory"):
        tw.append_to_pages(pages, torch.ones(3, 1, 8), torch.ones(3, 1, 8), *STEP)


def test_pages_of_inference_mode() -> None:
    with torch.inference_mode():
        pages = torch.zeros(2, 4, 2, 8)
        tw.append_to_pages(pages, torch.ones(3, 1, 8), torch.ones(3, 1, 8), *STEP)
        assert pages[0, :3].eq(1).all()


def test_batched_gradients_are_refused_in_words() -> None:
    q, k = torch.randn(1, 3, 2, 4), torch.randn(1, 3, 2, 4)
    with pytest.raises(tw.Unsupported, match=r"torch\.func\.jacrev"):
        torch.autograd.functional.jacobian(lambda q: tw.attention(q, k, k), q, vectorize=True)
    assert torch.func.jacrev(lambda q: tw.attention(q, k, k))(q).shape == (*q.shape, *q.shape)


def test_copies_are_judged_before_any_is_made() -> None:
    cache = tw.PagedCache(8, 4)
    first = cache.allocate()
    cache.batch([first], [3])
    batch = cache.batch([cache.fork(first)], [1])
    good = torch.arange(8.0)
    for bad, words in ((torch.zeros(8, 1, requires_grad=True), "gradient"), (torch.zeros(8, 1).to_sparse(), "sparse"),
                       (memoryview(bytes(8)), "memoryview")):  # fmt: skip
        with pytest.raises(tw.InvalidInput, match=words):
            batch.apply_copies([good, bad])
    assert good.tolist() == list(range(8))
    assert batch.copies_pending
