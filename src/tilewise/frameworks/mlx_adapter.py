"""MLX: lazy arrays become functions of a plan (mlx_calls.py)."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from tilewise.choose.plan import Plan, with_gradients
from tilewise.errors import InvalidInput
from tilewise.frameworks import mlx_calls
from tilewise.frameworks.mlx_namespace import NAMES, MlxNamespace
from tilewise.spec.problem import ArrayInfo, Gradients, Operands, PagedOperands


class MlxAdapter:
    """framework_protocol.Adapter for MLX.

    A call needs values, so it evaluates its inputs. Inside mx.compile there are none: the call then runs as plain
    array code, whatever backend explain() names. MLX has no 8-bit floats: its quantised pages are int8.
    append_to_pages returns new pages: MLX does not write in place.
    """

    name = "mlx"
    namespace = MlxNamespace()

    def announce(self) -> None:
        pass

    def convert(self, operands: Any) -> Any:
        """NumPy arrays of integers (lengths, page tables) are taken."""
        return type(operands)(*(
            mx.array(x) if isinstance(x, np.ndarray) and x.dtype.kind in "bi" else x for x in operands
        ))  # fmt: skip

    def info(self, name: str, x: Any) -> ArrayInfo:
        if not isinstance(x, mx.array):
            raise InvalidInput(f"{name} must be an mlx.core.array like the first argument, but is a "
                               f"{type(x).__name__}.")  # fmt: skip
        return ArrayInfo(tuple(x.shape), NAMES.get(x.dtype, str(x.dtype).rpartition(".")[2]), _device())

    def signature(self, arrays: Any) -> Any:
        return _device(), tuple([None if x is None else (tuple(x.shape), x.dtype) for x in arrays])

    def needs_grad(self, *arrays: Any) -> bool:
        return False  # not to be known here: mlx_calls plans again where a gradient is taken

    def run(self, plan: Plan, operands: Operands, need_lse: bool = True) -> Any:
        return tuple(mlx_calls.attention(plan, mlx_calls.names_of(operands))(*_given(operands)))

    def run_backward(
        self, plan: Plan, operands: Operands, out: Any, lse: Any, dout: Any, dlse: Any | None
    ) -> Gradients:
        wanted = Gradients(True, True, True, operands.bias is not None, operands.sinks is not None)
        names = mlx_calls.names_of(operands)
        call = mlx_calls.attention_backward(with_gradients(plan), names, wanted, dlse is not None)
        grads = iter(call(*_given(operands), *_given((out, lse, dout, dlse))))
        return Gradients(*(next(grads) if want else None for want in wanted))

    def run_paged(self, plan: Plan, operands: PagedOperands) -> Any:
        return tuple(mlx_calls.paged(plan, mlx_calls.names_of(operands))(*_given(operands)))

    def run_append(self, plan: Plan, operands: PagedOperands, k: Any, v: Any) -> tuple[Any, Any | None]:
        pages = mlx_calls.append(plan, mlx_calls.names_of(operands))(*_given(operands), k, v)
        return pages[0], pages[1] if len(pages) > 1 else None

    def run_merge(self, states: list[tuple[Any, Any]]) -> Any:
        merged: Any = mlx_calls.merge(*(out for out, _ in states), *(lse for _, lse in states))
        return tuple(merged)

    def scalar(self, value: float, like: Any) -> Any:
        return mx.array(value, dtype=mx.float32)


def _given(arrays: Any) -> list[Any]:
    return [x for x in arrays if x is not None]


def _device() -> str:
    return "cpu" if mx.default_device() == mx.cpu else "gpu"


adapter = MlxAdapter()
