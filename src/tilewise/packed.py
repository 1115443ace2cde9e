"""attention_packed(): sequences of different lengths laid end to end, with gradients."""

from __future__ import annotations

from typing import Any

from tilewise.attention import infos, known_plan, plan_key, remember
from tilewise.choose.plan import Plan, make_plan
from tilewise.frameworks.detect import detect, entry
from tilewise.spec import validate
from tilewise.spec.attention_spec import Window
from tilewise.spec.problem import Gradients, Operands

Array = Any


@entry
def attention_packed(
    q: Array,
    k: Array,
    v: Array,
    q_starts: Array,
    kv_starts: Array,
    *,
    causal: bool = False,
    window: Window | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    return_lse: bool = False,
    backend: str | None = None,
) -> Any:
    """Exact attention within each of n sequences laid end to end ("varlen"). Differentiable.

    Sequence i owns queries q_starts[i] .. q_starts[i + 1] - 1 and keys kv_starts[i] .. kv_starts[i + 1] - 1;
    either may be empty. Its last query stands at its last key. Tokens of no sequence give out 0 and lse -inf.

    Args:
        q: [tokens, H, D]; k: [kv_tokens, Hkv, D]; v: [kv_tokens, Hkv, E].
        q_starts, kv_starts: int32 (int64 accepted) [n + 1], not falling.
        others: as in attention().

    Returns:
        out: [tokens, H, E] in q's dtype. With return_lse, (out, lse [H, tokens]).

    Raises:
        InvalidInput, Unsupported: as attention().
    """
    adapter = detect(q)
    operands = adapter.convert(Operands(q, k, v, sinks=sinks, q_starts=q_starts, kv_starts=kv_starts))
    plan = _plan(adapter, operands, causal, window, scale, softcap, backend)
    out, lse = adapter.run(plan, operands, return_lse)
    return (out, lse) if return_lse else out


@entry
def attention_packed_backward(
    q: Array,
    k: Array,
    v: Array,
    q_starts: Array,
    kv_starts: Array,
    out: Array,
    lse: Array,
    dout: Array,
    dlse: Array | None = None,
    *,
    causal: bool = False,
    window: Window | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    backend: str | None = None,
) -> Gradients:
    """Gradients of sum(out * dout) + sum(lse * dlse) of attention_packed(), for NumPy users and framework authors.

    Args:
        out [tokens, H, E], lse [H, tokens]: what attention_packed(..., return_lse=True) gave for the same arguments.
        dout: like out. dlse: like lse, or None.
        others: as in attention_packed().

    Returns:
        Gradients(q, k, v, None, sinks), each in the shape and dtype of its input.

    Raises:
        InvalidInput, Unsupported: as attention_packed(); also if out, lse, dout or dlse do not fit.
    """
    adapter = detect(q)
    operands = adapter.convert(Operands(q, k, v, sinks=sinks, q_starts=q_starts, kv_starts=kv_starts))
    plan = _plan(adapter, operands, causal, window, scale, softcap, backend, needs_grad=True)
    arrays = {"out": out, "lse": lse, "dout": dout, "dlse": dlse}
    validate.backward_arrays("attention_packed_backward", plan.problem, infos(adapter, arrays))
    return adapter.run_backward(plan, operands, out, lse, dout, dlse)


def _plan(adapter: Any, operands: Operands, causal: Any, window: Any, scale: Any, softcap: Any, backend: Any,
          needs_grad: bool = False) -> Plan:  # fmt: skip
    key = plan_key(adapter, operands, ("packed", causal, scale, softcap, backend, needs_grad), window)
    plan = known_plan(key)
    if plan is not None:
        return plan
    needs_grad = needs_grad or adapter.needs_grad(operands.q, operands.k, operands.v, operands.sinks)
    spec, problem = validate.attention_packed(
        infos(adapter, operands._asdict()), framework=adapter.name, needs_grad=needs_grad, causal=causal,
        window=window, scale=scale, softcap=softcap,
    )  # fmt: skip
    return remember(key, make_plan(spec, problem, backend))
