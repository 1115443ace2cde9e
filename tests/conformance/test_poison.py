"""What may not be looked at changes no bit."""

from __future__ import annotations

from tests.conformance.matrix import check, rows
from tilewise.testing.case import Case
from tilewise.testing.pairs import Pair


@rows("poison")
def test_poison(case: Case, pair: Pair) -> None:
    check("poison", case, pair)
