"""CPUs: native C++ kernels (native/), one module an instruction-set level, chosen at import by library.py."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from tilewise.backends.cpu import library
from tilewise.backends.cpu.tiles import tile_choices as tile_choices
from tilewise.backends.cpu.why_not import KNOWN as KNOWN
from tilewise.backends.cpu.why_not import why_not as why_not
from tilewise.choose.plan import Plan
from tilewise.spec.problem import Gradients, Operands, PagedOperands


def missing() -> str | None:
    """Why this machine cannot use the backend at all, or None."""
    return library.missing()


def device_kind() -> str:
    """What tuned tiles are filed under."""
    return library.level()


def forward(plan: Plan, operands: Operands) -> tuple[Any, Any]:
    """(out, lse) of a dense or packed call."""
    return _launch(plan).forward(plan, operands)


def backward(plan: Plan, operands: Operands, out: Any, lse: Any, dout: Any, dlse: Any | None,
             wanted: Gradients) -> Gradients:  # fmt: skip
    """Gradients of a dense or packed call; those that are not wanted are None."""
    return _launch(plan).backward(plan, operands, out, lse, dout, dlse, wanted)


def paged(plan: Plan, operands: PagedOperands) -> tuple[Any, Any]:
    """(out, lse) of a paged call."""
    return _launch(plan).paged(plan, operands)


def append(plan: Plan, operands: PagedOperands, k: Any, v: Any) -> tuple[Any, Any | None]:
    """(k_pages, v_pages) with the new rows written."""
    return _launch(plan).append(plan, operands, k, v)


def merge(framework: str, states: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """The state of the union of the states' keys."""
    return _launcher(framework).merge(states)


def _launch(plan: Plan) -> ModuleType:
    return _launcher(plan.problem.framework)


@cache
def _launcher(framework: str) -> ModuleType:
    return import_module(f"tilewise.backends.cpu.launch_{framework}")
