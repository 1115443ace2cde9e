"""Break the CPU kernels in ways that matter, one at a time, and see whether the conformance suite notices.

python tools/mutate.py [--only NAME ...] [--tags smoke,every]

Each mutant is one replacement in one native file. It is built (one level) in build/mutants and
the suite of (cpu, NumPy) runs against it. Exit code 0: the unbroken kernels pass and every mutant is caught.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from sanitize import ROOT, levels, nanobind_dir

FOLDER = ROOT / f"build/mutants{os.environ.get('TILEWISE_MUTANTS', '')}"  # a suffix, to run several side by side
NATIVE = Path("src/tilewise/backends/cpu/native")


class Mutant(NamedTuple):
    """old -> new, the first time it occurs in the file."""

    name: str
    file: str
    old: str
    new: str


MUTANTS = [
    Mutant("causal edge off by one", "visibility.hpp", "last + meaning.right + 1", "last + meaning.right + 2"),
    Mutant("window edge off by one", "visibility.hpp", "first - meaning.left)", "first - meaning.left + 1)"),
    Mutant("aligned to the top left", "visibility.hpp", "return i + kv_len - q_len;",
           "return i + 0 * (kv_len - q_len);"),
    Mutant("window over pages is that of the next query", "page_batch.hpp", "visible_keys(m, query, q_len, kv_len)",
           "visible_keys(m, query + 1, q_len, kv_len)"),
    Mutant("page ids left of the window read", "forward_block.hpp", "std::max<int64_t>(0, begin - first)",
           "0 * std::max<int64_t>(0, begin - first)"),
    Mutant("keys of a job's first query alone", "paged.cpp", "s.visible({q, q + queries}, a_.meaning)",
           "s.visible({q, q + 1}, a_.meaning)"),
    Mutant("accumulator not rescaled", "forward_block.hpp", "product<U, Start::scale>(ByRow{kLd}",
           "product<U, Start::keep>(ByRow{kLd}"),
    Mutant("row sum not rescaled", "forward_block.hpp", "l = l * alpha_[r] + ", "l = l + "),
    Mutant("tail not masked", "forward_block.hpp", "if (!view.empty()) hide(s, view.end,",
           "if (false) hide(s, view.end,"),
    Mutant("holes not masked", "forward_block.hpp", "if (view.holes) visible_.hide_holes",
           "if (false) visible_.hide_holes"),
    Mutant("NaN let through a mask", "forward_block.hpp", "group.careful = few ? !group.even || biased : !finite_",
           "group.careful = few ? !group.even || biased : false"),
    Mutant("wrong kv head", "forward.cpp", "kv_head * a_.ks.h", "(a_.kv_heads - 1 - kv_head) * a_.ks.h"),
    Mutant("scale dropped", "forward_block.hpp", "natural ? meaning.scale : meaning.scale * kLog2e",
           "natural ? meaning.scale : kLog2e"),
    Mutant("soft cap without its derivative", "score_gradient.hpp", "factor *= slope;", "factor *= splat(real{1});"),
    Mutant("sink left out of the sum", "online_softmax.hpp", "if (sink && *sink > low) {", "if (false) {"),
    Mutant("maximum never raised", "online_softmax.hpp", "  m = candidate;\n", "  m = old;\n"),
    Mutant("dlse left out of delta", "delta.hpp", "if (b.dlse) delta -=", "if (false) delta -="),
    Mutant("sink gradient with the wrong sign", "delta.hpp", "dsink -= std::exp", "dsink += std::exp"),
    Mutant("ds without delta", "score_gradient.hpp",
           "const auto ds = p * (load(c.dp + row + i) * by_scale - load(terms.scaled_delta + i));",
           "const auto ds = p * (load(c.dp + row + i) * by_scale);"),
    Mutant("hidden pairs in the gradient", "score_gradient.hpp", "const V p = visible ? exp_of(x) : V{};",
           "const V p = exp_of(x);"),
    Mutant("split states merged without weights", "states.hpp", "const float w = power_of_two(part.m[r] - base);",
           "const float w = 1.0f;"),
    Mutant("sink counted in every split", "states.hpp", "const float l = seen + power_of_two(sink - base);",
           "const float l = seen + count * power_of_two(sink - base);"),
    Mutant("value scale dropped", "states.hpp", "factor *= scale_at(a.pages.v_scale",
           "factor *= 0 * scale_at(a.pages.v_scale"),
    Mutant("key scale of slots dropped", "decode.hpp", "if (key_scale) x *=", "if (false) x *="),
    Mutant("rows written one slot late", "append.cpp", "place_of(a.pages, s, position)",
           "place_of(a.pages, s, position > 0 ? position - 1 : position)"),
]  # fmt: skip


def build(mutant: Mutant | None) -> Path:
    """Compile the mutated sources; returns a folder for PYTHONPATH. Unchanged files are not compiled again."""
    tree, level = FOLDER / "tree", levels()[0]
    for path in [*(ROOT / NATIVE).iterdir(), ROOT / "CMakeLists.txt"]:
        text = path.read_text()
        if mutant and path.name == mutant.file:
            if mutant.old not in text:
                raise SystemExit(f"{mutant.name}: {mutant.file} no longer has {mutant.old!r}")
            text = text.replace(mutant.old, mutant.new, 1)
        copy = tree / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not copy.exists() or copy.read_text() != text:
            copy.write_text(text)
    cmake = ["cmake", "-S", str(tree), "-B", str(FOLDER / "cmake"), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
             f"-DTILEWISE_LEVELS={level}", f"-DPython_EXECUTABLE={sys.executable}",
             f"-Dnanobind_DIR={nanobind_dir()}"]  # fmt: skip
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for command in (cmake, ["cmake", "--build", str(FOLDER / "cmake")]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    package = FOLDER / "python/tilewise"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "src/tilewise", package, ignore=shutil.ignore_patterns("*.so", "native", "__pycache__"))
    (module,) = (FOLDER / "cmake").glob(f"_cpu_{level}.*.so")
    shutil.copy(module, package / "backends/cpu")
    return package.parent


PROGRAM = """
import sys
from tilewise.backends.cpu import library
from tilewise.testing.cases import select
from tilewise.testing.conform import CHECKS, one
from tilewise.testing.pairs import covers, usable_pairs
assert "mutants" in library.native().__file__, library.native().__file__
pair = next(pair for pair in usable_pairs() if (pair.backend, pair.framework) == ("cpu", "numpy"))
tags = sys.argv[1].split(",") if sys.argv[1] else None
count = 0
for check in ("forward", "backward", "append", "poison"):
    for case in select(tags):
        if case.form in CHECKS[check][1] and covers(pair, case):
            count += 1
            result = one(case, pair, check)
            if result.status == "failed":
                print(f"{check} of {case.name}: {result.message[:140]}")
                sys.exit(1)
print(f"{count} checks passed")
"""


def caught(folder: Path, tags: str) -> tuple[bool, str]:
    """Does the suite fail (a crash counts), and what it said."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "TILEWISE_CPU_LEVEL": levels()[0]}
    command = [sys.executable, "-c", PROGRAM, tags]
    run = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    said = (run.stdout.strip() or run.stderr.strip()).splitlines()
    return run.returncode != 0, said[-1] if said else f"exit code {run.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", help="names of mutants")
    parser.add_argument("--tags", default="", help="only cases with one of these tags, commas between")
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if not options.only or mutant.name in options.only]
    failed, said = caught(build(None), options.tags)
    print(f"unbroken: {said}", flush=True)
    if failed:
        return 1
    missed = 0
    for mutant in chosen:
        found, said = caught(build(mutant), options.tags)
        missed += not found
        print(f"{'caught' if found else 'MISSED'}: {mutant.name} ({said})", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} mutants caught", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
