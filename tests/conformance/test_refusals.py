"""What a pair refuses it refuses in words, and tests/known_gaps/ lists it: compared both ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewise.testing.cases import BY_NAME, CASES
from tilewise.testing.conform import check_refused
from tilewise.testing.pairs import Pair, all_pairs, covers, usable_pairs, why_not

FOLDER = Path(__file__).parents[1] / "known_gaps"


def listed(pair: Pair) -> dict[str, str]:
    """Case -> reason, as reviewed: lines "case: reason" of known_gaps/<backend>-<framework>.txt."""
    path = FOLDER / f"{pair}.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return dict(line.split(": ", 1) for line in lines if line and not line.startswith("#"))


@pytest.mark.parametrize("pair", usable_pairs(), ids=str)
def test_gaps_are_those_listed(pair: Pair) -> None:
    found = {case.name: why_not(pair, case) for case in CASES if covers(pair, case)}
    assert {name: reason for name, reason in found.items() if reason is not None} == listed(pair)


@pytest.mark.parametrize("pair", usable_pairs(), ids=str)
def test_gaps_are_refused(pair: Pair) -> None:
    for name in listed(pair):
        check_refused(BY_NAME[name], pair)


def test_lists_are_of_pairs_and_cases() -> None:
    names = {str(pair): pair for pair in all_pairs()}
    for path in FOLDER.glob("*.txt"):
        assert path.stem in names, path.name
        assert set(listed(names[path.stem])) <= set(BY_NAME), path.name
