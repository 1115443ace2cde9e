"""explain() and backends(): who would run a call and why not the others; what this machine can use."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from typing import Any

from tilewise.attention import attention, infos
from tilewise.choose import backend_list
from tilewise.choose.plan import Answer, answers
from tilewise.errors import InvalidInput
from tilewise.frameworks.detect import detect
from tilewise.packed import attention_packed
from tilewise.ragged_paged_attention import paged_operands, ragged_paged_attention
from tilewise.spec import validate
from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import Operands, PagedProblem, Problem


@dataclass(frozen=True, slots=True)
class Explanation:
    """What every backend says of a call. print() it."""

    spec: AttentionSpec
    problem: Problem | PagedProblem
    answers: tuple[Answer, ...]

    @property
    def chosen(self) -> str:
        """The backend that backend=None would take."""
        return next(answer.backend for answer in self.answers if answer.reason is None)

    def __str__(self) -> str:
        lines = [f"{self.problem.describe()}", f"{self.spec.describe()}"]
        for answer in self.answers:
            mark = "->" if answer.backend == self.chosen else "  "
            text = f"no: {answer.reason}" if answer.reason else "yes"
            lines.append(f"{mark} {answer.backend}: {text}" + (f", {answer.tiles}" if answer.tiles else ""))
        return "\n".join(lines)


def explain(q: Any, k: Any, v: Any, **options: Any) -> Explanation:
    """Who would run attention(q, k, v, **options), with which tiles, and why not the others. Runs nothing.

    Args:
        q, k, v, options: those of attention(); with q_starts and kv_starts, those of attention_packed().

    Returns:
        The spec and the sizes of the call, and each backend's answer. print() shows it.

    Raises:
        InvalidInput: the call has no meaning.
    """
    packed = options.get("q_starts") is not None or options.get("kv_starts") is not None
    given = _arguments(attention_packed if packed else attention, q, k, v, **options)
    adapter = detect(q)
    operands = adapter.convert(Operands(**{name: given.pop(name) for name in Operands._fields if name in given}))
    judge = validate.attention_packed if packed else validate.attention
    needs_grad = adapter.needs_grad(operands.q, operands.k, operands.v, operands.bias, operands.sinks)
    judged = judge(infos(adapter, operands._asdict()), framework=adapter.name, needs_grad=needs_grad, **given)
    return Explanation(*judged, tuple(answers(*judged)))


def explain_paged(q: Any, kv_pages: Any, kv_lens: Any, page_indices: Any, cu_q_lens: Any, num_seqs: Any = None,
                  **options: Any) -> Explanation:  # fmt: skip
    """Who would run ragged_paged_attention(q, kv_pages, ..., **options), and why not the others. Runs nothing.

    Args:
        q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs, options: those of ragged_paged_attention().

    Returns:
        As explain().

    Raises:
        InvalidInput: the call has no meaning.
    """
    given = _arguments(ragged_paged_attention, q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs, **options)
    adapter = detect(q)
    operands = paged_operands(adapter, q, given)
    judged = validate.ragged_paged_attention(infos(adapter, operands._asdict()), framework=adapter.name, **given)
    return Explanation(*judged, tuple(answers(*judged)))


def _arguments(call: Any, *args: Any, **options: Any) -> dict[str, Any]:
    """The arguments of a public call by name, defaults filled in; without what only running it needs."""
    try:
        bound = signature(call).bind(*args, **options)
    except TypeError as error:
        raise InvalidInput(f"explain: {call.__name__}() {error}.") from None
    bound.apply_defaults()
    return {name: x for name, x in bound.arguments.items() if name not in ("return_lse", "backend")}


def backends() -> dict[str, str | None]:
    """What this machine can use.

    Returns:
        The name of each backend -> None if this machine can use it, else why not.
    """
    return {name: backend_list.load(name).missing() for name in backend_list.MODULES}
