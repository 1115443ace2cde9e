"""attention(): detect the framework, plan once a kind of call, run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewise.choose.plan import Plan, make_plan
from tilewise.frameworks.detect import detect, entry
from tilewise.spec import validate
from tilewise.spec.attention_spec import Window
from tilewise.spec.problem import ArrayInfo, Gradients, Operands

Array = Any
_plans: dict[Any, Plan] = {}


@entry
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    window: Window | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Array | None = None,
    mask: Array | None = None,
    sinks: Array | None = None,
    q_segment_ids: Array | None = None,
    kv_segment_ids: Array | None = None,
    q_lens: Array | None = None,
    kv_lens: Array | None = None,
    layout: str = "bthd",
    return_lse: bool = False,
    backend: str | None = None,
) -> Any:
    """Exact attention: softmax(scale * q @ k^T, masked) @ v. Differentiable in PyTorch, JAX and MLX.

    Query i of T stands at key position i + S - T (with lengths: i + kv_len - q_len), whatever the device.
    A row that sees nothing gives out 0 and lse -inf. docs/meaning.md has every rule.
    Method: FlashAttention-2 (Dao 2023), online softmax (Milakov & Gimelshein 2018).

    Args:
        q: [B, T, H, D] (layout "bthd") or [B, H, T, D] ("bhtd"); float32, bfloat16, float16 or float64.
        k, v: [B, S, Hkv, D] and [B, S, Hkv, E], the same dtype; query head h reads kv head h // (H / Hkv).
        causal: no key to the right of the query: the right side of the window is 0.
        window: (left, right) keys visible on either side, inclusive; None is open. A sliding window of W tokens,
            the query's own included, is (W - 1, 0).
        scale: factor on q @ k^T; 1 / sqrt(D) if None.
        softcap: c of c * tanh(scale * q.k / c), in logit units.
        bias: any float dtype, broadcastable to [B, H, T, S] with 4 axes; added to the logits; differentiable.
        mask: bool, broadcastable to [B, H, T, S] with 4 axes; True keeps.
        sinks: [H]; one more logit a query head, natural units, without a value; differentiable.
        q_segment_ids, kv_segment_ids: int [B, T] and [B, S]; equal ids see each other, negative ids nobody.
        q_lens, kv_lens: int [B]; the valid part of a right-padded batch.
        return_lse: also return the log-sum-exp.
        backend: None, "fused" (never plain array code) or a name of tilewise.backends().

    Returns:
        out: [B, T, H, E] ("bhtd": [B, H, T, E]) in q's dtype. With return_lse, (out, lse): natural log,
        float32 (float64 for float64), [B, H, T].

    Raises:
        InvalidInput: a shape, dtype, device, option or value without a meaning.
        Unsupported: `backend` allows no backend that takes the call.
    """
    adapter = detect(q)
    operands = adapter.convert(
        Operands(q, k, v, bias, mask, sinks, q_segment_ids, kv_segment_ids, q_lens, kv_lens)
    )  # fmt: skip
    plan = _plan(adapter, operands, causal, window, scale, softcap, layout, backend)
    out, lse = adapter.run(plan, operands, return_lse)
    return (out, lse) if return_lse else out


@entry
def attention_backward(
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    dout: Array,
    dlse: Array | None = None,
    *,
    causal: bool = False,
    window: Window | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Array | None = None,
    mask: Array | None = None,
    sinks: Array | None = None,
    q_segment_ids: Array | None = None,
    kv_segment_ids: Array | None = None,
    q_lens: Array | None = None,
    kv_lens: Array | None = None,
    layout: str = "bthd",
    backend: str | None = None,
) -> Gradients:
    """Gradients of sum(out * dout) + sum(lse * dlse), for NumPy users and for framework authors.

    Args:
        out [B, T, H, E] (or in the layout given), lse [B, H, T]: what attention(..., return_lse=True) gave for the same
            arguments.
        dout: like out. dlse: like lse, or None.
        others: as in attention().

    Returns:
        Gradients(q, k, v, bias, sinks), each in the shape and dtype of its input; None for absent inputs.

    Raises:
        InvalidInput, Unsupported: as attention(); also if out, lse, dout or dlse do not fit.
    """
    adapter = detect(q)
    operands = adapter.convert(
        Operands(q, k, v, bias, mask, sinks, q_segment_ids, kv_segment_ids, q_lens, kv_lens)
    )  # fmt: skip
    plan = _plan(adapter, operands, causal, window, scale, softcap, layout, backend, needs_grad=True)
    validate.backward_arrays("attention_backward", plan.problem, infos(adapter, {
        "out": out, "lse": lse, "dout": dout, "dlse": dlse}))  # fmt: skip
    return adapter.run_backward(plan, operands, out, lse, dout, dlse)


def _plan(adapter: Any, operands: Operands, causal: Any, window: Any, scale: Any, softcap: Any, layout: Any,
          backend: Any, needs_grad: bool = False) -> Plan:  # fmt: skip
    key = plan_key(adapter, operands, (causal, scale, softcap, layout, backend, needs_grad), window)
    plan = known_plan(key)
    if plan is not None:
        return plan
    needs_grad = needs_grad or adapter.needs_grad(operands.q, operands.k, operands.v, operands.bias, operands.sinks)
    spec, problem = validate.attention(
        infos(adapter, operands._asdict()), framework=adapter.name, needs_grad=needs_grad, causal=causal,
        window=window, scale=scale, softcap=softcap, layout=layout,
    )  # fmt: skip
    return remember(key, make_plan(spec, problem, backend))


def plan_key(adapter: Any, arrays: tuple[Any, ...], options: tuple[Any, ...], window: Any = None) -> Any:
    """What calls that plan alike have in common; None if an argument is no array (planning says so in words).

    The types of the options too: True == 1 == 1.0, but not all of them are an option's value.
    """
    try:
        kinds = (*map(type, options), *map(type, () if window is None else window))
        return adapter.name, options, window, kinds, adapter.signature(arrays)
    except (TypeError, AttributeError, RuntimeError):
        return None


def known_plan(key: Any) -> Plan | None:
    """The plan of an earlier call with this key."""
    try:
        return _plans.get(key)
    except TypeError:  # unhashable: a traced size, a list
        return None


def remember(key: Any, plan: Plan) -> Plan:
    """The plan, with room for what its backend prepares for calls with this key."""
    try:
        hash(key)
    except TypeError:
        return plan
    if key is not None:
        if len(_plans) >= 16384:
            _plans.clear()
        plan = _plans[key] = replace(plan, memo=[])
    return plan


def infos(adapter: Any, arrays: dict[str, Any]) -> dict[str, ArrayInfo | None]:
    """What planning sees of each array."""
    return {name: None if x is None else adapter.info(name, x) for name, x in arrays.items()}
