"""Options that are one of some names."""

from __future__ import annotations

from collections.abc import Collection


def one_of(option: str, chosen: str, names: Collection[str]) -> str:
    """`chosen`; InvalidInput with all names if it is none of them."""
    from tilewise.errors import InvalidInput

    if chosen not in names:
        raise InvalidInput(f"{option} must be one of {', '.join(names)}, but is {chosen!r}.")
    return chosen


def listed(texts: list[str] | None) -> list[str]:
    """The names of an option that is repeated, or has commas between them."""
    return [name for text in texts or [] for name in text.split(",")]
