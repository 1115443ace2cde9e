"""A process that measures one work at one thread count and prints a JSON line a row.

Each gets a process of its own: every library then meets the same CPUs and starts without the others' threads or memory.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from types import ModuleType

from tilewise.bench.settings import Settings


def module(work: str) -> ModuleType:
    """The work's module: TITLE, cases(settings), measure(case, settings); ALONE: each case in a fresh process."""
    return import_module(f"tilewise.bench.works.{work}")


def use_cpus(threads: int) -> None:
    """Stay on that many CPUs, so that libraries that count CPUs for themselves take no more."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def main() -> None:
    """Arguments: the work, the settings as JSON, and the first and last case (Python's slice)."""
    work, settings = sys.argv[1], Settings.from_json(json.loads(sys.argv[2]))
    use_cpus(settings.threads)
    found = module(work)
    for case in found.cases(settings)[int(sys.argv[3]) : int(sys.argv[4])]:
        row = found.measure(case, settings)
        print(json.dumps(row.as_json()), flush=True)


if __name__ == "__main__":
    main()
