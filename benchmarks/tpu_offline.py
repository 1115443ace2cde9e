"""Compiles the TPU paged kernel with the real compiler and no TPU, for chips x dtypes x widths x pages x groups.

    python benchmarks/tpu_offline.py --out docs/tpu_compiled.md [--chips v6e,v5e] [--only d=128,page=16]

Each combination compiles with the default tiles, or why_not() refuses it in words; nothing else may happen.
A chip is a process; where the compiler ends it, the combination is noted and a new process goes on behind it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DTYPES = ("bfloat16", "float32", "int8", "float8_e4m3fn", "float8_e5m2")
WIDTHS = (64, 80, 128, 256)
PAGES = (8, 16, 32, 64, 128, 256)
HEADS = {"GQA 1": (8, 8), "GQA 4": (32, 8), "GQA 8": (64, 8), "MQA": (16, 1)}
STEPS = {"decode": 64, "mixed": 512}


@dataclass(frozen=True)
class Combination:
    """A call to compile."""

    pages: str
    d: int
    page: int
    heads: str
    step: str


def combinations(only: dict[str, str]) -> list[Combination]:
    every = (Combination(*values) for values in itertools.product(DTYPES, WIDTHS, PAGES, HEADS, STEPS))
    return [one for one in every if all(str(getattr(one, name)) == value for name, value in only.items())]


def worker(chip_name: str, only: dict[str, str], start: int) -> None:
    """Print a JSON line a combination: its number, verdict, VMEM and seconds."""
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    from tilewise.backends.tpu import example_call, target, tiles
    from tilewise.backends.tpu.compile_child import compile_for
    from tilewise.backends.tpu.why_not import why_not
    from tilewise.spec.attention_spec import AttentionSpec
    from tilewise.spec.problem import PagedProblem

    chip = target.chip_named(chip_name)
    device = topologies.get_topology_desc(platform="tpu", topology_name=chip.topology).devices[0]
    for number, one in enumerate(combinations(only)):
        if number < start:
            continue
        q_heads, kv_heads = HEADS[one.heads]
        q_dtype = one.pages if one.pages in ("bfloat16", "float32") else "bfloat16"
        scale = "none" if q_dtype == one.pages else "head"
        spec = AttentionSpec(one.d**-0.5, window=(None, 0), k_scale=scale, v_scale=scale)
        problem = PagedProblem(
            STEPS[one.step], 64, 64 * 2048 // one.page, one.page, 2048 // one.page, q_heads, kv_heads, one.d, one.d,
            q_dtype, one.pages, f"tpu:{chip_name}", "jax",
        )  # fmt: skip
        print(json.dumps({"started": number}), flush=True)
        if (reason := why_not(spec, problem)) is not None:
            found = {"verdict": f"refused: {reason}"}
        else:
            chosen = tiles.first_choice(spec, problem)
            function = example_call.paged_function(spec, problem, chosen)
            arguments = (example_call.paged_operands(spec, problem, SingleDeviceSharding(device)),)
            try:
                found = {"verdict": "compiled", **compile_for(chip, function, arguments)}
            except Exception as error:
                found = {"verdict": f"ERROR {type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        print(json.dumps({"number": number, **found}), flush=True)


def results(chip: str, only: dict[str, str]) -> Iterator[tuple[Combination, dict]]:
    """Every combination with what the compiler said."""
    from tilewise.backends.tpu.compile_offline import ENVIRONMENT

    every, start = combinations(only), 0
    options = json.dumps(only)
    while start < len(every):
        command = [sys.executable, __file__, "--worker", chip, options, str(start)]
        environment = {**os.environ, **ENVIRONMENT}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, text=True, env=environment, **pipes) as p:
            assert p.stdout is not None
            for line in p.stdout:
                if not line.startswith("{"):
                    continue
                found = json.loads(line)
                if "number" in found:
                    start = found["number"] + 1
                    yield every[found["number"]], found
        if start < len(every):
            yield every[start], {"verdict": "ERROR the compiler ended the process"}
            start += 1


def table(chip: str, found: list[tuple[Combination, dict]]) -> list[str]:
    """Rows of the table: pages x width, columns: page sizes; VMEM in MiB of the hungriest group and step."""
    sizes = sorted({one.page for one, _ in found})
    lines = [f"## {chip}", "", "| pages | head_dim | " + " | ".join(f"page {size}" for size in sizes) + " |"]
    lines.append("| --- " * (2 + len(sizes)) + "|")
    for dtype, width in itertools.product(DTYPES, WIDTHS):
        cells = [_cell([x for one, x in found if (one.pages, one.d, one.page) == (dtype, width, size)])
                 for size in sizes]  # fmt: skip
        if any(cell != "-" for cell in cells):
            lines.append(f"| {dtype} | {width} | " + " | ".join(cells) + " |")
    reasons = sorted({x["verdict"] for _, x in found if not x["verdict"].startswith("compiled")})
    return [*lines, "", *(f"- {reason}" for reason in reasons), *([""] if reasons else [])]


def _cell(here: list[dict]) -> str:
    errors = sum(x["verdict"].startswith("ERROR") for x in here)
    refused = sum(x["verdict"].startswith("refused") for x in here)
    if errors or not here:
        return f"{errors} ERRORS" if errors else "-"
    if refused == len(here):
        return "refused"
    most = max(x["vmem"] for x in here if "vmem" in x)
    return f"{most / 2**20:.1f}" + (f", {refused} refused" if refused else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--chips", default="v4,v5e,v5p,v6e,tpu7x")
    parser.add_argument("--only", default="", help="pages=, d=, page=, heads=, step=, with commas")
    arguments = parser.parse_args()
    only = dict(part.split("=") for part in arguments.only.split(",") if part)
    lines = ["# What the TPU compiler made of the paged kernel", "",
             "Made by `python benchmarks/tpu_offline.py`, with no TPU. Cells: VMEM in MiB of the hungriest of "
             f"{only.get('heads', ', '.join(HEADS))} in a decode and in a mixed step, default tiles. Nothing was run.",
             ""]  # fmt: skip
    errors = 0
    for chip in arguments.chips.split(","):
        found = []
        for one, x in results(chip, only):
            found.append((one, x))
            errors += x["verdict"].startswith("ERROR")
            print(chip, one, {name: x[name] for name in ("verdict", "vmem", "seconds") if name in x}, flush=True)
        lines += table(chip, found)
    if arguments.out:
        arguments.out.write_text("\n".join(lines))
    return int(errors > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4]))
    else:
        sys.exit(main())
