"""What a backend is: a module with these names. No base class, no registration call; a line in backend_list.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import Gradients, Operands, PagedOperands, PagedProblem, Problem

Tiles = Any  # each backend's own frozen dataclass: changes speed, never meaning


class Backend(Protocol):
    """The contract. Arrays in and out are the framework's own, in the caller's layout."""

    KNOWN: frozenset[str]  # the spec features that this backend has learnt

    def missing(self) -> str | None:
        """Why this machine cannot use the backend at all, or None."""

    def why_not(self, spec: AttentionSpec, problem: Problem | PagedProblem) -> str | None:
        """Why the backend will not run this call, in words, or None. From spec and sizes alone."""

    def tile_choices(self, spec: AttentionSpec, problem: Problem | PagedProblem) -> Sequence[Tiles]:
        """Tiles that may run this call; the first is the heuristic choice, all are the search space of tuning."""

    def device_kind(self) -> str:
        """What tuned tiles are filed under; asked only if there are tiles to choose from."""

    def forward(self, plan: Any, operands: Operands) -> tuple[Any, Any]:
        """(out, lse) of a dense or packed call."""

    def backward(self, plan: Any, operands: Operands, out: Any, lse: Any, dout: Any, dlse: Any | None,
                 wanted: Gradients) -> Gradients:  # fmt: skip
        """Gradients of a dense or packed call; `wanted` holds a bool for each."""

    def paged(self, plan: Any, operands: PagedOperands) -> tuple[Any, Any]:
        """(out, lse) of a paged call."""

    def append(self, plan: Any, operands: PagedOperands, k: Any, v: Any) -> tuple[Any, Any | None]:
        """(k_pages, v_pages) with the new rows written."""
