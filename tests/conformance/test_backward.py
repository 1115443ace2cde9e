"""Gradients of dense and packed calls."""

from __future__ import annotations

from tests.conformance.matrix import check, rows
from tilewise.testing.case import Case
from tilewise.testing.pairs import Pair


@rows("backward")
def test_backward(case: Case, pair: Pair) -> None:
    check("backward", case, pair)
