"""explain() and backends(): who would run a call and why not the others; what this machine can use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewise.attention import infos
from tilewise.choose import backend_list
from tilewise.choose.plan import Answer, answers
from tilewise.frameworks.detect import detect
from tilewise.ragged_paged_attention import split_pages
from tilewise.spec import validate
from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import Operands, PagedOperands, PagedProblem, Problem


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

    With q_starts and kv_starts among the options: attention_packed(...).

    Raises:
        InvalidInput: the call has no meaning.
    """
    options.pop("return_lse", None)
    options.pop("backend", None)
    adapter = detect(q)
    arrays = {name: options.pop(name) for name in Operands._fields if name in options}
    operands = Operands(q, k, v, **arrays)
    needs_grad = adapter.needs_grad(q, k, v, operands.bias, operands.sinks)
    given = infos(adapter, operands._asdict())
    chosen = {"causal": False, "window": None, "scale": None, "softcap": None, **options}
    if operands.q_starts is not None:
        judged = validate.attention_packed(given, framework=adapter.name, needs_grad=needs_grad, **chosen)
    else:
        chosen.setdefault("layout", "bthd")
        judged = validate.attention(given, framework=adapter.name, needs_grad=needs_grad, **chosen)
    return Explanation(*judged, tuple(answers(*judged)))


def explain_paged(q: Any, kv_pages: Any, kv_lens: Any, page_indices: Any, cu_q_lens: Any, num_seqs: Any = None,
                  **options: Any) -> Explanation:  # fmt: skip
    """Who would run ragged_paged_attention(q, kv_pages, ...), and why not the others. Runs nothing."""
    options.pop("return_lse", None)
    options.pop("backend", None)
    adapter = detect(q)
    arrays = {name: options.pop(name) for name in PagedOperands._fields if name in options}
    operands = PagedOperands(q, *split_pages(kv_pages), kv_lens, page_indices, cu_q_lens, num_seqs, **arrays)
    chosen = {"causal": True, "window": None, "scale": None, "softcap": None, "batch_invariant": False, **options}
    given = infos(adapter, operands._asdict())
    judged = validate.ragged_paged_attention(given, framework=adapter.name, **chosen)
    return Explanation(*judged, tuple(answers(*judged)))


def backends() -> dict[str, str | None]:
    """Name of each backend -> None if this machine can use it, else why not."""
    return {name: backend_list.load(name).missing() for name in backend_list.MODULES}
