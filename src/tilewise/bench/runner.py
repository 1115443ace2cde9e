"""Run works in worker processes and gather their rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewise.bench import machine
from tilewise.bench.row import Row
from tilewise.bench.settings import Settings
from tilewise.bench.worker import module
from tilewise.errors import InvalidInput, TilewiseError


class BenchmarkFailed(TilewiseError):
    """A worker process ended before it had measured all cases."""


def count(works: Sequence[str], threads: Sequence[int], settings: Settings) -> int:
    """Rows that a run will have."""
    return sum(len(module(work).cases(replace(settings, threads=n))) for work in works for n in threads)


def rows(works: Sequence[str], threads: Sequence[int], settings: Settings,
         on_start: Callable[[str, int], None]) -> Iterator[Row]:  # fmt: skip
    """Measure; yields each row as it is ready. `on_start(work, threads)` is told what begins."""
    for work in works:
        for n in threads:
            chosen = replace(settings, threads=n)
            found = module(work)
            total = len(found.cases(chosen))
            step = 1 if getattr(found, "ALONE", False) else max(1, total)
            for first in range(0, total, step):
                on_start(work, n)
                yield from _run(work, chosen, first, first + step)


def save(path: Path, found: Sequence[Row], settings: Settings, command: str) -> None:
    """Write rows as JSON, one a line, with what is needed to read them."""
    document = {
        "machine": machine.describe(),
        "date": time.strftime("%Y-%m-%d"),
        "command": command,
        "quick": settings.quick,
    }
    head = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in document.items())
    lines = ",\n".join("  " + json.dumps(_short(row.as_json())) for row in found)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{\n{head},\n "rows": [\n{lines}\n ]\n}}\n', encoding="utf-8")


def load(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """(document without rows, rows) of a file that save() wrote; InvalidInput of any other."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        rows = [Row.from_json(row) for row in document.pop("rows")]
        {**document["machine"]["versions"]}  # what a report says first
        return document, rows
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidInput(f"{path} is not a file of benchmark rows ({type(error).__name__}: {error}).") from None


def _short(value: Any) -> Any:
    """The same with six digits in each float: more say nothing."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _short(inner) for name, inner in value.items()}
    return [_short(inner) for inner in value] if isinstance(value, list) else value


def _run(work: str, settings: Settings, first: int, last: int) -> Iterator[Row]:
    arguments = [work, json.dumps(settings.as_json()), str(first), str(last)]
    command = [sys.executable, "-m", "tilewise.bench.worker", *arguments]
    environment = _environment(settings.threads)
    with (
        tempfile.TemporaryFile("w+") as complaints,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True, env=environment) as worker,
    ):
        assert worker.stdout is not None
        try:
            for line in worker.stdout:
                if line.startswith("{"):
                    yield Row.from_json(json.loads(line))
        except BaseException:
            worker.kill()
            raise
        if worker.wait():
            complaints.seek(0)
            said = complaints.read().strip().splitlines() or [f"exit status {worker.returncode}"]
            raise BenchmarkFailed(f"the benchmark {work!r} at {settings.threads} threads failed: {said[-1]}")


def _environment(threads: int) -> dict[str, str]:
    environment = dict(os.environ)
    environment.pop("OPENBLAS_CORETYPE", None)  # a rival shall run as well as it can
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TILEWISE_NUM_THREADS")
    environment.update({name: str(threads) for name in names})
    environment["JAX_PLATFORMS"] = "cpu"
    package = str(Path(__file__).parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (package, environment.get("PYTHONPATH"))))
    return environment
