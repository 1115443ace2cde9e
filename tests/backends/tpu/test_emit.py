"""The kernel as text, on plain JAX: what operations it has, not how they are spelt."""

from __future__ import annotations

import re

import pytest

import tilewise as tw
from tests.conftest import require
from tilewise.backends.tpu import presets
from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import Problem

# (model, sizes) -> operations. Two branches: blocks that need masks and blocks that need none.
# Decode: two products a head and branch. Several tokens a step: five where scores run ahead of the softmax, two with
# masks, five more where a hidden NaN is met.
STRUCTURE = {
    ("llama-3-8b", "decode"): {"tpu.matmul": 32, "tpu.strided_load": 16, "math.exp2": 32, "math.tanh": 0},
    ("gpt-oss-20b", "decode"): {"tpu.matmul": 32, "tpu.strided_load": 16, "math.exp2": 32, "math.tanh": 0},
    ("gemma-2-9b", "mixed"): {"tpu.matmul": 12, "tpu.strided_load": 4, "math.tanh": 5},
}
SIZES = {"decode": {"tokens": 64, "seqs": 64}, "mixed": {"tokens": 512, "seqs": 64}}


@pytest.fixture(autouse=True)
def _jax() -> None:
    require("jax")


@pytest.mark.parametrize(("model", "step"), STRUCTURE)
def test_structure(model: str, step: str) -> None:
    from tilewise.backends.tpu.emit import count_operations

    with tw.target("v5p"):
        text = tw.emit("tpu", *presets.paged_call_of(model, **SIZES[step]))
    assert isinstance(text, str)
    found = count_operations(text)
    assert {name: found[name] for name in STRUCTURE[model, step]} == STRUCTURE[model, step]
    assert found["tpu.enqueue_dma"] == 3  # the first block of all, the next of an item, the first of the next item
    assert len(re.findall(r"tpu\.wait_dma", text)) == 2  # a full block at once, or piece by piece


def test_formats() -> None:
    call = presets.paged_call_of("llama-3-8b", **SIZES["mixed"])
    stablehlo = tw.emit("tpu", *call, format="stablehlo")
    assert isinstance(stablehlo, str)
    assert "tpu_custom_call" in stablehlo
    bytecode = tw.emit("tpu", *call, format="bytecode")
    assert isinstance(bytecode, bytes)
    assert bytecode.startswith(b"ML\xefR")


def training(form: str, needs_grad: bool, **options: object) -> tuple[AttentionSpec, Problem]:
    spec = AttentionSpec(**{"scale": 0.1, "window": (None, 0), **options})
    return spec, Problem(form, 1, 1024, 1024, 8, 2, 128, 128, "bfloat16", "tpu:v6e", "jax", needs_grad=needs_grad)


@pytest.mark.parametrize(
    ("form", "needs_grad", "kernels", "products"),
    [("dense", False, 1, 9), ("packed", False, 1, 9), ("dense", True, 2, 24)],
)
def test_training_structure(form: str, needs_grad: bool, kernels: int, products: int) -> None:
    """A branch for whole tiles, one with masks, and one more in it where a hidden NaN is met."""
    from tilewise.backends.tpu.emit import count_operations

    text = tw.emit("tpu", *training(form, needs_grad, softcap=30.0, sinks=True))
    assert isinstance(text, str)
    assert text.count("module attributes") == kernels
    assert count_operations(text)["tpu.matmul"] == products


def test_training_formats() -> None:
    assert isinstance(tw.emit("tpu", *training("dense", False), format="bytecode"), bytes)
    with pytest.raises(tw.InvalidInput, match="two kernels"):
        tw.emit("tpu", *training("dense", True), format="bytecode")


def test_refusals() -> None:
    call = presets.paged_call_of("llama-3-8b", tokens=64)
    with pytest.raises(tw.InvalidInput, match="format must be one of"):
        tw.emit("tpu", *call, format="text")
    with pytest.raises(tw.InvalidInput, match="backend must be one of 'tpu'"):
        tw.emit("gpu", *call)
    with pytest.raises(tw.InvalidInput, match="target must be one of 'v4'"), tw.target("v9"):
        pass
