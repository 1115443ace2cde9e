"""Google TPUs: Pallas kernels for Mosaic (pallas/). Proven with no TPU at hand: docs/tpu.md."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tilewise.backends.tpu import target
from tilewise.backends.tpu.tiles import tile_choices as tile_choices
from tilewise.backends.tpu.why_not import KNOWN as KNOWN
from tilewise.backends.tpu.why_not import why_not as why_not
from tilewise.choose.plan import Plan
from tilewise.spec.problem import Gradients, Operands, PagedOperands


def missing() -> str | None:
    """Why this machine cannot use the backend at all, or None."""
    if find_spec("jax") is None:
        return "jax is not installed"
    if target.device() is None and not _tpu_here():
        return 'JAX has no TPU here (tw.target("v6e") lowers for one that is not there)'
    return None


def device_kind() -> str:
    """What tuned tiles are filed under."""
    chip = target.current()
    return chip.name if chip else "tpu"


def _tpu_here() -> bool:
    if find_spec("libtpu") is None:
        return False
    jax = sys.modules.get("jax")
    if jax is not None:
        return jax.default_backend() == "tpu"
    return any(Path("/dev").glob("accel*")) or any(Path("/dev/vfio").glob("[0-9]*"))


def forward(plan: Plan, operands: Operands) -> tuple[Any, Any]:
    """(out, lse) of a dense or packed call."""
    return import_module("tilewise.backends.tpu.launch_jax").forward(plan, operands)


def backward(plan: Plan, operands: Operands, out: Any, lse: Any, dout: Any, dlse: Any | None,
             wanted: Gradients) -> Gradients:  # fmt: skip
    """The wanted gradients of a dense or packed call."""
    launch = import_module("tilewise.backends.tpu.launch_jax")
    gradients: Gradients = launch.backward(plan, operands, out, lse, dout, dlse, wanted)
    return gradients


def paged(plan: Plan, operands: PagedOperands) -> tuple[Any, Any]:
    """(out, lse) of a paged call."""
    return import_module("tilewise.backends.tpu.launch_jax").paged(plan, operands)


def append(plan: Plan, operands: PagedOperands, k: Any, v: Any) -> tuple[Any, Any | None]:
    """(k_pages, v_pages) with the new rows written."""
    return import_module("tilewise.backends.tpu.launch_jax").append(plan, operands, k, v)
