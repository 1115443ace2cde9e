"""The stored table of what the real TPU compiler makes of the paged kernel: nothing in it may get worse. Training
kernels: it takes them, within the chip's VMEM. Needs libtpu."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import tpu_profile
from tests.conftest import require
from tilewise.backends.tpu import compile_offline, dense_tiles
from tilewise.backends.tpu.target import CHIPS
from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import ArrayInfo, Problem

PAIRS = ArrayInfo((1, 1, 1024, 1024), "bfloat16", "tpu")
LLAMA = Problem("dense", 1, 4096, 4096, 32, 8, 128, 128, "bfloat16", "tpu", "jax")
CAUSAL = AttentionSpec(scale=0.1, window=(None, 0))
TRAINING = {
    "llama": (CAUSAL, LLAMA),
    "head_dim 64": (CAUSAL, replace(LLAMA, qk_dim=64, v_dim=64)),
    "window": (replace(CAUSAL, window=(1023, 0)), LLAMA),
    "soft cap": (replace(CAUSAL, softcap=50.0), LLAMA),
    "packed, sinks": (replace(CAUSAL, sinks=True), replace(LLAMA, form="packed", batch=4, q_len=1000, kv_len=1000)),
    "float32, D 80, E 48": (CAUSAL, replace(LLAMA, q_len=1024, kv_len=1024, dtype="float32", qk_dim=80, v_dim=48)),
    "everything": (
        replace(CAUSAL, softcap=20.0, sinks=True, bias=True, mask=True, segments=True, q_lens=True, kv_lens=True),
        replace(LLAMA, q_len=1024, kv_len=1024, bias=PAIRS, mask=PAIRS._replace(dtype="bool")),
    ),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in tpu_profile.QUICK else [pytest.mark.slow]) for name in tpu_profile.NAMES],
)
def test_no_worse_than_stored(name: str) -> None:
    require("libtpu")
    assert tpu_profile.worse(name, tpu_profile.measure(name)) == []


@pytest.mark.slow
@pytest.mark.parametrize("chip", ["v5e", "v6e"])
@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("name", TRAINING)
def test_training_compiles(name: str, needs_grad: bool, chip: str) -> None:
    require("libtpu")
    spec, problem = TRAINING[name]
    problem = replace(problem, needs_grad=needs_grad)
    tiles = dense_tiles.first_choice(spec, problem)
    report = compile_offline.compile_dense(spec, problem, tiles, chip, dump=False, time_limit=300)
    assert 0 < report.vmem <= CHIPS[chip].vmem
