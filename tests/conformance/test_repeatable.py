"""Same inputs, same bits: call by call, and on any number of threads."""

from __future__ import annotations

from tests.conformance.matrix import check, rows
from tilewise.testing.case import Case
from tilewise.testing.pairs import Pair


@rows("repeatable")
def test_repeatable(case: Case, pair: Pair) -> None:
    check("repeatable", case, pair)
