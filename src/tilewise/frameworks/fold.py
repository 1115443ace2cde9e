"""vmap over n dense calls of batch B as one call of batch n * B."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewise.choose.plan import Plan, make_plan
from tilewise.spec.problem import ArrayInfo, Operands


def foldable(plan: Plan, operands: Operands, mapped: tuple[bool, ...], backward: bool = False) -> bool:
    """Can one call do the work of all? mapped: does an operand have the new leading axis?

    Sinks have no batch axis; nor may a gradient that is summed over the batch mix the calls.
    """
    if plan.problem.form != "dense":
        return False
    given = dict(zip(Operands._fields, mapped))
    return not (plan.spec.sinks or plan.spec.bias) if backward else not given["sinks"]


def fold(xp: Any, plan: Plan, operands: Operands, mapped: tuple[bool, ...], n: int) -> tuple[Plan, Operands]:
    """The plan and operands of the one call."""
    pairs = dict(zip(Operands._fields, mapped))
    folded = Operands(*(
        None if x is None else _fold_operand(xp, x, pairs[name], n, plan.problem.batch, name)
        for name, x in operands._asdict().items()
    ))  # fmt: skip
    changed = {
        name: ArrayInfo(tuple(getattr(folded, name).shape), getattr(plan.problem, name).dtype, plan.problem.device)
        for name in ("bias", "mask") if getattr(folded, name) is not None
    }  # fmt: skip
    problem = replace(plan.problem, batch=n * plan.problem.batch, **changed)
    return make_plan(plan.spec, problem, plan.backend), folded


def merge_axes(xp: Any, x: Any, mapped: bool, n: int) -> Any:
    """[n, B, ..] or, not mapped, [B, ..] -> [n * B, ..]."""
    if not mapped:
        x = xp.broadcast(x[None], (n, *x.shape))
    return xp.reshape(x, (n * x.shape[1], *x.shape[2:]))


def split_axes(xp: Any, x: Any, n: int, batch: int) -> Any:
    """[n * B, ..] -> [n, B, ..]; n may be 0."""
    return xp.reshape(x, (n, batch, *x.shape[1:]))


def _fold_operand(xp: Any, x: Any, mapped: bool, n: int, batch: int, name: str) -> Any:
    if name == "sinks":
        return x
    if name in ("bias", "mask"):
        if not mapped and x.shape[0] == 1:
            return x
        if mapped and x.shape[1] == 1:
            x = xp.broadcast(x, (n, batch, *x.shape[2:]))
    return merge_axes(xp, x, mapped, n)
