"""Names of pictures, judged before an hour of work goes into one."""

from __future__ import annotations

from pathlib import Path

FORMATS = (".png", ".svg", ".pdf")


def judge(option: str, path: Path | None) -> None:
    """Refuse a name whose ending is none of FORMATS."""
    from tilewise.errors import InvalidInput

    if path is not None and path.suffix.lower() not in FORMATS:
        raise InvalidInput(f"{option} must end in {', '.join(FORMATS)}, but is {str(path)!r}.")
