"""Rows as tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table

from tilewise.bench.row import OURS, Result, Row
from tilewise.bench.worker import module
from tilewise.bench.works.inputs import SHORT


def show(console: Console, rows: Sequence[Row]) -> None:
    """Print a table a work, and how many bars were reached."""
    for work, group in groupby(rows, lambda row: row.work):
        console.print(table(module(work).TITLE, list(group)))
    judged = [result.passed for row in rows for result in row.results if result.passed is not None]
    console.print(f"{sum(judged)} of {len(judged)} bars reached; a bar in brackets is stated for other machines.")


def table(title: str, rows: Sequence[Row]) -> Table:
    """The rows of one work."""
    found = Table(title=title, title_justify="left", title_style="bold")
    found.add_column("case")
    found.add_column("threads", justify="right")
    found.add_column("ms", justify="right")
    found.add_column("rate", justify="right")
    found.add_column("measured", justify="right")
    found.add_column("what")
    found.add_column("bar", justify="right")
    found.add_column("aim", justify="right")
    for row in rows:
        for i, result in enumerate(row.results):
            head = [f"{SHORT[row.dtype]} {row.case}", str(row.threads), time_text(row), rate(row)]
            value = f"[{_style(result)}]{number(result.value)}[/]"
            found.add_row(*(head if i == 0 else [""] * 4), value, result.what, *goal_texts(result))
    return found


def number(value: float) -> str:
    """Three figures, more or less."""
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 100 else f"{value:.0f}"


def time_text(row: Row) -> str:
    """Median milliseconds."""
    return f"{1e3 * row.seconds[OURS]:.4g}"


def rate(row: Row) -> str:
    """GFLOP/s, or GB/s where memory is the limit."""
    seconds = row.seconds[OURS]
    if row.peak_bytes and row.bytes:
        return f"{row.bytes / seconds / 1e9:.1f} GB/s"
    return f"{row.flops / seconds / 1e9:.0f} GFLOP/s" if row.flops else ""


def goal_texts(result: Result) -> tuple[str, str]:
    """Bar and aim; brackets where they are stated for other machines."""
    goal = result.goal
    if goal is None:
        return "", ""
    sign = "<= " if goal.lower else ""
    texts = tuple("" if value is None else f"{sign}{value:g}" for value in (goal.bar, goal.aim))
    return texts if goal.applies else tuple(f"({text})" if text else "" for text in texts)  # type: ignore[return-value]


def _style(result: Result) -> str:
    if result.passed is None:
        return "none"
    if not result.passed:
        return "red"
    assert result.goal is not None
    return "bold green" if result.goal.reached(result.value, result.goal.aim) else "green"
