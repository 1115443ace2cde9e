"""JAX: eager arrays and tracers alike become functions of a plan (jax_calls.py)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tilewise.backends.tpu import target
from tilewise.choose import backend_list
from tilewise.choose.plan import Plan
from tilewise.errors import InvalidInput
from tilewise.frameworks import jax_calls
from tilewise.frameworks.jax_namespace import JaxNamespace
from tilewise.spec import merge_reference
from tilewise.spec.problem import ArrayInfo, Gradients, Operands, PagedOperands

xp = JaxNamespace()
_merge = jax.jit(lambda states: merge_reference.merge(xp, states))


class JaxAdapter:
    """framework_protocol.Adapter for JAX.

    A tracer does not tell where it will run: planning then takes jax.default_device, else jax.default_backend().
    Inside tw.target("v6e") every call is planned for that TPU.
    Values (lengths, page ids) are judged by the kernels: what is wrong raises JAX's own runtime error, in words.
    jax.export asks that custom calls without a promise of stability be allowed by name: disabled_checks=
    [jax.export.DisabledSafetyCheck.custom_call("tilewise_forward")] (also _backward, _paged, _append).
    """

    name = "jax"
    namespace = xp

    def announce(self) -> None:
        pass

    def convert(self, operands: Any) -> Any:
        """NumPy arrays among JAX arrays are taken, as everywhere in JAX."""
        return type(operands)(*(_array(x) if isinstance(x, np.ndarray | np.generic) else x for x in operands))

    def info(self, name: str, x: Any) -> ArrayInfo:
        if not isinstance(x, jax.Array | np.ndarray):  # NumPy arrays go in, as in JAX's own functions
            raise InvalidInput(f"{name} must be a jax.Array like the first argument, but is a {type(x).__name__}.")
        return ArrayInfo(tuple(x.shape), x.dtype.name, _device(x))

    def signature(self, arrays: Any) -> Any:
        return tuple([None if x is None else (x.shape, x.dtype, _device(x)) for x in arrays])

    def needs_grad(self, *arrays: Any) -> bool:
        return False  # not to be known here: jax_calls plans again where a gradient is taken

    def run(self, plan: Plan, operands: Operands, need_lse: bool = True) -> tuple[Any, Any]:
        return jax_calls.attention(plan)(operands)

    def run_backward(
        self, plan: Plan, operands: Operands, out: Any, lse: Any, dout: Any, dlse: Any | None
    ) -> Gradients:
        wanted = Gradients(True, True, True, operands.bias is not None, operands.sinks is not None)
        return jax_calls.attention_backward(plan, wanted)(operands, out, lse, dout, dlse)

    def run_paged(self, plan: Plan, operands: PagedOperands) -> tuple[Any, Any]:
        return jax_calls.paged(plan)(operands)

    def run_append(self, plan: Plan, operands: PagedOperands, k: Any, v: Any) -> tuple[Any, Any | None]:
        return jax_calls.append(plan)(operands, k, v)

    def run_merge(self, states: list[tuple[Any, Any]]) -> tuple[Any, Any]:
        cpu = backend_list.load("cpu")
        arrays = [x for state in states for x in state]
        known = not any(isinstance(x, jax.core.Tracer) for x in arrays)
        if known and _device(arrays[0]) == "cpu" and cpu.missing() is None:
            return cpu.merge("jax", states)
        return _merge(states)

    def scalar(self, value: float, like: Any) -> Any:
        return jnp.float32(value)


def _array(x: Any) -> jax.Array:
    if x.dtype == np.int64:  # JAX narrows to int32 by wrapping; out of range shall stay out of range
        x = np.clip(x, -(2**31), 2**31 - 1)
    return jnp.asarray(x)


def _device(x: Any) -> str:
    if (planned := target.device()) is not None:
        return planned
    if isinstance(x, jax.core.Tracer | np.ndarray):
        default = getattr(jax.config, "jax_default_device", None)
        platform = jax.default_backend() if default is None else getattr(default, "platform", default)
        kind = jax.devices(platform)[0].device_kind if platform == "tpu" else ""
    else:
        device = next(iter(x.devices()))
        platform, kind = device.platform, device.device_kind
    if platform == "tpu":
        return target.device_of_kind(kind)
    return "cuda" if platform == "gpu" else platform


adapter = JaxAdapter()
