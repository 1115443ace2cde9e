"""Memory of a long call, forward and backward: inputs and outputs, and how much more."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

from tilewise.bench import machine
from tilewise.bench.goals import goal
from tilewise.bench.row import OURS, Row
from tilewise.bench.settings import Settings
from tilewise.bench.works import inputs

TITLE = "Memory of forward + backward, B 1, H 1, D 128, NumPy"

ALONE = True  # what an earlier case freed would count


class Case(NamedTuple):
    dtype: str
    length: int


def cases(settings: Settings) -> list[Case]:
    if not Path("/proc/self/clear_refs").exists():  # only Linux can say what the peak was since a moment
        return []
    return [Case(dtype, 8192 if settings.quick else 32768) for dtype in settings.chosen("float32", "bfloat16")]


def measure(case: Case, settings: Settings) -> Row:
    import numpy as np

    import tilewise as tw
    from tilewise.frameworks.numpy_adapter import DTYPES

    if machine.level() != "absent":
        tw.set_num_threads(settings.threads)
    dtype, length = case
    generator = np.random.default_rng(0)
    shape = (1, length, 1, 128)
    q, k, v, dout = (generator.standard_normal(shape, np.float32).astype(DTYPES[dtype]) for _ in range(4))
    _both(q[:, :256], k[:, :256], v[:, :256], dout[:, :256], settings)  # threads and scratch of small calls are there

    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
    clock = time.process_time if settings.threads == 1 else time.perf_counter
    start = clock()
    outputs = _both(q, k, v, dout, settings)
    seconds = clock() - start
    extra = (_status("VmHWM") - before - sum(x.nbytes for x in outputs)) / 1e6
    work = sum(inputs.dense_flops(form, heads=1, length=length, width=128, causal=True)
               for form in ("forward", "backward"))  # fmt: skip
    row = Row("memory", f"N {length}, causal", dtype, settings.threads, settings.clock, {OURS: seconds}, flops=work,
              peak_flops=machine.Ceilings(settings.threads).flops(dtype))  # fmt: skip
    row.add("MB beyond inputs and outputs", extra, goal("memory", machine.kind()))
    row.add_ceiling()
    return row


def _both(q: Any, k: Any, v: Any, dout: Any, settings: Settings) -> list[Any]:
    """[out, lse, dq, dk, dv]."""
    import tilewise as tw

    out, lse = tw.attention(q, k, v, causal=True, return_lse=True, backend=settings.backend)
    grads = tw.attention_backward(q, k, v, out, lse, dout, causal=True, backend=settings.backend)
    return [out, lse, *grads[:3]]


def _status(name: str) -> int:
    """Bytes of a line of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name + ":")).split()[1])
