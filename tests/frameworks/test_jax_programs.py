"""JAX: what a compiled program is made of, its export, and many custom calls at once."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tilewise as tw
from tests.conftest import require, run_python
from tests.frameworks.calls import paged_step

jax = require("jax")
jnp = require("jax.numpy")
export = require("jax.export")

pytestmark = pytest.mark.skipif(tw.backends()["cpu"] is not None, reason=str(tw.backends()["cpu"]))


def tokens(n: int = 1) -> list[Any]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal((2, 40, 2, 16)), "float32") for _ in range(n)]


def gradients(q: Any, k: Any, v: Any) -> Any:
    return jax.grad(lambda *x: (tw.attention(*x, causal=True) ** 2).sum(), (0, 1, 2))(q, k, v)


def serve(q: Any, k: Any, v: Any, pages: Any) -> Any:
    batch = paged_step("float32", combined=True).batch
    return tw.ragged_paged_attention(q, tw.append_to_pages(pages, k, v, **batch), **batch)


@pytest.mark.parametrize("program", ["train", "serve"])
def test_no_custom_calls_but_ours(program: str) -> None:  # a callback to the host would be one
    step = paged_step("float32", combined=True)
    function, arguments, names = {
        "train": (gradients, tokens(3), {"tilewise_forward", "tilewise_backward"}),
        "serve": (serve, (step.q, step.k, step.v, step.kv_pages), {"tilewise_append", "tilewise_paged"}),
    }[program]
    lowered = jax.jit(function).lower(*arguments)
    assert set(re.findall(r"custom_call @(\w+)", lowered.as_text())) == names
    compiled = lowered.compile().as_text()
    assert set(re.findall(r'custom_call_target="(\w+)"', compiled)) == names


def test_exported_with_leave_for_its_custom_calls() -> None:
    arguments = tokens(3)
    names = ("tilewise_forward", "tilewise_backward")
    with pytest.raises(ValueError, match="tilewise_forward"):
        export.export(jax.jit(gradients))(*arguments)
    allowed = [export.DisabledSafetyCheck.custom_call(name) for name in names]
    exported = export.export(jax.jit(gradients), disabled_checks=allowed)(*arguments)
    for mine, theirs in zip(exported.call(*arguments), jax.jit(gradients)(*arguments), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_plain_array_code_is_exported_as_it_is() -> None:
    (q,) = tokens()
    function = jax.jit(lambda q: tw.attention(q, q, q, causal=True, backend="composed"))
    np.testing.assert_array_equal(export.export(function)(q).call(q), function(q))


def test_custom_calls_that_run_at_once() -> None:
    """XLA runs independent calls on its own threads; each may ask for ours, and none may wait for another."""
    xs = tokens(6)

    def all_of(xs: Any) -> Any:
        return [gradients(x, x, x) for x in xs]

    program = jax.jit(all_of)
    wanted = [jax.jit(gradients)(x, x, x) for x in xs]
    threads = tw.num_threads()
    tw.set_num_threads(3)
    try:
        pool = ThreadPoolExecutor(4)
        futures = [pool.submit(lambda: jax.block_until_ready(program(xs))) for _ in range(60)]
        for future in futures:
            jax.tree.map(np.testing.assert_array_equal, future.result(timeout=60), wanted)
        pool.shutdown()
    finally:
        tw.set_num_threads(threads)


SHARDED = """
import jax, jax.numpy as jnp, numpy as np, tilewise as tw
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("batch", "heads"))
rng = np.random.default_rng(0)
xs = [jnp.asarray(rng.standard_normal((4, 9, h, 16)), "float32") for h in (8, 4, 4)]
sinks = jnp.asarray(rng.standard_normal(8), "float32")
attend = lambda q, k, v, sinks: tw.attention(q, k, v, sinks=sinks, causal=True, backend="cpu")
gradients = lambda call: jax.grad(lambda *x: (call(*x) ** 2).sum(), (0, 1, 2, 3))
wanted, grads = attend(*xs, sinks), gradients(attend)(*xs, sinks)
spec = P("batch", None, "heads")
shared = [*(jax.device_put(x, NamedSharding(mesh, spec)) for x in xs), sinks]
mapped = jax.shard_map(attend, mesh=mesh, in_specs=(spec, spec, spec, P("heads")), out_specs=spec)
for call in (attend, mapped):
    np.testing.assert_array_equal(jax.jit(call)(*shared), wanted)
    of_call = jax.jit(gradients(call))(*shared)
    for mine, theirs in zip(of_call[:3], grads[:3], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_allclose(of_call[3], grads[3], rtol=1e-5)  # summed over the batch in another order
text = jax.jit(mapped).lower(*shared).compile().as_text()
print(len(jax.devices()), "all-gather" in text)
"""


def test_shards() -> None:
    """Arrays spread over devices: under jit, and within shard_map, where no array is gathered."""
    flags = "--xla_force_host_platform_device_count=4"
    assert run_python(SHARDED, XLA_FLAGS=flags, JAX_PLATFORMS="cpu").split() == ["4", "False"]
