"""emit(): the kernel of a call as text, with no device."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tilewise.errors import InvalidInput, Unsupported
from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import PagedProblem, Problem

EMITTERS = {"tpu": "tilewise.backends.tpu"}


def emit(backend: str, spec: AttentionSpec, problem: Problem | PagedProblem, tiles: Any = None, *,
         format: str = "mlir") -> str | bytes:  # fmt: skip
    """The IR or source of the kernel that would run a call. Needs no device.

    Args:
        backend: "tpu".
        spec, problem: the call; problem.device and problem.framework are those of the device meant.
        tiles: the backend's own; None: its first choice.
        format: for "tpu": "mlir", "stablehlo" or "bytecode".

    Returns:
        Text; bytes for "bytecode".

    Raises:
        InvalidInput: an unknown backend or format. Unsupported: the backend refuses the call.
    """
    if backend not in EMITTERS:
        raise InvalidInput(f"backend must be one of {', '.join(map(repr, EMITTERS))}, but is {backend!r}.")
    module = import_module(EMITTERS[backend])
    unknown = sorted(spec.features() - module.KNOWN)
    reason = f"does not know {', '.join(unknown)}" if unknown else module.why_not(spec, problem)
    emitter = import_module(f"{EMITTERS[backend]}.emit")
    if reason is None:
        reason = emitter.missing()
    if reason is not None:
        raise Unsupported(f"No kernel for this call ({problem.describe()}; {spec.describe()}):", ((backend, reason),))
    return emitter.emit(spec, problem, tiles, format)
