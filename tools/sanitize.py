"""Build the CPU backend with sanitizers and run the conformance suite of (cpu, NumPy) under them.

python tools/sanitize.py address,undefined [--tags smoke] [--levels 1]
python tools/sanitize.py thread

The instrumented modules and a copy of the Python files go to build/sanitize/<name>; nothing else is touched.
Exit code 0: no check failed and no sanitizer complained. Needs GCC or clang on Linux.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
RUNTIMES = {"address,undefined": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}
OPTIONS = {
    # Python keeps what it allocates until the end: leaks cannot be told from that.
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:exitcode=99",
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=99:second_deadlock_stack=1",
}
PROGRAM = """
import sys
from tilewise.backends.cpu import library
from tilewise.testing import verify
tags = sys.argv[1].split(",") if sys.argv[1] else None
assert library.missing() is None, library.missing()
assert "sanitize" in library.native().__file__, library.native().__file__
results = verify(backends=["cpu"], frameworks=["numpy"], tags=tags)
failed = [result for result in results if result.status == "failed"]
print(*failed[:20], sep="\\n")
print(f"level {library.level()}: {len(results)} checks, {len(failed)} failed")
sys.exit(bool(failed) or not results)
"""


def levels() -> list[str]:
    """What to instrument, the most telling first: this CPU's best level, then the 16-lane code on 8 lanes."""
    best = subprocess.run(
        [sys.executable, ROOT / "tools/cpu_level.py"], capture_output=True, text=True, check=True
    ).stdout.strip()
    emulated = ["v4_emulated"] if best == "v3" else []
    return [best, *emulated]


def build(name: str, wanted: list[str]) -> Path:
    """Compile the levels; returns a folder for PYTHONPATH."""
    folder = ROOT / "build/sanitize" / name.replace(",", "-")
    cmake = ["cmake", "-S", str(ROOT), "-B", str(folder / "cmake"), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
             f"-DTILEWISE_SANITIZE={name}", f"-DTILEWISE_LEVELS={';'.join(wanted)}",
             f"-DTILEWISE_EMULATED_LEVEL={'ON' if 'v4_emulated' in wanted else 'OFF'}",
             f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={nanobind_dir()}"]  # fmt: skip
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(cmake, check=True, stdout=subprocess.DEVNULL, env=environment)
    subprocess.run(["cmake", "--build", str(folder / "cmake")], check=True, stdout=subprocess.DEVNULL, env=environment)
    package = folder / "python/tilewise"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "src/tilewise", package, ignore=shutil.ignore_patterns("*.so", "native", "__pycache__"))
    for level in wanted:
        (module,) = (folder / "cmake").glob(f"_cpu_{level}.*.so")
        shutil.copy(module, package / "backends/cpu")
    return package.parent


def run(name: str, folder: Path, level: str, tags: str) -> int:
    """Run the suite in a fresh interpreter with the sanitizers' runtimes loaded first."""
    environment = {**os.environ, **OPTIONS, "PYTHONPATH": str(folder), "TILEWISE_CPU_LEVEL": level,
                   "TILEWISE_NUM_THREADS": "4", "PYTHONMALLOC": "malloc", "OPENBLAS_NUM_THREADS": "1",
                   "LD_PRELOAD": " ".join(_runtime(library) for library in RUNTIMES[name])}  # fmt: skip
    command = [sys.executable, "-c", PROGRAM, tags]
    if name == "thread":  # its shadow memory wants addresses in their old places
        command = ["setarch", platform.machine(), "-R", *command]
    return subprocess.run(command, env=environment, cwd=folder).returncode


def nanobind_dir() -> str:
    command = [sys.executable, "-m", "nanobind", "--cmake_dir"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _runtime(library: str) -> str:
    compiler = os.environ.get("CXX", "c++")
    found = subprocess.run([compiler, f"-print-file-name={library}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sanitizers", choices=list(RUNTIMES))
    parser.add_argument("--tags", default="", help="only cases with one of these tags, commas between")
    parser.add_argument("--levels", type=int, default=2, help="how many instruction-set levels to build and run")
    options = parser.parse_args()
    chosen = levels()[: options.levels]
    print(f"{options.sanitizers}: building {', '.join(chosen)}", flush=True)
    folder = build(options.sanitizers, chosen)
    codes = [run(options.sanitizers, folder, level, options.tags) for level in chosen]
    print(f"{options.sanitizers}: {'passed' if not any(codes) else f'FAILED, exit codes {codes}'}", flush=True)
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
