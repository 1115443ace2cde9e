"""What the dense kernels have in common: how they are called, and the two ways in which a tile is worked on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tilewise.backends.tpu.pallas.dense_arrays import DenseArrays, Locate, given, in_specs, prefetched, presence
from tilewise.backends.tpu.pallas.dense_shape import DenseShape


def call(name: str, kernel: Callable[..., None], shape: DenseShape, arrays: DenseArrays, locate: Locate, *,
         grid: tuple[int, ...], out_specs: Sequence[pl.BlockSpec], out_shape: Sequence[jax.ShapeDtypeStruct],
         scratch: Sequence[Any], vmem_limit_bytes: int | None, interpret: Any) -> Any:  # fmt: skip
    """Run kernel(shape, presence(arrays), *refs): refs of the arrays that are there, of the results, of the scratch.

    Steps along the last axis of the grid follow one another: what they add up stays in the scratch.
    """
    return pl.pallas_call(
        functools.partial(kernel, shape, presence(arrays)),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=prefetched(arrays), grid=grid, in_specs=in_specs(shape, arrays, locate),
            out_specs=out_specs, scratch_shapes=scratch,
        ),
        out_shape=out_shape,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary"), vmem_limit_bytes=vmem_limit_bytes
        ),
        interpret=interpret,
        name=f"tilewise_{name}",
    )(*given(arrays))  # fmt: skip


def by_class(live: jax.Array, whole: jax.Array, tile: Callable[[bool], None]) -> None:
    """tile(masked) for a tile that somebody sees; those that every row sees whole are not masked."""

    @pl.when(live & whole)
    def _() -> None:
        tile(False)

    @pl.when(live & ~whole)
    def _() -> None:
        tile(True)
