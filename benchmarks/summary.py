"""Results of benchmarks/run.py as a Markdown table: a line for each bar, with the lowest, middle and highest row.

python benchmarks/summary.py RESULTS.json [--all]    # --all: also what has no bar
"""

import argparse
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from tilewise.bench.report import goal_texts, number
from tilewise.bench.row import Result, Row
from tilewise.bench.runner import load
from tilewise.bench.works.inputs import SHORT


def label(row: Row) -> str:
    """The rows that share a line: full and causal apart, sizes together."""
    kind = row.case.rpartition(", ")[2]
    feature = row.case.partition(", N ")[0] if row.work == "features" else ""
    form = row.case.partition(",")[0] if row.work == "threads" else ""
    place = row.case.rpartition(" MB, ")[2] if row.work == "paged" else ""
    words = (row.work, form or SHORT[row.dtype], SHORT[row.dtype] if form else "",
             kind if kind in ("full", "causal") else "", feature, place)  # fmt: skip
    return " ".join(filter(None, words))


def reached(results: list[Result]) -> str:
    """How many rows reach the bar; in brackets where it is stated for other machines."""
    goals = [(result.value, result.goal) for result in results if result.goal is not None]
    if not goals:
        return ""
    text = f"{sum(goal.reached(value, goal.bar) for value, goal in goals)} of {len(goals)}"
    return text if all(goal.applies for _, goal in goals) else f"({text})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--all", action="store_true", help="also figures without a bar")
    options = parser.parse_args()
    lines: dict[tuple[str, int, str, tuple[str, str]], list[Result]] = defaultdict(list)
    for row in load(options.results)[1]:
        for result in row.results:
            if options.all or result.goal is not None:
                lines[label(row), row.threads, result.what, goal_texts(result)].append(result)
    print("| work | threads | what | lowest | middle | highest | bar | reached |\n"
          "| --- | --: | --- | --: | --: | --: | --: | --: |")  # fmt: skip
    for (name, threads, what, (bar, _)), results in lines.items():
        values = sorted(result.value for result in results)
        shown = " | ".join(number(value) for value in (values[0], statistics.median(values), values[-1]))
        print(f"| {name} | {threads} | {what} | {shown} | {bar} | {reached(results)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
