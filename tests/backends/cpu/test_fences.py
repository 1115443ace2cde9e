"""No read past the end of an array: each ends where readable memory ends, so that such a read ends the process."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import run_python
from tilewise.backends.cpu import library

CODE = """
import sys
from tilewise.testing.cases import CASES
from tilewise.testing.conform import _everything
from tilewise.testing.inputs import make
from tilewise.testing.pairs import Pair, why_not

pair = Pair("cpu", "numpy")
ran = 0
for case in CASES:
    if "long" in case.tags or why_not(pair, case) is not None:
        continue
    print(case.name, file=sys.stderr, flush=True)
    _everything(case, pair, make(case, fenced=True))
    ran += 1
print(ran)
"""


@pytest.mark.skipif(library.missing() is not None, reason="no compiled module for this CPU")
@pytest.mark.skipif(sys.platform == "win32", reason="memory is fenced by mprotect")
@pytest.mark.parametrize("level", library.usable_levels())
def test_fenced(level: str) -> None:
    assert int(run_python(CODE, timeout=400.0, TILEWISE_CPU_LEVEL=level)) > 400
