"""tilewise verify: the conformance suite on this machine."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer


def verify(
    backend: Annotated[list[str] | None, typer.Option(help="Only these. Default: all that work here.")] = None,
    framework: Annotated[list[str] | None, typer.Option(help="Only these: numpy, torch, jax, mlx.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help='Only cases with such a tag: "smoke", "every", "long".')] = None,
    out: Annotated[Path | None, typer.Option(help="Write every result as JSON.")] = None,
) -> None:
    """Run the conformance suite here. Exits with 1 if anything failed."""
    from rich.table import Table

    from tilewise.cli import files, screen
    from tilewise.testing import verify as run
    from tilewise.testing.cases import CASES
    from tilewise.testing.pairs import all_pairs

    files.judge("--out", out)
    console = screen.console()
    known = all_pairs()
    _known("--backend", backend, {pair.backend for pair in known})
    _known("--framework", framework, {pair.framework for pair in known})
    _known("--tag", tag, {name for case in CASES for name in case.tags})
    absent = {
        str(pair): pair.missing()
        for pair in known
        if (not backend or pair.backend in backend) and (not framework or pair.framework in framework)
    }
    with screen.progress() as bar:
        task = bar.add_task("verify", total=None)

        def progress(result: Any, done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, description=f"{result.pair}")

        results = run(backend or None, framework or None, tag or None, progress)
    if out is not None:
        out.write_text(json.dumps([_as_json(result) for result in results], indent=1) + "\n", encoding="utf-8")

    counts: dict[str, Counter[str]] = {name: Counter() for name in absent}
    seconds: Counter[str] = Counter()
    for result in results:
        counts[str(result.pair)][result.status] += 1
        seconds[str(result.pair)] += result.seconds  # type: ignore[assignment]
    table = Table()
    for column in ("backend-framework", "right", "refused, as announced", "failed", "seconds", ""):
        table.add_column(column, justify="left" if column in ("backend-framework", "") else "right")
    for name, count in counts.items():
        numbers = [str(count[status]) for status in ("ok", "refused", "failed")]
        row = [*numbers, f"{seconds[name]:.1f}"] if not absent[name] else [""] * 4
        table.add_row(name, *row, absent[name] or "")
    console.print(table)
    failed = [result for result in results if result.status == "failed"]
    for result in failed[:20]:
        line = f"{result.pair} {result.check} {result.case.name}: {result.message}"
        console.print(line, markup=False, highlight=False)
    if len(failed) > 20:
        console.print(f"... and {len(failed) - 20} more")
    if not results:
        typer.echo("tilewise: nothing was run: no such pair works here", err=True)
        raise typer.Exit(3)
    if failed:
        typer.echo(f"tilewise: {len(failed)} of {len(results)} checks failed", err=True)
        raise typer.Exit(1)
    console.print(f"all {len(results)} checks passed")


def _known(option: str, chosen: list[str] | None, names: set[str]) -> None:
    from tilewise.cli.choices import one_of

    for name in chosen or []:
        one_of(option, name, sorted(names))


def _as_json(result: Any) -> dict[str, Any]:
    return {"case": result.case.name, "pair": str(result.pair), "check": result.check, "status": result.status,
            "message": result.message, "seconds": result.seconds}  # fmt: skip
