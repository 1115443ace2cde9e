"""The conformance suite on instrumented builds (tools/sanitize.py): smoke always, all of it in `make test-full`."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import require

TOOL = Path(__file__).parents[3] / "tools/sanitize.py"
SMOKE, EVERYTHING = ("--levels=1", "--tags=smoke"), ()

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or shutil.which("c++") is None, reason="needs Linux and a C++ compiler"
)


@pytest.mark.parametrize(
    ("sanitizers", "options"),
    [
        pytest.param("address,undefined", SMOKE, id="address-undefined-smoke"),
        pytest.param("address,undefined", EVERYTHING, id="address-undefined", marks=pytest.mark.slow),
        pytest.param("thread", EVERYTHING, id="thread", marks=pytest.mark.slow),
    ],
)
def test_conformance(sanitizers: str, options: tuple[str, ...]) -> None:
    require("nanobind")
    require("ninja")
    done = subprocess.run([sys.executable, str(TOOL), sanitizers, *options], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"


def test_a_sanitizer_is_told_what_to_halt_on() -> None:
    """A run that only prints and goes on would pass whatever it finds."""
    spec = importlib.util.spec_from_file_location("sanitize", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    for variable in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"):
        assert "exitcode=99" in tool.OPTIONS[variable]
