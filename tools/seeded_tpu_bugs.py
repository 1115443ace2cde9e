"""Breaks the TPU paged kernel in ways that matter and sees whether the tests notice. Exit status 1 if one is missed.

    PYTHONPATH=src:. python tools/seeded_tpu_bugs.py [words of a name ...]

Each bug runs in a process of its own, with a time limit: a lost semaphore count is a deadlock.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

PALLAS = "tilewise.backends.tpu.pallas."
SECONDS = 180
PIPELINED = "tpu/pipelined"  # tests/backends/tpu/interpret.py


@dataclass(frozen=True)
class Bug:
    """In `module`, `old` becomes `new`; `case` is run in `mode`."""

    name: str
    module: str
    old: str
    new: str
    case: str = "paged/mixed"
    mode: str = "on_wait"


BUGS = (
    Bug("none", "page_copies", "SLOTS = 2", "SLOTS = 2"),
    Bug("no wait", "paged", "copies.wait(first, keys.end, slot)", "pass"),
    Bug("wait for half of the pages", "page_copies", "lax.fori_loop(0, count, piece, 0)\n\n    def count",
        "lax.fori_loop(0, count // 2, piece, 0)\n\n    def count"),
    Bug("prefetch into the buffer that is read", "paged", "fetch(item, keys, i + 1, 1 - slot)",
        "fetch(item, keys, i + 1, slot)", case="paged/long and short"),
    Bug("the last page's tail is not masked", "page_words", "(at >= self.within[0]) & (at < self.within[1])",
        "at >= 0", case="paged/decode"),
    Bug("keys past the end are seen", "visibility", "jnp.minimum(rows.kv_len, end_key)", "end_key",
        case="paged/not causal"),
    Bug("causal off by one", "visibility", "position + (min(right, FAR) + 1)", "position + (min(right, FAR) + 2)"),
    Bug("causal block skipped too early", "visibility", "last + min(right, FAR) + 1)", "last + min(right, FAR))"),
    Bug("window off by one", "visibility", "key >= spread(position - min(left, FAR), shape[1])",
        "key >= spread(position - min(left, FAR) + 1, shape[1])", case="paged/window, mixed"),
    Bug("window block skipped too early", "visibility", "jnp.maximum(first - min(left, FAR), 0)",
        "jnp.maximum(first - min(left, FAR) + 1, 0)", case="paged/window, mixed"),
    Bug("k scale dropped", "block_of_keys", "s = s * self.arrays.head_k_scale[self.first_head + h]", "pass",
        case="paged/everything"),
    Bug("v scale of slots dropped", "block_of_keys", "p = p * self.scratch.v_scales[pl.ds(h, 1)]", "pass",
        case="paged/everything"),
    Bug("wrong lane of a packed word", "page_words", "24 - 8 * place",
        "16 - 8 * place if place == 1 else 24 - 8 * place", case="paged/everything"),
    Bug("K and V of bfloat16 swapped", "page_words", "if place == 0 else", "if place == 1 else",
        case="paged/bfloat16, mixed"),
    Bug("acc not rescaled", "online_softmax", "spread(alpha, v.shape[1]) * acc[at]", "acc[at]",
        case="paged/long and short"),
    Bug("rows not begun anew", "paged", "scratch.l[...] = jnp.zeros(scratch.l.shape, jnp.float32)", "pass"),
    Bug("table read past a sequence", "page_copies", "lax.fori_loop(0, self.count(first, end), piece, 0)",
        "lax.fori_loop(0, self.shape.block_pieces, piece, 0)"),
    Bug("a sequence's first page is read for all", "page_copies", "self.table[row + page]", "self.table[row]"),
    Bug("wrong kv head", "paged_shape", "return (2 * group, 0)", "return (0 * group, 0)"),
    Bug("draft mask off by one", "visibility", "jnp.where(key(places) ==", "jnp.where(key(places) + 1 ==",
        case="paged/draft, 4 columns"),
    Bug("scores that run ahead overwrite those in use", "block_of_keys", "scores(2 * i + 1, 1)", "scores(2 * i + 1, 0)",
        case=PIPELINED),
    Bug("sink forgotten in l", "paged", "jnp.where(owned, 1.0, 0.0)", "jnp.where(owned, 0.0, 0.0)",
        case="paged/sinks without keys"),
    Bug("copies race with the reader", "paged", "fetch(item, keys, i + 1, 1 - slot)", "fetch(item, keys, i + 1, slot)",
        case="paged/long and short", mode="races"),
)  # fmt: skip


def main(words: list[str]) -> int:
    missed = 0
    for number, bug in enumerate(BUGS):
        if words and not any(word in bug.name for word in words):
            continue
        verdict = judge(number)
        caught = verdict != "passed"
        missed += caught == (bug.name == "none")
        print(f"{'caught' if caught else 'passed'}  {bug.name} ({bug.mode}): {verdict}", flush=True)
    return int(missed > 0)


def judge(number: int) -> str:
    """How a bug shows: "passed" where it does not."""
    command = [sys.executable, __file__, "--child", str(number)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, env=environment)
    except subprocess.TimeoutExpired:
        return f"no end within {SECONDS} s"
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if lines:
        return json.loads(lines[-1])["verdict"]
    return (done.stderr.strip().splitlines() or ["died"])[-1][:160]


def child(number: int) -> None:
    bug = BUGS[number]
    plant(bug)
    from tests.backends.tpu import interpret
    from tilewise.testing.cases import BY_NAME

    case = interpret.PIPELINED if bug.case == PIPELINED else BY_NAME[bug.case]
    try:
        verdict = interpret.wrong(case, interpret.run(case, bug.mode, clipped=False)) or "passed"
    except Exception as error:
        verdict = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1]}"[:160]
    if verdict == "passed" and bug.mode == "races" and interpret.races_found():
        verdict = "race found"
    print(json.dumps({"verdict": verdict}), flush=True)
    os._exit(0)  # a copy that was never awaited may hold the interpreter


def plant(bug: Bug) -> None:
    """Put the broken module in place of the right one, before anything imports it."""
    name = PALLAS + bug.module
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).read_text()
    if bug.old not in text:
        raise SystemExit(f"{bug.name}: {bug.module} no longer holds {bug.old!r}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    exec(compile(text.replace(bug.old, bug.new), spec.origin, "exec"), module.__dict__)
    parent, _, attribute = name.rpartition(".")
    setattr(importlib.import_module(parent), attribute, module)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(int(sys.argv[2]))
    else:
        sys.exit(main(sys.argv[1:]))
