"""Reads what the TPU compiler dumps of a kernel: VLIW bundles with their loops, and which units each bundle uses."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewise.backends.tpu.compile_offline import Report

SPILLS = "VSTORE:SPILL"
_BUNDLE = re.compile(r"\s*(0x[0-9a-f]+|0)\s*(?:(LH|LB|LE|PB|PF|CT)\s*)?:\s*((?:> ?)*)\{")
_SOURCE = re.compile(r'loc\("([^"]+)":(\d+)')


@dataclass(frozen=True)
class Loop:
    """A loop of the machine code.

    Attributes:
        depth: of nesting; the grid's is 1. bundles: of its body, inner loops counted once.
        products, spills: those of the bundles that use a matrix unit, that store a register for want of registers.
        source: file:line that most of its bundles come from.
    """

    depth: int
    bundles: int
    products: int
    spills: int
    source: str


def flags(folder: Path) -> str:
    """LIBTPU_INIT_ARGS that make the compiler write its last stage into a folder."""
    return (
        f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=.*final.* "
        "--xla_mosaic_enable_llo_source_annotations=true"
    )


def read(folder: Path, report: Report, kernel: str = "") -> Report:
    """The report with what the dumps say of the largest kernel (whose name holds `kernel`)."""
    files = sorted(
        (path for path in folder.glob("*final_bundles.txt")
         if "schedule" not in path.name and kernel in path.name
         and "<" not in path.name and "-TLP-" not in path.name and "fusion" not in path.name),
        key=lambda path: -path.stat().st_size,
    )  # fmt: skip
    custom = [path for path in files if "inlined_call_operand" in path.read_text()[:4000]]
    if not custom:
        return report
    bundles = custom[0]
    stem = re.sub(r"-\d+-final_bundles\.txt$", "", bundles.name)
    columns, rows = _units(next(folder.glob(f"{stem}-*-final_hlo-static-per-bundle-utilization.txt")))
    depths, loops = _loops(bundles.read_text(), columns, rows)
    units = {name: sum(row[i] > 0 for row in rows) for i, name in enumerate(columns)}
    return replace(report, bundles=dict(sorted(depths.items())), spills=units.get(SPILLS, 0), units=units, loops=loops)


def _units(path: Path) -> tuple[list[str], list[list[int]]]:
    """(units, uses of each unit in each bundle)."""
    head, _, body = path.read_text().partition("== UTILIZATION:")
    names = next(line for line in head.splitlines() if line.startswith("MXU") or ", VALU" in line)
    return [name.strip() for name in names.split(",")], [list(map(int, row.split())) for row in body.split("\n") if row]


def _loops(text: str, columns: list[str], rows: list[list[int]]) -> tuple[Counter[int], tuple[Loop, ...]]:
    products, spills = columns.index("MXU"), columns.index(SPILLS)
    depths: Counter[int] = Counter()
    open_loops: list[tuple[int, list[int], Counter[str]]] = []
    closed: list[Loop] = []

    def close(depth: int) -> None:
        while open_loops and open_loops[-1][0] >= depth:
            at, (size, mxu, spilled), sources = open_loops.pop()
            source = sources.most_common(1)[0][0] if sources else ""
            closed.append(Loop(at, size, mxu, spilled, source))

    number = 0
    for line in text.splitlines():
        match = _BUNDLE.match(line)
        if match is None:
            continue
        depth = match[3].count(">")
        row = rows[number] if number < len(rows) else [0] * len(columns)
        number += 1
        depths[depth] += 1
        if match[2] == "LB":
            close(depth)
            open_loops.append((depth, [0, 0, 0], Counter()))
        elif open_loops and depth < open_loops[-1][0]:
            close(depth + 1)
        places = {f"{file.rsplit('/', 1)[-1]}:{at}" for file, at in _SOURCE.findall(line)}
        for _, counts, sources in open_loops:
            counts[0] += 1
            counts[1] += row[products] > 0
            counts[2] += row[spills] > 0
            sources.update(places)
    close(0)
    return depths, tuple(closed)
