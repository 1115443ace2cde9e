"""JAX: calls over pages, donated pages, merge."""

from __future__ import annotations

from typing import Any

import pytest

import tilewise as tw
from tests.conftest import require
from tests.frameworks.calls import map_pages, paged_step
from tests.frameworks.test_jax import close, no_cpu, on, qkv, same

jax = require("jax")
jnp = require("jax.numpy")

FLOATS, BYTES = ("float32", "bfloat16"), ("int8", "float8_e4m3fn", "float8_e5m2")


@on((*FLOATS, *BYTES), ())
@pytest.mark.parametrize("combined", [False, True])
def test_pages(kind: str, backend: str, combined: bool) -> None:
    step = paged_step(kind, combined)

    def serve(q: Any, k: Any, v: Any, pages: Any, batch: Any) -> Any:
        pages = tw.append_to_pages(pages, k, v, **batch, **step.scales, backend=backend)
        out = tw.ragged_paged_attention(
            q, pages, **batch, **step.scales, window=(3, 0), return_lse=True, backend=backend
        )
        return pages, out

    new, pages = [jnp.asarray(x) for x in step[:3]], map_pages(jnp.asarray, step.kv_pages)
    batch = {name: jnp.asarray(x) for name, x in step.batch.items()}
    wanted = tw.append_to_pages(step.kv_pages, step.k, step.v, **step.batch, **step.scales, backend="composed")
    out = tw.ragged_paged_attention(
        step.q, wanted, **step.batch, **step.scales, window=(3, 0), return_lse=True, backend="composed"
    )
    for got in (serve(*new, pages, batch), jax.jit(serve)(*new, pages, batch)):
        jax.tree.map(lambda a, b: close(a, b, 0), got[0], wanted)
        jax.tree.map(lambda a, b: close(a, b, 2e-5), tuple(got[1]), tuple(out))


@no_cpu
def test_donated_pages_are_written_in_place() -> None:
    step = paged_step("float32", combined=True)
    write = jax.jit(lambda pages, k, v: tw.append_to_pages(pages, k, v, **step.batch), donate_argnums=0)
    pages = jnp.array(step.kv_pages)
    kept, at = jnp.array(step.kv_pages), pages.unsafe_buffer_pointer()
    written = write(pages, jnp.asarray(step.k), jnp.asarray(step.v))
    assert written.unsafe_buffer_pointer() == at
    again = tw.append_to_pages(kept, jnp.asarray(step.k), jnp.asarray(step.v), **step.batch)
    same(again, written)
    same(kept, step.kv_pages)  # what was not donated is as it was


@no_cpu
def test_vmap_over_steps() -> None:
    step = paged_step("float32", combined=True)
    q = jnp.stack([jnp.asarray(step.q), 2 * jnp.asarray(step.q)])
    many = jax.vmap(lambda q: tw.ragged_paged_attention(q, jnp.asarray(step.kv_pages), **step.batch))(q)
    for mine, one in zip(many, q, strict=True):
        same(mine, tw.ragged_paged_attention(one, jnp.asarray(step.kv_pages), **step.batch))


def test_merge() -> None:
    q, k, v = qkv()
    parts = [tw.attention(q, k[:, a], v[:, a], return_lse=True) for a in (slice(0, 3), slice(3, 7), slice(0, 0))]
    whole = tw.attention(q, k, v, return_lse=True)
    for merged in (tw.merge(parts), jax.jit(tw.merge)(parts)):
        jax.tree.map(lambda a, b: close(a, b, 2e-6), tuple(merged), tuple(whole))

    def merged_sum(k: Any) -> Any:
        parts = [tw.attention(q, k[:, a], v[:, a], return_lse=True) for a in (slice(0, 3), slice(3, 7))]
        return tw.merge(parts)[0].sum()

    close(jax.jit(jax.grad(merged_sum))(k), jax.jit(jax.grad(lambda k: tw.attention(q, k, v).sum()))(k))
