"""The real TPU compiler with no TPU: VMEM, spills and bundles of a kernel, from a child process with a time limit.

The compiler takes its dump flags once a process, and an error in it may abort the process: so a child a compile.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tilewise.backends.tpu import llo_dump
from tilewise.backends.tpu.dense_tiles import DenseTiles
from tilewise.backends.tpu.target import Chip, chip_named
from tilewise.backends.tpu.tiles import PagedTiles
from tilewise.errors import TilewiseError
from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import PagedProblem, Problem

CHILD = "tilewise.backends.tpu.compile_child"
# Quiet, no metadata server, several processes at once.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v6e-4",
    "TPU_WORKER_HOSTNAMES": "localhost", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}  # fmt: skip


class CompileFailed(TilewiseError, RuntimeError):
    """The TPU compiler refused a kernel, or could not be run. The text is its own."""


@dataclass(frozen=True)
class Report:
    """What the compiler made of a kernel. Counts are of the code as it stands; nothing was run.

    Attributes:
        vmem: bytes of VMEM that the kernel has, of chip.vmem. seconds: lowering and compiling.
        copies: operands of the whole call that are copied before the kernel runs, as HLO.
        bundles: VLIW bundles, by loop depth. spills: bundles that store a register for want of registers.
        units: unit -> bundles that use it.
    """

    chip: str
    vmem: int
    seconds: tuple[float, float]
    copies: tuple[str, ...] = ()
    bundles: dict[int, int] = field(default_factory=dict)
    spills: int = 0
    units: dict[str, int] = field(default_factory=dict)
    loops: tuple[llo_dump.Loop, ...] = ()

    @property
    def all_bundles(self) -> int:
        """Bundles of the kernel."""
        return sum(self.bundles.values())


def missing() -> str | None:
    """Why this machine cannot compile for TPUs, or None."""
    for module in ("jax", "libtpu"):
        if find_spec(module) is None:
            return f'{module} is not installed: pip install "jax[tpu]"'
    return None


def compile_paged(spec: AttentionSpec, problem: PagedProblem, tiles: PagedTiles, chip: str, *,
                  dump: bool = True, time_limit: float = 120.0, keep: Path | None = None) -> Report:  # fmt: skip
    """Compile a paged call for a chip.

    Args:
        dump: also read bundles and spills. keep: a folder for the compiler's dumps; None: they are deleted.

    Raises:
        CompileFailed: the compiler's error; no libtpu; the time limit passed.
    """
    call = {"spec": asdict(spec), "problem": asdict(problem), "tiles": asdict(tiles)}
    return run_child({"call": "paged", **call}, chip_named(chip), dump=dump, time_limit=time_limit, keep=keep)


def compile_dense(spec: AttentionSpec, problem: Problem, tiles: DenseTiles, chip: str, *, dump: bool = True,
                  time_limit: float = 120.0, keep: Path | None = None) -> Report:  # fmt: skip
    """Compile a dense or packed call for a chip; with problem.needs_grad its backward pass, both kernels in one report.

    Args and errors: as compile_paged().
    """
    call = {"spec": asdict(spec), "problem": asdict(problem), "tiles": asdict(tiles)}
    return run_child({"call": "dense", **call}, chip_named(chip), dump=dump, time_limit=time_limit, keep=keep)


def run_child(request: dict[str, Any], chip: Chip, *, dump: bool, time_limit: float, keep: Path | None) -> Report:
    """Compile what a request names (see compile_child) in a process of its own."""
    if (reason := missing()) is not None:
        raise CompileFailed(reason)
    with tempfile.TemporaryDirectory(prefix="tilewise-llo-") as temporary:
        folder = keep or Path(temporary)
        environment = {**os.environ, **ENVIRONMENT}
        source = str(Path(__file__).parents[3])
        environment["PYTHONPATH"] = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
        if dump:
            folder.mkdir(parents=True, exist_ok=True)
            environment["LIBTPU_INIT_ARGS"] = llo_dump.flags(folder)
        try:
            done = subprocess.run(
                [sys.executable, "-m", CHILD], input=json.dumps({**request, "chip": chip.name}), env=environment,
                capture_output=True, text=True, timeout=time_limit, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise CompileFailed(f"compiling for {chip.name} took more than {time_limit:g} s") from None
        if done.returncode:
            raise CompileFailed(f"compiling for {chip.name} failed:\n{_reason(done.stderr)}")
        found = json.loads(done.stdout.splitlines()[-1])
        report = Report(chip.name, found["vmem"], tuple(found["seconds"]), tuple(found["copies"]))
        return llo_dump.read(folder, report) if dump else report


def _reason(stderr: str) -> str:
    """The last error of a child's output."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    start = max((i for i, line in enumerate(lines) if "Error" in line and not line.startswith(" ")), default=0)
    return "\n".join(lines[start : start + 12])
