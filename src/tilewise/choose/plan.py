"""The decision of who runs a call, frozen; and how it is made."""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from types import FrameType
from typing import Any

from tilewise.choose import backend_list, tiles
from tilewise.errors import InvalidInput, SlowPathWarning, Unsupported
from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import ArrayInfo, PagedProblem, Problem

AnyProblem = Problem | PagedProblem


@dataclass(frozen=True, slots=True)
class Plan:
    """The only thing passed down: the math, the sizes, who runs it and with which tiles. All that decides is frozen.

    memo: not part of the decision. Room for what a launcher prepares once for all calls of one signature
    (memo[0](operands, need_lse), or None); None where calls of this plan may differ.
    """

    spec: AttentionSpec
    problem: Any  # Problem | PagedProblem
    backend: str
    tiles: Any = None
    memo: list[Any] | None = field(default=None, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.spec, self.problem, self.backend, self.tiles)))

    def __hash__(self) -> int:  # a plan is looked up at every call: hash it once
        return self._hash


@dataclass(frozen=True, slots=True)
class Answer:
    """What one backend said of a call: `reason` is None where it would run it, with `tiles`."""

    backend: str
    reason: str | None
    tiles: Any = None


def ask(name: str, spec: AttentionSpec, problem: AnyProblem) -> Answer:
    """Ask one backend."""
    backend = backend_list.load(name)
    reason = backend.missing()
    if reason is None:
        unknown = sorted(spec.features() - backend.KNOWN)
        reason = f"does not know {', '.join(unknown)}" if unknown else backend.why_not(spec, problem)
    if reason is not None:
        return Answer(name, reason)
    return Answer(name, None, tiles.choose(name, backend, spec, problem))


def answers(spec: AttentionSpec, problem: AnyProblem) -> list[Answer]:
    """What every backend says of a call, in the order in which they would be chosen."""
    return [ask(name, spec, problem) for name in backend_list.MODULES]


def make_plan(spec: AttentionSpec, problem: AnyProblem, backend: str | None = None) -> Plan:
    """Choose who runs a call.

    Args:
        backend: None (fused if possible, else plain array code, with a warning), "fused" (no plain array code),
            or a name (that one or nothing).

    Raises:
        InvalidInput: an unknown backend name.
        Unsupported: no allowed backend takes the call; carries every reason.
    """
    if backend is not None and (not isinstance(backend, str) or backend not in ("fused", *backend_list.MODULES)):
        known = ", ".join(repr(name) for name in ("fused", *backend_list.MODULES))
        raise InvalidInput(f"backend must be None or one of {known}, but is {backend!r}.")
    return _make_plan(spec, problem, backend)


@lru_cache(maxsize=4096)
def _make_plan(spec: AttentionSpec, problem: AnyProblem, backend: str | None) -> Plan:
    names = backend_list.FUSED if backend in (None, "fused") else (str(backend),)
    reasons = []
    for name in names:
        answer = ask(name, spec, problem)
        if answer.reason is None:
            return Plan(spec, problem, name, answer.tiles)
        reasons.append((name, answer.reason))
    what = f"{problem.describe()}; {spec.describe()}"
    if backend is not None:
        raise Unsupported(f"No backend of {backend!r} takes this call ({what}):", tuple(reasons))
    lines = "\n".join(f"  {name}: {reason}" for name, reason in reasons)
    if problem.device != "meta":  # nothing runs there
        text = f"Running as plain array code ({what}), because:\n{lines}"
        warnings.warn(text, SlowPathWarning, stacklevel=_frames_of_tilewise())
    return Plan(spec, problem, "composed")


def _frames_of_tilewise() -> int:
    """The stacklevel, in the function that asks, at which the caller's own code stands."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "tilewise":
        frame, level = frame.f_back, level + 1
    return level


def with_gradients(plan: Plan) -> Plan:
    """The plan of the same call when its gradients are wanted; raises Unsupported if its backend has none."""
    if plan.problem.needs_grad:
        return plan
    return make_plan(plan.spec, replace(plan.problem, needs_grad=True), plan.backend)


@lru_cache(maxsize=4096)
def to_text(plan: Plan) -> str:
    """A plan as text, for graphs and files that outlive this process."""
    return json.dumps([asdict(plan.spec), plan.problem.form, asdict(plan.problem), plan.backend])


@lru_cache(maxsize=4096)
def from_text(text: str) -> Plan:
    """The plan that to_text() wrote; tiles are chosen anew."""
    spec, form, sizes, backend = json.loads(text)
    spec["window"] = tuple(spec["window"])
    if form not in ("dense", "packed"):
        return make_plan(AttentionSpec(**spec), PagedProblem(**sizes), backend)
    for name in ("bias", "mask"):
        if sizes[name] is not None:
            shape, dtype, device = sizes[name]
            sizes[name] = ArrayInfo(tuple(shape), dtype, device)
    return make_plan(AttentionSpec(**spec), Problem(**sizes), backend)
