"""Names of files to write, judged before an hour of work goes into one."""

from __future__ import annotations

from pathlib import Path

PICTURES = (".png", ".svg", ".pdf")


def judge(option: str, path: Path | None) -> None:
    """Refuse a file in a folder that is not there."""
    from tilewise.errors import InvalidInput

    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise InvalidInput(f"{option} must name a file in a folder that exists, but is {str(path)!r}.")


def judge_picture(option: str, path: Path | None) -> None:
    """Refuse also a name whose ending is none of PICTURES."""
    from tilewise.errors import InvalidInput

    if path is not None and path.suffix.lower() not in PICTURES:
        raise InvalidInput(f"{option} must end in {', '.join(PICTURES)}, but is {str(path)!r}.")
    judge(option, path)
