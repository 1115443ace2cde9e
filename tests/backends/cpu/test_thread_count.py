"""How many threads the pool takes by itself, and that workers in the midst of a call let the process end."""

from __future__ import annotations

import os
import sys

import pytest

import tilewise as tw
from tests.conftest import run_python
from tilewise import threads
from tilewise.backends.cpu import library

pytestmark = pytest.mark.skipif(library.missing() is not None, reason="no compiled module for this CPU")

COUNT = "from tilewise.backends.cpu import library; print(library.native().num_threads())"


@pytest.mark.parametrize(("text", "expected"), [("3", 3), ("1", 1), ("", None)])
def test_by_environment(text: str, expected: int | None) -> None:
    default = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    assert int(run_python(COUNT, TILEWISE_NUM_THREADS=text)) == (expected or default)


@pytest.mark.parametrize("text", ["many", "0", "-1", "1.5", "257"])
def test_what_is_no_count_is_told(text: str) -> None:
    said = run_python("import tilewise as tw; print(tw.backends()['cpu'])", TILEWISE_NUM_THREADS=text)
    assert said.strip() == f"TILEWISE_NUM_THREADS={text}, but it must be a number in [1, 256]"


def test_the_most() -> None:
    """What the pool has no room for is refused, and nothing else is."""
    native, before = library.native(), tw.num_threads()
    try:
        tw.set_num_threads(threads.MOST)
        assert tw.num_threads() == threads.MOST
        native.set_num_threads(threads.MOST + 1)
        assert tw.num_threads() == threads.MOST
        with pytest.raises(tw.InvalidInput, match=rf"\[1, {threads.MOST}\].*{threads.MOST + 1}"):
            tw.set_num_threads(threads.MOST + 1)
    finally:
        tw.set_num_threads(before)


@pytest.mark.skipif(sys.platform != "linux", reason="needs affinity")
def test_by_affinity() -> None:
    one_cpu = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    assert run_python(one_cpu + COUNT, TILEWISE_NUM_THREADS="").strip() == "1"


def test_exit_while_a_thread_is_inside_a_call() -> None:
    code = """
import threading, time
import numpy as np
import tilewise as tw
x = np.ones((1, 600, 2, 16), np.float32)
out, lse = tw.attention(x, x, x, return_lse=True, backend="cpu")
def busy():
    while True:
        tw.attention_backward(x, x, x, out, lse, x, backend="cpu")
threading.Thread(target=busy, daemon=True).start()
time.sleep(0.1)
print("right")
"""
    assert run_python(code, TILEWISE_NUM_THREADS="4").strip() == "right"
