"""Inside jax.jit, against jax.nn.dot_product_attention."""

from __future__ import annotations

from typing import Any

from tilewise.bench import machine
from tilewise.bench.goals import goal
from tilewise.bench.rivals import jax_nn
from tilewise.bench.row import OURS, Row
from tilewise.bench.settings import Settings
from tilewise.bench.works import inputs
from tilewise.bench.works.inputs import Square
from tilewise.testing.timing import interleave

TITLE = "JAX inside jit, B 1, H 8"


def cases(settings: Settings) -> list[Square]:
    return [
        Square(dtype, width, length, causal)
        for dtype in settings.chosen("float32", "bfloat16")
        for width in ((128,) if settings.quick else (64, 128))
        for length in ((1024,) if settings.quick else (1024, 2048))
        for causal in (False, True)
    ]


def measure(case: Square, settings: Settings) -> Row:
    import jax
    import jax.numpy as jnp

    import tilewise as tw

    if machine.level() != "absent":
        tw.set_num_threads(settings.threads)
    dtype, width, length, causal = case
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (jax.random.normal(key, (1, length, 8, width), jnp.float32).astype(dtype) for key in keys)
    attention = jax.jit(lambda q, k, v: tw.attention(q, k, v, causal=causal, backend=settings.backend))
    theirs = jax_nn.forward(causal)

    def ours() -> Any:
        return attention(q, k, v).block_until_ready()

    def rival() -> Any:
        return theirs(q, k, v).block_until_ready()

    difference = float(jnp.abs(ours().astype(jnp.float32) - rival().astype(jnp.float32)).max())
    peak = machine.Ceilings(settings.threads).flops(dtype)
    timings = interleave({OURS: ours, jax_nn.NAME: rival}, **settings.timing)
    row = Row.of(
        "jax", f"D {width}, N {length}, {'causal' if causal else 'full'}", dtype, settings.threads, timings,
        difference=difference, peak_flops=peak,
        flops=inputs.dense_flops("forward", length=length, width=width, causal=causal),
    )  # fmt: skip
    row.add(f"x {jax_nn.NAME}", timings.ratio(jax_nn.NAME, OURS), goal("jax", machine.kind()))
    row.add_ceiling()
    return row
