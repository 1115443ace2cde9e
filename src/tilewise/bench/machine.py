"""The machine that is measured: its name, its versions, and its ceilings."""

from __future__ import annotations

import os
import platform
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from tilewise.backends.cpu import library

PACKAGES = ("numpy", "torch", "jax", "jaxlib", "mlx")


def cpu_name() -> str:
    """The processor's name, as the system gives it."""
    return library.cpu_info().get("model name") or platform.processor() or platform.machine()


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


def kind() -> str:
    """What bars are stated by: the level, or another name where the rivals meet a CPU that the bars do not speak of.

    They speak of AMD's processors, where MKL runs AVX2 code, and of none with AMX, nor of AVX2 code beside rivals that
    use AVX-512.
    """
    found, cpu = level(), library.cpu_info()
    flags = cpu.get("flags", "").split()
    elsewhere = {"v4_bf16": cpu.get("vendor_id") != "AuthenticAMD" or "amx_tile" in flags, "v3": "avx512f" in flags}
    return f"{found} among other rivals" if elsewhere.get(found) else found


def last_level_cache() -> int:
    """Bytes of the largest cache that a CPU sees; 0 if the system does not say."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size[:-1]) * units[size[-1]] for size in sizes if size[-1:] in units), default=0)


def describe() -> dict[str, Any]:
    """What a figure must be read with."""
    versions = {package: found for package in PACKAGES if (found := version(package))}
    return {"cpu": cpu_name(), "cpus": cpus(), "level": level(), "system": platform.system(),
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
