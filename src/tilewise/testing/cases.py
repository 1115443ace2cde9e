"""The one table of named cases: what tests, `tilewise verify` and docs/cases.md are made of."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files

from tilewise.testing import cases_infinity, cases_meaning, cases_numbers, cases_paged, cases_ragged
from tilewise.testing.case import Case

CASES: tuple[Case, ...] = (
    *cases_meaning.CASES, *cases_numbers.CASES, *cases_infinity.CASES, *cases_ragged.CASES, *cases_paged.CASES,
)  # fmt: skip
BY_NAME = {case.name: case for case in CASES}


def select(tags: Iterable[str] | None = None, forms: Iterable[str] | None = None) -> list[Case]:
    """Cases with one of these tags (None: all but the long ones) and of these forms (None: all)."""
    wanted, shapes = None if tags is None else set(tags), None if forms is None else set(forms)
    return [
        case for case in CASES
        if (wanted & case.tags if wanted is not None else "long" not in case.tags)
        and (shapes is None or case.form in shapes)
    ]  # fmt: skip


@lru_cache(maxsize=1)
def reports() -> dict[str, str]:
    """Report number -> address of the thread in which a user of another kernel told of the fault."""
    lines = (files("tilewise.testing") / "reports.txt").read_text().splitlines()
    parts = (line.split() for line in lines)
    return {number: f"https://github.com/{project}/{kind}/{thread}" for number, project, kind, thread in parts}


def as_markdown() -> str:
    """The table for docs/cases.md."""
    lines = [
        "# The conformance cases",
        "",
        "Made from `src/tilewise/testing/` by `python -m tilewise.testing.cases > docs/cases.md`.",
        "",
        f"{len(CASES)} cases. Each runs on every backend with NumPy arrays, those tagged *every* on all frameworks.",
        "*smoke* is a quick cross-section, *long* takes seconds. Dense and packed cases check gradients too.",
        "Reports are public threads about other kernels in which the fault that a case looks for was found.",
    ]
    group = None
    for case in CASES:
        if (now := case.name.partition("/")[0]) != group:
            group = now
            lines += ["", f"## {group}", "", "| case | what must hold | tags | reports |", "| --- | --- | --- | --- |"]
        links = ", ".join(f"[{number}]({reports()[number]})" for number in dict.fromkeys(case.reports))
        name = case.name.partition("/")[2].replace("|", "/")
        lines.append(f"| {name} | {case.says} | {' '.join(sorted(case.tags))} | {links} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(as_markdown(), end="")
