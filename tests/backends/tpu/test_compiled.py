"""The stored table of what the real TPU compiler makes of the kernel: nothing in it may get worse. Needs libtpu."""

from __future__ import annotations

import pytest

from benchmarks import tpu_profile
from tests.conftest import require


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in tpu_profile.QUICK else [pytest.mark.slow]) for name in tpu_profile.NAMES],
)
def test_no_worse_than_stored(name: str) -> None:
    require("libtpu")
    assert tpu_profile.worse(name, tpu_profile.measure(name)) == []
