"""The shipped suite through the public API, on the TPU backend in interpret mode."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends.tpu import interpret
from tests.conftest import require
from tilewise.backends.tpu.target import interpreted
from tilewise.testing.case import Case
from tilewise.testing.cases import CASES
from tilewise.testing.conform import CHECKS
from tilewise.testing.pairs import Pair, why_not

PAIR = Pair("tpu", "jax")
QUICK = {"paged/mixed": ("forward", "poison"),
         "append/mixed": ("append",), "append/float32 to int8, head": ("append",),
         "append/bfloat16 to float8_e4m3fn, slot": ("append",), "mask/with everything": ("forward",),
         "packed/starts late": ("forward",), "lengths/window and sinks": ("backward",)}  # fmt: skip
NO_FLOAT64 = "JAX holds float64 only with jax_enable_x64"


@pytest.fixture(autouse=True)
def _interpreted() -> Iterator[None]:
    require("jax")
    with interpreted(interpret.parameters("on_wait")):
        yield


def _rows() -> Iterator[object]:
    for case in CASES:
        for check, (_, forms) in CHECKS.items():
            if case.form != "merge" and "long" not in case.tags and case.form in forms:
                marks = [] if check in QUICK.get(case.name, ()) else [pytest.mark.slow]
                yield pytest.param(case, check, id=f"{case.name}-{check}", marks=marks)


@pytest.mark.parametrize(("case", "check"), list(_rows()))
def test_case(case: Case, check: str) -> None:
    reason = why_not(PAIR, case)
    if reason is not None:
        assert reason == NO_FLOAT64
        assert "float64" in (case.dtype, getattr(case, "stored", ""))
        return
    try:
        CHECKS[check][0](case, PAIR)
    finally:
        require("jax.experimental.pallas.tpu").reset_tpu_interpret_mode_state()
