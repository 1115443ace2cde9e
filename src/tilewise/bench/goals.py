"""What the CPU backend must reach (bar) and should reach (aim), work by work, against rivals in the same run.

Stated for AVX-512 with the bf16 dot product ("v4_bf16", AMD, no AMX), and a few for AVX2 ("v3"). On another machine a
bar is shown in brackets and judged by nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Goal:
    """A bar and an aim; `lower`: smaller is better. `applies`: stated for the machine that was measured."""

    bar: float
    aim: float | None = None
    lower: bool = False
    applies: bool = True

    def reached(self, value: float, wanted: float | None) -> bool:
        """Is `value` at least as good as `wanted`?"""
        if wanted is None:
            return False
        return value <= wanted if self.lower else value >= wanted


V4_BF16 = {
    "forward float32 full": Goal(2.2, 2.6),
    "forward float32 causal": Goal(2.6, 3.2),
    "forward float32 peak": Goal(75, 85),  # D 128, N >= 1024
    "forward float32 causal 512 peak": Goal(62, 70),  # what the diagonal wastes
    "forward bfloat16 full": Goal(4.0, 5.0),
    "forward bfloat16 causal": Goal(4.8, 6.0),
    "forward bfloat16 peak": Goal(68, 80),
    "forward float16 full": Goal(3.0, 4.0),
    "forward float16 causal": Goal(3.0, 4.0),
    "backward float32": Goal(2.3, 2.8),
    "backward bfloat16": Goal(2.6, 3.5),
    "window rival": Goal(8.0, 12.0),
    "window useful rate": Goal(65),
    "feature": Goal(1.3, 1.15, lower=True),
    "decode read 1": Goal(55, 70),  # one thread
    "decode read": Goal(72, 88),
    "decode gather": Goal(10, 15),
    "decode folded": Goal(3, 4),
    "decode 8-bit": Goal(1.35, 1.8),
    "mixed": Goal(6, 10),
    "small time": Goal(1.3, 1.0, lower=True),
    "small planning": Goal(10, lower=True),
    "jax": Goal(3, 5),
    "memory": Goal(64, lower=True),
    "threads": Goal(1.85, 1.95),
}
V3 = {
    "forward float32 full": Goal(1.1),
    "forward float32 causal": Goal(1.4),
}
# These do not depend on the width of vectors.
EVERYWHERE = ("small time", "small planning", "memory", "threads", "feature", "window useful rate")


def goal(name: str, kind: str) -> Goal | None:
    """The goal of that name on a machine of that kind (machine.kind()); None where there is none anywhere."""
    level = kind.partition(" ")[0]
    stated = V3.get(name) if level == "v3" and name in V3 else V4_BF16.get(name)
    if stated is None or name in EVERYWHERE or kind == "v4_bf16" or (kind == "v3" and name in V3):
        return stated
    return replace(stated, applies=False)
