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
    gap: float  # float64 logit of the best token minus that of the served one
    noise: float  # largest error of the dense float32 logits there, against float64

    @property
    def tie(self) -> bool:
        """Plain float32 cannot tell the two apart: each of the two logits may be off by `noise`."""
        return self.gap <= 2 * self.noise


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


def check_answer(llama: Llama, prefix: Sequence[int], request: Request) -> Check:
    """Compare a finished request with one dense pass over prefix + prompt + answer.

    Causality makes that pass equal to generating token by token: row t sees only what stood before t. So a greedy
    dense run writes the same answer iff its best token after each beginning of the answer is the next one served.
    After a difference the comparison goes on from the served text, so the rate of agreement means something.
    """
    text = [*prefix, *request.prompt, *request.answer[:-1]]
    rows = slice(len(text) - len(request.answer), None)  # the rows that predict the answer
    dense = llama.logits(read_text(llama, text)[rows])
    served = llama.logits(np.stack(request.hidden))
    differences = np.flatnonzero(dense.argmax(axis=1) != request.answer)
    judged: list[Disagreement] = []
    if differences.size:
        exact = llama.logits(read_text(llama, text, np.float64)[rows][differences])
        for logits, at in zip(exact, differences.tolist(), strict=True):
            token = request.answer[at]
            gap, noise = logits.max() - logits[token], np.abs(dense[at] - logits).max()
            judged.append(Disagreement(at, token, int(dense[at].argmax()), float(gap), float(noise)))
    return Check(len(request.answer), float(np.abs(dense - served).max()), tuple(judged))
