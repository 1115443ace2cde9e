"""What tilewise raises. Each error carries the values that explain it."""

from __future__ import annotations


class TilewiseError(Exception):
    """Base of every error that tilewise raises on purpose."""


class InvalidInput(TilewiseError, ValueError):
    """A call that has no meaning: a wrong shape, dtype, device, option or value.

    Args:
        message: what is wrong, with the values.
        given: the arguments of the call as text, name to description; printed behind the message.
    """

    def __init__(self, message: str, given: dict[str, str] | None = None) -> None:
        self.message = message
        self.given = dict(given or {})
        super().__init__(message)

    def __str__(self) -> str:
        if not self.given:
            return self.message
        return f"{self.message} Given: {', '.join(f'{name} {text}' for name, text in self.given.items())}."


class Unsupported(TilewiseError, NotImplementedError):
    """A call that has a meaning, but that no allowed backend can run.

    Attributes:
        reasons: (backend, reason) pairs, in the order in which the backends were asked.
    """

    def __init__(self, message: str, reasons: tuple[tuple[str, str], ...] = ()) -> None:
        self.message = message
        self.reasons = reasons
        super().__init__(message)

    def __str__(self) -> str:
        return "\n".join([self.message, *(f"  {backend}: {reason}" for backend, reason in self.reasons)])


class OutOfPages(TilewiseError, RuntimeError):
    """A PagedCache has too few free pages for a request; the cache is as it was before the request."""


class SlowPathWarning(UserWarning):
    """No fused kernel took the call; it runs as plain array code. The text gives each backend's reason."""
