"""Which (backend, framework) pairs this machine has, why not the others, and which cases a pair refuses."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewise.choose import backend_list
from tilewise.choose.plan import ask
from tilewise.testing.case import AppendCase, Case, MergeCase, PagedCase
from tilewise.testing.frameworks import FRAMEWORKS, Numpy
from tilewise.testing.inputs import make


@dataclass(frozen=True)
class Pair:
    """A backend and the framework whose arrays it is given."""

    backend: str
    framework: str

    def __str__(self) -> str:
        return f"{self.backend}-{self.framework}"

    @property
    def arrays(self) -> Numpy:
        """How to make and read the framework's arrays."""
        return FRAMEWORKS[self.framework]

    def missing(self) -> str | None:
        """Why this machine has not got the pair, or None."""
        return backend_list.load(self.backend).missing() or self.arrays.missing()


def all_pairs() -> list[Pair]:
    """Every pair, whether this machine has it or not."""
    return [Pair(backend, framework) for backend in backend_list.MODULES for framework in FRAMEWORKS]


def usable_pairs() -> list[Pair]:
    """The pairs that this machine has."""
    return [pair for pair in all_pairs() if pair.missing() is None]


def covers(pair: Pair, case: Case, check: str = "forward") -> bool:
    """Is this check of the case worth running here?

    All are on NumPy. Those tagged "every" are on each framework. The plain array code is slow, and the same lines serve
    every framework: there only those tagged "plain" run, and only their results and gradients are checked.
    """
    if pair.framework == "numpy":
        return True
    if pair.backend == "composed":
        return "plain" in case.tags and check in ("forward", "backward", "append")
    return "every" in case.tags


def why_not(pair: Pair, case: Case) -> str | None:
    """Why the pair refuses the case, or None: the framework cannot hold the arrays, or the backend says no."""
    dtypes = {case.dtype} | ({case.stored} if isinstance(case, PagedCase) else set())
    for dtype in sorted(dtypes):
        if (reason := pair.arrays.cannot_hold(dtype)) is not None:
            return reason
    if isinstance(case, MergeCase):
        return None
    inputs = make(case)
    problem = replace(inputs.problem, framework=pair.framework, device=pair.arrays.device)
    if isinstance(case, PagedCase | AppendCase):
        problem = replace(problem, needs_grad=False)
    return ask(pair.backend, inputs.spec, problem).reason
