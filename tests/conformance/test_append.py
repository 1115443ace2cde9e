"""Pages after append_to_pages()."""

from __future__ import annotations

from tests.conformance.matrix import check, rows
from tilewise.testing.case import Case
from tilewise.testing.pairs import Pair


@rows("append")
def test_append(case: Case, pair: Pair) -> None:
    check("append", case, pair)
