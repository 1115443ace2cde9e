"""out and lse of paged calls."""

from __future__ import annotations

from tests.conformance.matrix import check, rows
from tilewise.testing.case import Case
from tilewise.testing.pairs import Pair


@rows("forward", "paged")
def test_paged(case: Case, pair: Pair) -> None:
    check("forward", case, pair)
