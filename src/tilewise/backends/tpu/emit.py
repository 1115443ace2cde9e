"""The Mosaic MLIR of a kernel, on plain JAX: no TPU and no libtpu. Parsed back, verified and canonical."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from importlib.util import find_spec
from typing import Any

from tilewise.backends.tpu import dense_tiles, tiles
from tilewise.backends.tpu.target import CHIPS, Chip, chip_of, current, lowering_for
from tilewise.errors import InvalidInput
from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import PagedProblem, Problem

FORMATS = ("mlir", "stablehlo", "bytecode")
_CALL = re.compile(r'@tpu_custom_call\(.*?\) \{.*?backend_config = "(\{.*?)", .*?kernel_name = "([^"]*)"')
_OPERATION = re.compile(r'(?:= |^\s*)"?((?:tpu|vector|arith|memref|scf|math)\.[a-z_0-9.]+)', re.M)


def missing() -> str | None:
    """Why nothing can be emitted here, or None: plain jax is enough."""
    return None if find_spec("jax") is not None else "jax is not installed"


def emit(spec: AttentionSpec, problem: Problem | PagedProblem, chosen: Any, form: str) -> str | bytes:
    """The kernel of a call for the chip of problem.device ("tpu:v6e"), or that tw.target() names (v6e otherwise).

    A dense or packed call with problem.needs_grad: the text of both kernels of its backward pass.

    Args:
        form: "mlir" (the kernel, canonical text), "stablehlo" (the whole call, text) or "bytecode" (the kernel, as it
            is handed to the compiler).

    Raises:
        InvalidInput: another form. Unsupported: the backend refuses the call.
    """
    if form not in FORMATS:
        raise InvalidInput(f"format must be one of {', '.join(map(repr, FORMATS))}, but is {form!r}.")
    if not isinstance(problem, PagedProblem) and dense_tiles.empty(problem):
        raise InvalidInput(f"There is no kernel for a call without a row or a key ({problem.describe()}).")
    chip = chip_of(problem.device) or current() or CHIPS["v6e"]
    text = stablehlo(spec, problem, chosen or tiles.tile_choices(spec, problem)[0], chip)
    if form == "stablehlo":
        return text
    bodies = [body for _, body in kernel_bodies(text)]
    if form == "mlir":
        return "\n".join(canonical(body) for body in bodies)
    if len(bodies) > 1:
        raise InvalidInput('A backward pass is two kernels: format must be "mlir" or "stablehlo".')
    return bodies[0]


def stablehlo(spec: AttentionSpec, problem: Problem | PagedProblem, chosen: Any, chip: Chip) -> str:
    """The whole call, lowered for a chip."""
    import jax
    from jax import export

    from tilewise.backends.tpu import example_call

    arguments: tuple[Any, ...]
    if isinstance(problem, PagedProblem):
        function = example_call.paged_function(spec, problem, chosen)
        arguments = (example_call.paged_operands(spec, problem),)
    else:
        function = example_call.dense_function(spec, problem, chosen)
        arguments = example_call.dense_arguments(spec, problem)
    with lowering_for(chip):
        return export.export(jax.jit(function), platforms=["tpu"])(*arguments).mlir_module()


def kernel_bodies(text: str) -> list[tuple[str, bytes]]:
    """(name, MLIR bytecode) of every Mosaic kernel in a StableHLO module."""
    found = []
    for match in _CALL.finditer(text):
        config = json.loads(match[1].replace("\\22", '"').replace("\\5C", "\\"))
        found.append((match[2], base64.b64decode(config["custom_call_config"]["body"])))
    return found


def canonical(body: bytes) -> str:
    """A kernel's bytecode as verified, canonical text; the text was parsed back."""
    from jax._src.interpreters import mlir
    from jax._src.lib import tpu
    from jaxlib.mlir import ir
    from jaxlib.mlir.passmanager import PassManager

    context = mlir.make_ir_context()
    tpu.register_dialect(context)
    context.allow_unregistered_dialects = True  # the serialised form has its own; nothing of it is left below
    with context, ir.Location.unknown():
        module = ir.Module.parse(body)
        PassManager.parse("builtin.module(mosaic-serde{serialize=false})").run(module.operation)
        context.allow_unregistered_dialects = False
        PassManager.parse("builtin.module(canonicalize,cse)").run(module.operation)
        module.operation.verify()
        text = str(module)
        ir.Module.parse(text).operation.verify()
        return text


def count_operations(text: str) -> Counter[str]:
    """How often each operation stands in a kernel's text."""
    return Counter(_OPERATION.findall(text))
