"""out and lse of dense and packed calls."""

from __future__ import annotations

from tests.conformance.matrix import check, rows
from tilewise.testing.case import Case
from tilewise.testing.pairs import Pair


@rows("forward", "dense", "packed")
def test_forward(case: Case, pair: Pair) -> None:
    check("forward", case, pair)
