"""Calls from many threads, from forked children, while the thread count changes, interrupted: right, no deadlock."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import run_python
from tilewise.backends.cpu import library

pytestmark = pytest.mark.skipif(library.missing() is not None, reason="no compiled module for this CPU")
forks = pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no fork here")

# What every scenario starts with: a call with gradients, and the bits that it must give.
COMMON = """
import os, signal, sys, threading, time
import numpy as np
import tilewise as tw

random = np.random.default_rng(0)
q, k, v = (random.standard_normal((2, 300, 4, 32)).astype(np.float32) for _ in range(3))
pages = random.standard_normal((40, 16, 4, 32)).astype(np.float32)
table = np.arange(40, dtype=np.int32).reshape(2, 20)
lens, starts = np.array([300, 17], np.int32), np.array([0, 1, 4], np.int32)

def call():
    out, lse = tw.attention(q, k, v, causal=True, return_lse=True, backend="cpu")
    grads = tw.attention_backward(q, k, v, out, lse, q, causal=True, backend="cpu")
    paged = tw.ragged_paged_attention(q[0, :4], pages, lens, table, starts, backend="cpu")
    return b"".join(x.tobytes() for x in (out, lse, grads.q, grads.k, grads.v, paged))

def same(times):
    return all(call() == want for _ in range(times))
"""
WANT = "\nwant = call()\n"


def run(body: str, **variables: str) -> None:
    assert run_python(COMMON + body, timeout=180.0, **variables).split()[-1] == "right"


def test_eight_threads_at_once() -> None:
    run(WANT + """
good = []
threads = [threading.Thread(target=lambda: good.append(same(5))) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("right" if good == [True] * 8 else "wrong")
""", TILEWISE_NUM_THREADS="3")  # fmt: skip


def test_thread_count_changes_under_load() -> None:
    run(WANT + """
done = threading.Event()
def change():
    while not done.is_set():
        for count in (1, 4, 2, 3):
            tw.set_num_threads(count)
            time.sleep(0.001)
changer = threading.Thread(target=change)
changer.start()
good = []
threads = [threading.Thread(target=lambda: good.append(same(8))) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
done.set()
changer.join()
print("right" if good == [True] * 3 else "wrong")
""")  # fmt: skip


FORK = """
def in_child():
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if same(3) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


@forks
@pytest.mark.parametrize("warm", [True, False])
def test_forked_child(warm: bool) -> None:
    """The child of a process whose pool runs, and of one that has not begun."""
    first = WANT if warm else "\nwant = None\n"
    same = "" if warm else "\ndef same(times):\n    return len({call() for _ in range(times)}) == 1\n"
    run(first + FORK + same + """
codes = [in_child() for _ in range(3)]
print("right" if codes == [0, 0, 0] and (want is None or call() == want) else f"wrong {codes}")
""", TILEWISE_NUM_THREADS="3")  # fmt: skip


@forks
def test_fork_while_another_thread_calls() -> None:
    run(WANT + FORK + """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
done, good = threading.Event(), []
def busy():
    while not done.is_set():
        good.append(call() == want)
thread = threading.Thread(target=busy)
thread.start()
codes = [in_child() for _ in range(8)]
done.set()
thread.join()
print("right" if codes == [0] * 8 and all(good) else f"wrong {codes}")
""", TILEWISE_NUM_THREADS="3")  # fmt: skip


@forks
def test_grandchild() -> None:
    run(WANT + FORK + """
child = os.fork()
if child == 0:
    signal.alarm(90)
    os._exit(in_child() + (0 if same(2) else 1))
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print("right" if code == 0 and call() == want else f"wrong {code}")
""", TILEWISE_NUM_THREADS="3")  # fmt: skip


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_interrupt_during_a_call() -> None:
    """Ctrl-C is raised once the call is done; the next call is right."""
    run(WANT + """
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
long = [np.concatenate([x] * 8, 1) for x in (q, k, v)]
caught = 0
for delay in (0.002, 0.005, 0.02, 0.05):
    until = time.monotonic() + 60
    try:
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
        while time.monotonic() < until: tw.attention(*long, backend="cpu")
    except KeyboardInterrupt:
        caught += 1
print("right" if caught == 4 and same(2) else f"wrong {caught}")
""", TILEWISE_NUM_THREADS="2")  # fmt: skip


def test_exit_while_the_pool_waits() -> None:
    run(WANT + 'print("right")\n', TILEWISE_NUM_THREADS="4")


def test_more_threads_than_work() -> None:
    run(WANT + """
tw.set_num_threads(64)
x = q[:1, :1, :1]
a = tw.attention(x, x, x, backend="cpu")
print("right" if same(2) and np.allclose(a, x, rtol=1e-6) else "wrong")
""")  # fmt: skip
