"""The suite itself: what it must notice, and that a CI run leaves no pair out."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import pytest

import tilewise
from tilewise.testing import cases, conform
from tilewise.testing.cases import BY_NAME
from tilewise.testing.pairs import Pair, all_pairs, usable_pairs

COMPOSED = Pair("composed", "numpy")


@pytest.mark.skipif(os.environ.get("CI", "").lower() != "true", reason="a user need not have every framework")
@pytest.mark.parametrize("pair", [pair for pair in all_pairs() if pair.backend in ("cpu", "composed")], ids=str)
def test_ci_has_every_pair(pair: Pair) -> None:
    """A build without a usable level, or a framework that was not installed, must not make a green run."""
    assert pair.missing() is None


@pytest.mark.parametrize("offset", [-1, 0])
def test_a_byte_before_or_behind_the_pages_is_noticed(offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case, right = BY_NAME["append/mixed"], tilewise.append_to_pages
    conform.check_append(case, COMPOSED)

    def wrong(kv_pages: Any = None, **others: Any) -> Any:
        pages = right(kv_pages, **others)
        ctypes.memset(pages.ctypes.data + (offset if offset < 0 else pages.nbytes), 0, 1)
        return pages

    monkeypatch.setattr(tilewise, "append_to_pages", wrong)
    with pytest.raises(conform.Mismatch, match="k_pages, or the guard bytes around it"):
        conform.check_append(case, COMPOSED)


def test_verify_takes_iterators(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BY_NAME["merge/two"]
    monkeypatch.setattr(cases, "select", lambda tags: [case])
    names = ("numpy", "torch")
    found = {result.pair for result in conform.verify(backends=iter(["composed"]), frameworks=iter(names))}
    assert found == {pair for pair in usable_pairs() if pair.backend == "composed" and pair.framework in names}
