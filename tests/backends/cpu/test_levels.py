"""Every instruction-set level that this CPU runs passes the smoke cases, the emulated 16-lane one too."""

from __future__ import annotations

import pytest

from tests.conftest import run_python
from tilewise.backends.cpu import library

LEVELS = library.usable_levels()

VERIFY = """
import tilewise
from tilewise.backends.cpu import library
from tilewise.testing import verify
assert library.level() == {level!r}
results = verify(backends=["cpu"], frameworks=["numpy"], tags=["smoke"])
failed = [str(result) for result in results if result.status == "failed"]
assert len(results) > 100 and not failed, failed
print(len(results))
"""


@pytest.mark.skipif(not LEVELS, reason="no compiled module for this CPU")
@pytest.mark.parametrize("level", LEVELS)
def test_smoke(level: str) -> None:
    assert int(run_python(VERIFY.format(level=level), timeout=400.0, TILEWISE_CPU_LEVEL=level)) > 100


@pytest.mark.parametrize(("told", "best"), [
    ({}, "v2"), ({"flags": "sse4_2 ssse3 popcnt avx2 fma f16c bmi1 bmi2 movbe"}, "v3"),
])  # fmt: skip
def test_a_cpu_that_nobody_describes_is_an_old_one(told: dict[str, str], best: str,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(library, "cpu_info", lambda: told)
    monkeypatch.setattr(library, "_macos_flags", lambda: "")
    assert next(name for name, needed in library.X86_LEVELS.items() if needed <= library._cpu_flags()) == best


@pytest.mark.skipif(not LEVELS, reason="no compiled module for this CPU")
def test_a_level_that_is_not_there_is_named() -> None:
    code = "import tilewise; print(tilewise.backends()['cpu'])"
    assert "TILEWISE_CPU_LEVEL=v9" in run_python(code, TILEWISE_CPU_LEVEL="v9")


def test_the_emulated_level_is_never_chosen() -> None:
    if LEVELS and set(LEVELS) - set(library.TEST_LEVELS):
        code = "from tilewise.backends.cpu import library; print(library.level())"
        assert run_python(code, TILEWISE_CPU_LEVEL="").strip() not in library.TEST_LEVELS
