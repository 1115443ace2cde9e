"""The machine that is measured: its name, its versions, and its ceilings."""

from __future__ import annotations

import os
import platform
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import Any

from tilewise.backends.cpu import library

PACKAGES = ("numpy", "torch", "jax", "jaxlib", "mlx")


def cpu_name() -> str:
    """The processor's name, as the system gives it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def cpus() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def version(package: str) -> str | None:
    """Installed version, without importing it; None if absent."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def level() -> str:
    """The CPU backend's level, or "absent"."""
    return "absent" if library.missing() else library.level()


def describe() -> dict[str, Any]:
    """What a figure must be read with."""
    versions = {package: found for package in PACKAGES if (found := version(package))}
    return {"cpu": cpu_name(), "cpus": cpus(), "level": level(), "system": platform.platform(terse=True),
            "python": platform.python_version(), "versions": versions}  # fmt: skip


class Ceilings:
    """What this machine can do at most, measured beside the work; None where the native module is absent."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._native = None if library.missing() else library.native()

    def flops(self, dtype: str) -> float | None:
        """FLOP/s of multiply-adds on registers, all threads at once; for bf16 of the pair product where it exists."""
        native = self._native
        if native is None:
            return None
        pairs = dtype == "bfloat16" and native.bf16_dot
        with ThreadPoolExecutor(self.threads) as pool:
            one = sum(pool.map(lambda _: native.peak_flops(0.05, pairs), range(self.threads)))
        return one / 2 if dtype == "float64" else one

    def read(self, size: float) -> float | None:
        """Bytes/s of reading `size` bytes in order, on all threads."""
        return None if self._native is None else self._native.read_bandwidth(int(size), 5)
