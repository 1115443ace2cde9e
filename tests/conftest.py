"""Options that narrow the conformance suite, and `require`, which no CI run may skip through."""

from __future__ import annotations

import os

# Small products are slower on several threads, and the tests run in several processes. Before anything is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest


def require(module: str) -> Any:
    """The module; without it the test is skipped for a user, with the reason, and fails where CI=true."""
    try:
        return import_module(module)
    except ImportError as error:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(f"CI must have {module}: {error}")
        pytest.skip(f"{module} is not installed: {error}", allow_module_level=True)


def run_python(code: str, timeout: float = 120.0, **variables: str) -> str:
    """What a fresh interpreter prints that runs this code with this tilewise; its error output where it fails."""
    import tilewise

    environment = {**os.environ, "PYTHONPATH": str(Path(tilewise.__file__).parents[1]), **variables}
    result = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code], capture_output=True, text=True, timeout=timeout,
        env=environment, check=False,
    )  # fmt: skip
    assert result.returncode == 0, f"exit status {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tilewise")
    group.addoption("--backend", action="append", default=[], help="conformance on this backend only (repeatable)")
    group.addoption("--framework", action="append", default=[], help="conformance on this framework only (repeatable)")
    group.addoption("--tag", action="append", default=[], help="conformance cases with this tag only (repeatable)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Conformance tests have the parameters `case` and `pair`; the options pick among them."""
    backends, frameworks, tags = (config.getoption(f"--{name}") for name in ("backend", "framework", "tag"))
    kept, dropped = [], []
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        pair, case = params.get("pair"), params.get("case")
        wrong = pair is not None and (
            (backends and pair.backend not in backends) or (frameworks and pair.framework not in frameworks)
        )
        wrong = wrong or (case is not None and tags and not case.tags & set(tags))
        (dropped if wrong else kept).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept
