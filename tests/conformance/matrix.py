"""The rows of the suite: every case that a pair of this machine is to run."""

from __future__ import annotations

import pytest

from tilewise.testing.case import Case
from tilewise.testing.cases import CASES
from tilewise.testing.conform import CHECKS
from tilewise.testing.pairs import Pair, covers, usable_pairs, why_not


def rows(name: str, *forms: str) -> pytest.MarkDecorator:
    """Parameters `case` and `pair` of a check: all pairs of a case in turn, so that its oracle is computed once."""
    parameters = [
        pytest.param(case, pair, id=f"{pair}-{case.name}", marks=[pytest.mark.slow] if "long" in case.tags else [])
        for case in CASES
        if case.form in (forms or CHECKS[name][1])
        for pair in usable_pairs()
        if covers(pair, case, name)
    ]
    return pytest.mark.parametrize(("case", "pair"), parameters)


def check(name: str, case: Case, pair: Pair) -> None:
    """Run one check, unless the pair refuses the case (test_refusals looks at those)."""
    reason = why_not(pair, case)
    if reason is not None:
        return
    CHECKS[name][0](case, pair)
