"""The table of cases itself: names, tags, reports, and docs/cases.md, which is made from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewise.testing.buffers import ORDERS
from tilewise.testing.cases import CASES, as_markdown, reports, select
from tilewise.testing.inputs import make

ROOT = Path(__file__).parents[2]


def test_names_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    assert all(name.count("/") == 1 for name in names)


def test_tags_and_reports_are_known() -> None:
    for case in CASES:
        assert case.tags <= {"smoke", "every", "plain", "long"}, case.name
        assert set(case.reports) <= set(reports()), case.name
        assert {order for _, order in case.orders} <= {*ORDERS, "expanded", "scalar"}, case.name


def test_each_report_has_a_case_a_test_or_a_reason() -> None:
    lines = (Path(__file__).parent / "reports_elsewhere.txt").read_text().splitlines()
    pairs = [line.split(" ", 1) for line in lines if not line.startswith("#")]
    elsewhere, cited = [number for number, _ in pairs], {number for case in CASES for number in case.reports}
    assert len(elsewhere) == len(set(elsewhere))
    assert not cited & set(elsewhere)
    assert cited | set(elsewhere) == set(reports())
    for number, answer in pairs:
        reason = answer.partition(":")[0] in ("other device", "not offered", "no result is wrong", "installation")
        assert reason or (ROOT / answer).exists(), number


def test_a_case_is_the_same_at_every_call() -> None:
    for case in select(tags=["smoke"]):
        one, other = make(case), make(case)
        assert repr(one.arrays) == repr(other.arrays), case.name


@pytest.mark.parametrize("form", ["dense", "packed", "paged", "append", "merge"])
def test_smoke_and_every_reach_each_form(form: str) -> None:
    assert select(["smoke"], [form])
    assert select(["every"], [form])


def test_docs_are_up_to_date() -> None:
    assert (ROOT / "docs" / "cases.md").read_text() == as_markdown(), "python -m tilewise.testing.cases > docs/cases.md"
