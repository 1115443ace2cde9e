"""Consoles and progress bars. Progress bars go to stderr, so that stdout can be piped."""

from __future__ import annotations

from typing import Any


def console() -> Any:
    """rich Console on stdout; tables keep their width when stdout is a file."""
    import sys

    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=140)


def progress() -> Any:
    """A progress bar on stderr that shows what runs and how long is left."""
    from rich import progress as parts
    from rich.console import Console

    columns = (parts.TextColumn("{task.description}"), parts.BarColumn(), parts.MofNCompleteColumn(),
               parts.TimeElapsedColumn(), parts.TextColumn("left"), parts.TimeRemainingColumn())  # fmt: skip
    return parts.Progress(*columns, console=Console(stderr=True), transient=True)
