"""The TPU backend inside JAX programs: jit with donated pages, shard_map over heads and over data, export."""

from __future__ import annotations

import pytest

from tests.conftest import require, run_python

HEAD = """
import functools, jax, jax.numpy as jnp, numpy as np
import tilewise as tw
from jax.sharding import Mesh, PartitionSpec as P
from tilewise.backends.tpu.target import interpreted
random = np.random.default_rng(0)
def make(seqs, q_heads, kv_heads, pages=4, size=8, d=16):
    lens = np.array([(5 + 7 * i) % (pages * size - 1) + 1 for i in range(seqs)], np.int32)
    table = np.arange(seqs * pages, dtype=np.int32).reshape(seqs, pages)
    normal = lambda *shape: random.standard_normal(shape).astype(np.float32)
    return (normal(seqs, q_heads, d), normal(seqs * pages, size, 2 * kv_heads, d), lens, table,
            np.arange(seqs + 1, dtype=np.int32))
"""
STEP = """
traces = []
def step(pages, q, k, v, *rest):
    traces.append(1)
    pages = tw.append_to_pages(pages, k, v, *rest)
    return pages, tw.ragged_paged_attention(q, pages, *rest)
q, pages, *rest = make(3, 4, 2)
k, v = q[:, :2] + 1, q[:, 2:] - 1
"""
DONATED = """
want_pages = np.array(pages)
tw.append_to_pages(want_pages, k, v, *rest, backend="composed")
want = tw.ragged_paged_attention(q, want_pages, *rest, backend="composed")
with interpreted(True):
    run = jax.jit(step, donate_argnums=0)
    arrays = [jnp.asarray(x) for x in (q, k, v, *rest)]
    given = jnp.asarray(pages)
    got_pages, out = run(given, *arrays)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got_pages, want_pages)
    assert given.is_deleted()
    run(got_pages, *arrays)
    assert len(traces) == 1, "traced again"
print("ok")
"""
SHARDED = """
devices = np.array(jax.devices()).reshape(8)
q, pages, *rest = make(8, 16, 8)
want = tw.ragged_paged_attention(q, pages, *rest, backend="composed")
attend = functools.partial(tw.ragged_paged_attention, backend="tpu")
with interpreted(True):
    heads = jax.shard_map(attend, mesh=Mesh(devices, ("h",)), check_vma=False,
                          in_specs=(P(None, "h"), P(None, None, "h"), P(), P(), P()), out_specs=P(None, "h"))
    np.testing.assert_allclose(jax.jit(heads)(q, pages, *rest), want, rtol=1e-5, atol=1e-6)
    def one(q, pages, lens, table, _):
        return attend(q, pages, lens, table - table[0, 0], jnp.arange(2, dtype=jnp.int32))
    data = jax.shard_map(one, mesh=Mesh(devices, ("d",)), check_vma=False,
                         in_specs=(P("d"), P("d"), P("d"), P("d"), P()), out_specs=P("d"))
    np.testing.assert_allclose(jax.jit(data)(q, pages, *rest), want, rtol=1e-5, atol=1e-6)
print("ok")
"""
EXPORTED = """
from jax import export
shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (pages, q, k, v, *rest)]
for chip in ("v5e", "tpu7x"):
    with tw.target(chip):
        exported = export.export(jax.jit(step, donate_argnums=0), platforms=["tpu"])(*shapes)
    assert exported.platforms == ("tpu",)
    text = exported.mlir_module()
    assert "tilewise_ragged_paged_attention" in text and "tpu_custom_call" in text
    assert "jax.buffer_donor" in text or "tf.aliasing_output" in text
print("ok")
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(STEP + DONATED, id="donated"),
        pytest.param(SHARDED, id="sharded", marks=pytest.mark.slow),
        pytest.param(STEP + EXPORTED, id="exported"),
    ],
)
def test_program(program: str) -> None:
    require("jax")
    flags = "--xla_force_host_platform_device_count=8"
    assert run_python(HEAD + program, XLA_FLAGS=flags, JAX_PLATFORMS="cpu").strip().endswith("ok")
