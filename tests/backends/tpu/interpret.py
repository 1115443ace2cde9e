"""Runs cases of the shipped table on the paged kernel in TPU interpret mode, on a CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tests.conftest import require
from tilewise.spec.problem import PagedOperands
from tilewise.testing import oracle, tolerance
from tilewise.testing.case import PagedCase
from tilewise.testing.cases import BY_NAME, CASES
from tilewise.testing.inputs import make

# A whole block of keys that all rows of several steps see, and an even number of kv heads: the loop in which scores run
# ahead of the softmax.
PIPELINED = replace(
    BY_NAME["paged/long prefill"], name="tpu/pipelined", heads=(4, 2), q_lens=(128,), kv_lens=(700,), tail=0
)
# Fast to compile, slow to run: the interpreter is mostly compilation.
COMPILER = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def supported(case: Any) -> bool:
    """Is it a paged call that the kernel takes? (test_refusals.py looks at the others.)"""
    if type(case) is not PagedCase:
        return False
    return "float64" not in (case.dtype, case.stored)


def paged_cases(*names: str) -> list[PagedCase]:
    """Cases that the kernel takes; with names, those."""
    return [case for case in CASES if supported(case) and (not names or case.name in names)]


def parameters(mode: str) -> Any:
    """A pltpu.InterpretParams: memory that was not written is NaN, a read out of bounds raises.

    mode: "on_wait" (copies arrive as late as they may), "eager" (at once), "races".
    """
    pltpu = require("jax.experimental.pallas.tpu")
    options: dict[str, Any] = {"uninitialized_memory": "nan", "out_of_bounds_reads": "raise"}
    options["dma_execution_mode"] = "on_wait" if mode == "on_wait" else "eager"
    return pltpu.InterpretParams(detect_races=mode == "races", **options)


def races_found() -> bool:
    """Did the last run in mode "races" see one?"""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call

    return bool(interpret_pallas_call.races.races_found)


def run(case: PagedCase, mode: str = "on_wait", tiles: Any = None, clipped: bool = True) -> dict[str, np.ndarray]:
    """out and lse of a case.

    clipped: False hands the page ids to the kernel as they are: then an impossible id that is read raises.
    """
    jax = require("jax")
    from tilewise.backends.tpu import paged_call
    from tilewise.backends.tpu.tiles import tile_choices

    inputs = make(case)
    arrays = {name: np.float32(x) if isinstance(x, float) else x for name, x in inputs.arrays.items()}
    arrays = {name: x.astype(np.int32) if x.dtype == np.int64 else x for name, x in arrays.items()}
    arrays = {name: jax.numpy.asarray(np.ascontiguousarray(x) if x.ndim else x) for name, x in arrays.items()}
    operands = PagedOperands(**{"v_pages": None, **arrays})
    tiles = tiles or next(iter(tile_choices(inputs.spec, inputs.problem)), None)

    def call(operands: PagedOperands) -> Any:
        return paged_call.paged(
            inputs.spec, inputs.problem, tiles, operands, interpret=parameters(mode), clip_ids=clipped
        )

    try:
        out, lse = jax.jit(call).lower(operands).compile(compiler_options=COMPILER)(operands)
        return {"out": np.asarray(out), "lse": np.asarray(lse)}
    except Exception:
        require("jax.experimental.pallas.tpu").reset_tpu_interpret_mode_state()
        raise


def wrong(case: PagedCase, got: dict[str, np.ndarray]) -> str | None:
    """What is wrong with the results, or None."""
    expected = oracle.expected(case)
    return next((text for name, x in got.items() if (text := tolerance.wrong(name, x, expected[name]))), None)
