"""Sizes on the command line: "1x4096x32x128", "1023,0", "256:4096"."""

from __future__ import annotations

from tilewise.errors import InvalidInput
from tilewise.spec.attention_spec import Window


def shape(option: str, text: str, axes: str) -> tuple[int, ...]:
    """ "1x4096x32x128" -> (1, 4096, 32, 128); `axes` names what is expected: "B T H D"."""
    names = axes.split()
    parts = text.lower().replace(",", "x").split("x")
    if len(parts) != len(names) or not all(part.strip().isdigit() for part in parts):
        raise InvalidInput(f"{option} must be {'x'.join(names)}, like {'x'.join('2' * len(names))}, but is {text!r}.")
    return tuple(int(part) for part in parts)


def window(text: str | None) -> Window | None:
    """ "1023,0" -> (1023, 0); an empty side is open: "1023," -> (1023, None)."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(part in ("", "none") or part.lstrip("-").isdigit() for part in parts):
        raise InvalidInput(f"--window must be LEFT,RIGHT with an empty side for open, like 1023,0, but is {text!r}.")
    left, right = (None if part in ("", "none") else int(part) for part in parts)
    return left, right


def lengths(text: str) -> tuple[int, int]:
    """ "256:4096" -> (256, 4096): new tokens and keys of a sequence."""
    queries, colon, keys = text.partition(":")
    if not colon or not queries.isdigit() or not keys.isdigit():
        raise InvalidInput(f"--sequence must be QUERIES:KEYS, like 256:4096, but is {text!r}.")
    return int(queries), int(keys)
