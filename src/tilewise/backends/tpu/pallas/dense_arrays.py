"""The operands of the dense kernels by name, the blocks of them that a grid step sees, and the refs of a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jax.experimental import pallas as pl

from tilewise.backends.tpu.pallas.dense_shape import Axes, DenseShape

Scalar = Any


class DenseArrays(NamedTuple):
    """The first ones lie in scalar memory. Absent ones are None.

    q_table, k_table: row_ranges.tables(). complete: int32 [B * H * q_blocks], 1: no row of the block has lse -inf
    (backward). sinks: float32 [H]. q, dout: [B, H, T, width]. k, v: [B, Hkv, S, width].
    facts: int32 [B, 8, T]. k_ids: int32 [B, 1, S]. stats: float32 [B, H, 8, T]: lse and delta of each row (backward).
    mask: int8 or int32, bias: float [B|1, H|1, T|1, S|1].
    """

    q_table: Any
    k_table: Any
    complete: Any
    sinks: Any
    q: Any
    k: Any
    v: Any
    facts: Any
    k_ids: Any = None
    mask: Any = None
    bias: Any = None
    dout: Any = None
    stats: Any = None


class Place(NamedTuple):
    """Batch entry, query head, block of queries, block of keys."""

    b: Scalar
    h: Scalar
    i: Scalar
    j: Scalar


Locate = Callable[..., Place]  # (four grid indices, q_table, k_table) -> Place
PREFETCHED = DenseArrays._fields.index("q")


def prefetched(arrays: DenseArrays) -> int:
    """How many operands lie in scalar memory."""
    return sum(x is not None for x in arrays[:PREFETCHED])


def given(arrays: DenseArrays) -> list[Any]:
    """Those that are there."""
    return [x for x in arrays if x is not None]


def presence(arrays: DenseArrays) -> DenseArrays:
    """Which are there: True or None each."""
    return DenseArrays(*(None if x is None else True for x in arrays))


def named(arrays: DenseArrays, refs: list[Any]) -> DenseArrays:
    """The first refs of a kernel by name; takes them off the list."""
    return DenseArrays(*(None if x is None else refs.pop(0) for x in arrays))


def block_spec(block: tuple[int, ...], locate: Locate, index: Callable[[Place], tuple[Any, ...]]) -> pl.BlockSpec:
    """The block at index(place) of each grid step."""
    return pl.BlockSpec(block, lambda *args: index(locate(*args)))


def in_specs(shape: DenseShape, arrays: DenseArrays, locate: Locate) -> list[pl.BlockSpec]:
    """Of the operands outside scalar memory."""
    rows, keys, group = shape.block_q, shape.block_k, shape.group

    def spec(block: tuple[int, ...], index: Callable[[Place], tuple[Any, ...]]) -> pl.BlockSpec:
        return block_spec(block, locate, index)

    def pairs(axes: Axes | None) -> pl.BlockSpec:
        axes = axes or (False, False, False, False)
        block = (1, 1, rows if axes[2] else 1, keys if axes[3] else 1)
        return spec(block, lambda at: tuple(x if varies else 0 for x, varies in zip(at, axes)))

    specs = {
        "q": spec((1, 1, rows, shape.qk_dim), lambda at: (at.b, at.h, at.i, 0)),
        "k": spec((1, 1, keys, shape.qk_dim), lambda at: (at.b, at.h // group, at.j, 0)),
        "v": spec((1, 1, keys, shape.v_dim), lambda at: (at.b, at.h // group, at.j, 0)),
        "facts": spec((1, 8, rows), lambda at: (at.b, 0, at.i)),
        "k_ids": spec((1, 1, keys), lambda at: (at.b, 0, at.j)),
        "mask": pairs(shape.mask),
        "bias": pairs(shape.bias),
        "dout": spec((1, 1, rows, shape.v_dim), lambda at: (at.b, at.h, at.i, 0)),
        "stats": spec((1, 1, 8, rows), lambda at: (at.b, at.h, 0, at.i)),
    }
    present = zip(DenseArrays._fields[PREFETCHED:], arrays[PREFETCHED:])
    return [specs[name] for name, x in present if x is not None]
