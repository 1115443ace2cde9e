"""tilewise bench: measure against rivals, in one run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewise.bench import WORKS
from tilewise.cli.choices import listed, one_of

if TYPE_CHECKING:
    from tilewise.bench.row import Row
    from tilewise.bench.settings import Settings


def bench(
    work: Annotated[list[str] | None, typer.Option(help=f"What to measure: {', '.join(WORKS)}. Default: all.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only these dtypes. Default: those with goals.")] = None,
    threads: Annotated[str, typer.Option(help="Thread counts, e.g. 1,2.")] = "1",
    quick: Annotated[bool, typer.Option(help="Fewer sizes and rounds; not for quoting.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the rows as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw roofline and rivals: NAME.png, .svg or .pdf.")] = None,
    read: Annotated[Path | None, typer.Option(help="Show rows that --out wrote; measure nothing.")] = None,
    check: Annotated[bool, typer.Option(help="Exit with 1 if a bar of this machine is missed.")] = False,
    backend: Annotated[str, typer.Option(help="Backend to measure.")] = "fused",
) -> None:
    """Measure against rivals in the same run.

    Rivals take turns; what was reached is printed beside the bar and the aim.
    """
    from tilewise.bench import machine, plots, report, runner
    from tilewise.bench.settings import Settings
    from tilewise.choose.backend_list import MODULES
    from tilewise.cli import files, screen
    from tilewise.errors import Unsupported

    files.judge_picture("--plot", plot)
    files.judge("--out", out)
    console = screen.console()
    if plot is not None:
        plots.pyplot()  # say it before an hour of measuring
    if read is not None:
        document, rows = runner.load(read)
    else:
        one_of("--backend", backend, ("fused", *MODULES))
        settings = Settings(dtypes=_dtypes(dtype), quick=quick, backend=backend)
        if importlib.util.find_spec("torch") is None:
            raise Unsupported("The rivals are PyTorch's: pip install torch.")
        document = {"machine": machine.describe()}
        rows = []
        try:
            _measure(_works(work), _threads(threads), settings, rows)
        finally:  # what was measured before a failure or Ctrl-C is kept
            if out is not None and rows:
                runner.save(out, rows, settings, "tilewise " + " ".join(sys.argv[1:]))
    found = document["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    console.print(f"{found['cpu']}, {found['cpus']} CPUs, level {found['level']}; {versions}", highlight=False)
    report.show(console, rows)
    if plot is not None:
        for path in plots.draw(rows, f"{found['cpu']}, {found['level']}", plot):
            console.print(f"wrote {path}")
    if check and any(result.passed is False for row in rows for result in row.results):
        raise typer.Exit(1)


def _measure(works: list[str], threads: list[int], settings: Settings, rows: list[Row]) -> None:
    """Measure, and append each row as it is ready."""
    from tilewise.bench import runner
    from tilewise.cli import screen

    with screen.progress() as progress:
        task = progress.add_task("", total=runner.count(works, threads, settings))

        def on_start(work: str, n: int) -> None:
            progress.update(task, description=f"{work}, {n} thread{'s' if n > 1 else ''}")

        for row in runner.rows(works, threads, settings, on_start):
            rows.append(row)
            progress.advance(task)


def _works(chosen: list[str] | None) -> list[str]:
    return [one_of("--work", name, WORKS) for name in listed(chosen)] or list(WORKS)


def _dtypes(chosen: list[str] | None) -> tuple[str, ...]:
    from tilewise.spec.problem import PAGE_DTYPES

    return tuple(one_of("--dtype", name, PAGE_DTYPES) for name in listed(chosen))


def _threads(text: str) -> list[int]:
    from tilewise.errors import InvalidInput

    counts = [int(part) if part.isdigit() else 0 for part in text.split(",")]
    if not all(counts):
        raise InvalidInput(f"--threads must be positive integers with commas between, but is {text!r}.")
    return counts
