"""Was it right? Served answers against dense, unbatched attention that recomputes each text from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewise.demo.llama import Llama, read_text
from tilewise.demo.serve import Request

Array = NDArray[Any]


@dataclass(frozen=True)
class Disagreement:
    """A place where the dense run picks another token than the server did."""

    position: int  # in the answer
    served: int
    dense: int
    gap: float  # logit of the dense run's token minus that of the served one
    noise: float | None = None  # largest error of the dense float32 logits there, against float64; None: not measured

    @property
    def tie(self) -> bool:
        """Plain float32 cannot tell the two apart: each of the two logits may be off by `noise`."""
        return self.noise is not None and self.gap <= 2 * self.noise


@dataclass(frozen=True)
class Check:
    tokens: int
    largest_logit_difference: float
    disagreements: tuple[Disagreement, ...]

    @property
    def agreed(self) -> int:
        return self.tokens - len(self.disagreements)

    @property
    def exact(self) -> bool:
        """Every token equal, numerical ties aside."""
        return all(d.tie for d in self.disagreements)


def check_answer(llama: Llama, prefix: Sequence[int], request: Request, *, find_ties: bool = True) -> Check:
    """Compare a finished request with one dense pass over prefix + prompt + answer.

    Causality makes that pass equal to generating token by token: row t sees only what stood before t. So a greedy
    dense run writes the same answer iff its best token after each beginning of the answer is the next one served.
    After a difference the comparison goes on from the served text, so the rate of agreement means something.

    find_ties: where tokens differ, measure gap and float32 noise with a float64 run, which costs seconds.
    """
    text = [*prefix, *request.prompt, *request.answer[:-1]]
    rows = slice(len(text) - len(request.answer), None)  # the rows that predict the answer
    dense = llama.logits(read_text(llama, text)[rows])
    served = llama.logits(np.stack(request.hidden))
    best = dense.argmax(axis=1)
    places = np.flatnonzero(best != request.answer)
    if places.size and find_ties:
        judge = llama.logits(read_text(llama, text, np.float64)[rows][places])
        noise: list[float | None] = list(np.abs(dense[places] - judge).max(axis=1).tolist())
    else:
        judge, noise = dense[places], [None] * len(places)
    disagreements = tuple(
        Disagreement(at, request.answer[at], int(best[at]), float(logits[best[at]] - logits[request.answer[at]]), error)
        for at, logits, error in zip(places.tolist(), judge, noise, strict=True)
    )
    return Check(len(request.answer), float(np.abs(dense - served).max()), disagreements)
