"""The rows of the suite: every case that a pair of this machine is to run."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tilewise.testing.case import Case
from tilewise.testing.cases import CASES
from tilewise.testing.conform import CHECKS
from tilewise.testing.pairs import Pair, covers, usable_pairs, why_not


def rows(forms: Iterable[str], tags: Iterable[str] | None = None) -> pytest.MarkDecorator:
    """Parameters `case` and `pair`: all pairs of a case in turn, so that its oracle is computed once."""
    wanted = None if tags is None else set(tags)
    parameters = [
        pytest.param(case, pair, id=f"{pair}-{case.name}", marks=[pytest.mark.slow] if "long" in case.tags else [])
        for case in CASES
        if case.form in set(forms) and (wanted is None or wanted & case.tags)
        for pair in usable_pairs()
        if covers(pair, case)
    ]
    return pytest.mark.parametrize(("case", "pair"), parameters)


def check(name: str, case: Case, pair: Pair) -> None:
    """Run one check, unless the pair refuses the case (test_refusals looks at those)."""
    reason = why_not(pair, case)
    if reason is not None:
        return
    CHECKS[name][0](case, pair)
