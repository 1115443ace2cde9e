"""The union of attention states."""

from __future__ import annotations

from tests.conformance.matrix import check, rows
from tilewise.testing.case import Case
from tilewise.testing.pairs import Pair


@rows("forward", "merge")
def test_merge(case: Case, pair: Pair) -> None:
    check("forward", case, pair)
