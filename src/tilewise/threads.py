"""How many threads the CPU backend works on."""

from __future__ import annotations

from tilewise.backends.cpu import library
from tilewise.errors import InvalidInput, Unsupported

MOST = library.MOST_THREADS


def set_num_threads(count: int) -> None:
    """Let the CPU backend use this many threads, the caller's included. Results do not depend on it.

    The default is the CPUs that this process may run on, or TILEWISE_NUM_THREADS.

    Args:
        count: from 1 to 256; more than there are CPUs is allowed.

    Raises:
        InvalidInput: count is not an integer in [1, 256].
        Unsupported: the CPU backend is absent.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST:
        raise InvalidInput(f"set_num_threads: the count must be an integer in [1, {MOST}], but is {count!r}.")
    _native().set_num_threads(count)


def num_threads() -> int:
    """Threads that the CPU backend uses, the caller's included.

    Returns:
        The count that set_num_threads() set, else the default.

    Raises:
        Unsupported: the CPU backend is absent.
    """
    return _native().num_threads()


def _native():  # type: ignore[no-untyped-def]
    reason = library.missing()
    if reason is not None:
        raise Unsupported("The CPU backend is absent:", (("cpu", reason),))
    return library.native()
