"""Which compiled module this CPU gets: the best instruction-set level that it has and that was built."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

# Level -> the flags of /proc/cpuinfo that it needs beyond the level below; best first.
X86_LEVELS = {
    "v4_bf16": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_bf16", "avx512vbmi"},
    "v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "v3": {"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe"},
    "v2": {"sse4_2", "ssse3", "popcnt"},
}
TEST_LEVELS = ("v4_emulated",)  # built on request (TILEWISE_EMULATED_LEVEL), never chosen by itself
VARIABLE, THREADS = "TILEWISE_CPU_LEVEL", "TILEWISE_NUM_THREADS"
MOST_THREADS = 256  # workers that the pool has room for (native/threads.cpp)


@lru_cache(maxsize=1)
def built_levels() -> list[str]:
    """Levels that were compiled into this installation, best first."""
    names = ("base",) if not _is_x86() else (*X86_LEVELS, *TEST_LEVELS)
    return [name for name in names if find_spec(f"{__package__}._cpu_{name}") is not None]


@lru_cache(maxsize=1)
def usable_levels() -> list[str]:
    """Built levels that this CPU can run, best first."""
    if not _is_x86():
        return built_levels()
    flags = _cpu_flags()
    needed = {**X86_LEVELS, "v4_emulated": X86_LEVELS["v3"]}
    return [name for name in built_levels() if needed[name] <= flags]


def missing() -> str | None:
    """Why there is no module to use, or None."""
    if not built_levels():
        return "the compiled module is absent: tilewise runs from a source tree that was not built (pip install .)"
    wanted = os.environ.get(VARIABLE)
    if wanted and wanted not in usable_levels():
        return f"{VARIABLE}={wanted}, but this CPU and installation have {', '.join(usable_levels()) or 'none'}"
    threads = os.environ.get(THREADS)
    if threads and not (threads.isdecimal() and 1 <= int(threads) <= MOST_THREADS):
        return f"{THREADS}={threads}, but it must be a number in [1, {MOST_THREADS}]"
    if not usable_levels():
        return f"this CPU runs none of the levels that were built ({', '.join(built_levels())})"
    return None


@lru_cache(maxsize=1)
def level() -> str:
    """The level in use."""
    reason = missing()
    if reason is not None:
        raise ImportError(reason)
    wanted = os.environ.get(VARIABLE)
    return wanted or next(name for name in usable_levels() if name not in _passed_over())


@lru_cache(maxsize=1)
def native() -> ModuleType:
    """The compiled module in use."""
    return import_module(f"{__package__}._cpu_{level()}")


def has_ffi() -> bool:
    """Was the module built with the XLA FFI, so that JAX can call it?"""
    return hasattr(native(), "ffi_handlers")


def _passed_over() -> tuple[str, ...]:
    """Usable levels that are never chosen by themselves.

    Intel's VDPBF16PS runs at half the FLOP rate of its float32 multiply-add (measured: 90 against 179 GFLOP/s a core of
    an Emerald Rapids Xeon), so bfloat16 is faster there when widened to float32.
    """
    return (*TEST_LEVELS, "v4_bf16") if cpu_info().get("vendor_id") == "GenuineIntel" else TEST_LEVELS


def _is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def _cpu_flags() -> set[str]:
    """What the CPU can do, in the words of /proc/cpuinfo. Where nobody tells, only what the lowest level needs."""
    flags = cpu_info().get("flags", "") or _macos_flags()
    return set(flags.split()) or X86_LEVELS["v2"]


@lru_cache(maxsize=1)
def _macos_flags() -> str:
    """The same from sysctl, which under Rosetta tells what Rosetta translates; "" elsewhere."""
    if sys.platform != "darwin":
        return ""
    command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.features", "machdep.cpu.leaf7_features"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
    return told.lower().replace(".", "_")


@lru_cache(maxsize=1)
def cpu_info() -> dict[str, str]:
    """The first processor of /proc/cpuinfo; empty where there is none."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            first = lines.read().split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
