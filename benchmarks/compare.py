"""Compare two results of benchmarks/run.py: how many times faster the second is, row by row.

python benchmarks/compare.py BEFORE.json AFTER.json [--worse-than 1.05]   # exit code 1 if a row got slower than that
"""

import argparse
import statistics
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tilewise.bench.row import OURS, Row
from tilewise.bench.runner import load


def key(row: Row) -> tuple[str, str, str, int]:
    """What makes two rows the same measurement."""
    return row.work, row.case, row.dtype, row.threads


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--worse-than", type=float, help="exit with 1 if a row takes more than this many times longer")
    options = parser.parse_args()
    (before_doc, before), (after_doc, after) = load(options.before), load(options.after)
    console = Console() if sys.stdout.isatty() else Console(width=140)
    if before_doc["machine"] != after_doc["machine"]:
        console.print("measured on different machines or with different versions: compare ratios, not times")
    earlier = {key(row): row for row in before}
    table = Table("work", "case", "dtype", "threads", "before ms", "after ms", "x faster", "spread %")
    speedups = []
    for row in after:
        old = earlier.get(key(row))
        if old is None:
            continue
        speedups.append(old.seconds[OURS] / row.seconds[OURS])
        spread = 100 * max(old.spread.get(OURS, 0), row.spread.get(OURS, 0))
        times = (f"{1e3 * x.seconds[OURS]:.4g}" for x in (old, row))
        table.add_row(*map(str, key(row)), *times, f"{speedups[-1]:.3f}", f"{spread:.1f}")
    console.print(table)
    if not speedups:
        print("the two have no row in common", file=sys.stderr)
        return 2
    console.print(f"geometric mean of {len(speedups)} rows: {statistics.geometric_mean(speedups):.3f}")
    return int(options.worse_than is not None and min(speedups) < 1 / options.worse_than)


if __name__ == "__main__":
    sys.exit(main())
