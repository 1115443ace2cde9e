"""Rules that keep the house readable: file length, who imports whom, docstrings, words that do not belong here."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tilewise as tw
from tests.conftest import require, run_python

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "tilewise"
LONGEST = 400
WIDEST = 120
CODE = (".py", ".cpp", ".hpp")
FRAMEWORKS = {"torch", "jax", "jaxlib", "mlx"}
OF_ONE_FRAMEWORK = {"backends/tpu": "jax"}  # folders whose kernels are written in it
STANDARD = set(sys.stdlib_module_names) | {"__future__"}

# Folder (or file) of the package -> what of tilewise it may import. A name allows the modules under it.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "errors.py": (),
    "spec": ("spec", "errors"),
    "check_values.py": ("errors",),
    "choose": ("choose", "spec", "errors", "tuned"),
    "frameworks": ("frameworks", "choose", "spec", "errors", "check_values", "backends"),
    "backends": ("backends", "choose", "frameworks", "spec", "errors", "check_values"),
    "attention.py": ("choose", "frameworks", "spec", "errors", "attention"),
    "packed.py": ("attention", "choose", "frameworks", "spec", "errors"),
    "merge.py": ("frameworks", "errors", "choose", "spec"),
    "paged_cache.py": ("errors", "paged_batch"),
    "paged_batch.py": ("errors",),
    "threads.py": ("backends.cpu", "errors"),
}
# Machine paths, credentials, and leftovers. Put together here so that this file does not hold them.
WORDS = ("/wor" + "k/", "/tm" + "p/tw", "TO" + "DO", "FIX" + "ME", "XX" + "X", "api" + "_key")
BANNED = [re.compile(word) for word in WORDS]


def files(*folders: str, suffixes: tuple[str, ...] = CODE) -> list[Path]:
    tracked = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    found = [ROOT / name for name in tracked] or [path for folder in folders for path in (ROOT / folder).rglob("*")]
    return [path for path in found if path.suffix in suffixes and path.exists()]


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            base = node.module
            children = [f"{base}.{alias.name}" for alias in node.names]
            is_package = (ROOT / "src" / base.replace(".", "/")).is_dir()
            yield from (children if base.startswith("tilewise") and is_package else [base])


def test_files_are_short() -> None:
    long = {str(path.relative_to(ROOT)): len(path.read_text().splitlines())
            for path in files("src", "tests", "benchmarks", "tools")}  # fmt: skip
    assert {name: lines for name, lines in long.items() if lines > LONGEST} == {}


def test_lines_are_short() -> None:
    wide = [f"{path.relative_to(ROOT)}:{number}: {len(line)}" for path in files("src", "tests", "benchmarks", "tools")
            for number, line in enumerate(path.read_text().splitlines(), 1) if len(line) > WIDEST]  # fmt: skip
    assert wide == []


def test_nothing_leaks_into_files() -> None:
    text = files("src", "tests", "docs", "benchmarks", "tools", suffixes=(*CODE, ".md", ".txt", ".toml"))
    found = [f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}" for path in text
             for number, line in enumerate(path.read_text().splitlines(), 1)
             if any(word.search(line) for word in BANNED)]  # fmt: skip
    assert found == []


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_imports_point_down(part: str) -> None:
    at = PACKAGE / part
    wrong = []
    for path in [at] if at.is_file() else at.rglob("*.py"):
        for name in imports(path):
            inside = name.removeprefix("tilewise.")
            if name.startswith("tilewise.") and not any(
                inside == allowed or inside.startswith(f"{allowed}.") for allowed in MAY_IMPORT[part]
            ):
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert wrong == []


def test_spec_needs_the_standard_library_only() -> None:
    for path in (PACKAGE / "spec").glob("*.py"):
        roots = {name.partition(".")[0] for name in imports(path)}
        assert roots <= STANDARD | {"tilewise"}, path.name


def test_no_backend_imports_another() -> None:
    folders = [path for path in (PACKAGE / "backends").iterdir() if path.is_dir() and path.name != "__pycache__"]
    for folder in folders:
        for path in folder.rglob("*.py"):
            others = [name for name in imports(path) if name.startswith("tilewise.backends.")
                      and name.split(".")[2] in {other.name for other in folders} - {folder.name}]  # fmt: skip
            assert not others, f"{path.relative_to(PACKAGE)} imports {others}"


def test_frameworks_are_imported_in_their_own_files_only() -> None:
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {alias.name.partition(".")[0] for node in top if isinstance(node, ast.Import) for alias in node.names}
        names |= {(node.module or "").partition(".")[0] for node in top if isinstance(node, ast.ImportFrom)}
        where = str(path.relative_to(PACKAGE))
        named = {framework for framework in FRAMEWORKS if framework.removesuffix("lib") in where}
        named |= {framework for folder, framework in OF_ONE_FRAMEWORK.items() if where.startswith(folder)}
        named |= {"jaxlib"} if "jax" in named else set()
        allowed = named or (FRAMEWORKS if path.is_relative_to(PACKAGE / "demo") else set())
        assert names & FRAMEWORKS <= allowed, where


def test_kernels_include_only_their_siblings() -> None:
    native = PACKAGE / "backends" / "cpu" / "native"
    for path in native.glob("*.?pp"):
        for included in re.findall(r'#include "([^"]+)"', path.read_text()):
            outside = included.startswith(("xla/", "nanobind/"))
            assert outside or (native / included).exists(), f"{path.name} includes {included}"


def test_import_brings_no_framework() -> None:
    code = (
        "import sys, tilewise\n"
        f"print([name for name in {sorted(FRAMEWORKS)} if name in sys.modules])\n"
        "import numpy as np\n"
        "x = np.ones((1, 2, 2, 4), np.float32)\n"
        "tilewise.attention(x, x, x, backend='composed'); tilewise.explain(x, x, x); tilewise.backends()\n"
        f"print([name for name in {sorted(FRAMEWORKS)} if name in sys.modules])\n"
    )
    assert run_python(code).split() == ["[]", "[]"]


def test_a_framework_that_is_asked_for_brings_no_other() -> None:
    require("torch")
    code = (
        "import sys, torch, tilewise\n"
        "x = torch.ones(1, 2, 2, 4)\n"
        "tilewise.attention(x, x, x, backend='composed')\n"
        "print([name for name in ('jax', 'mlx') if name in sys.modules])\n"
    )
    assert run_python(code).strip() == "[]"


PUBLIC = sorted(name for name, value in vars(tw).items() if not name.startswith("_") and callable(value))


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_have_docstrings(name: str) -> None:
    documented = getattr(tw, name)
    text = inspect.getdoc(documented) or ""
    assert text, f"{name} has no docstring"
    if inspect.isfunction(documented):
        hints = inspect.signature(documented)
        assert all(parameter.annotation is not inspect.Parameter.empty for parameter in hints.parameters.values())


FUNCTIONS = [name for name in PUBLIC if inspect.isfunction(getattr(tw, name))]
RAISES_NOTHING = {"backends"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_say_their_shapes_results_and_errors(name: str) -> None:
    text, hints = inspect.getdoc(getattr(tw, name)) or "", inspect.signature(getattr(tw, name))
    returns = str(hints.return_annotation)
    words = ["Args:"] if hints.parameters else []
    words += [] if returns == "None" or returns.startswith("Iterator") else ["Returns:"]
    words += [] if name in RAISES_NOTHING else ["Raises:"]
    words += ["InvalidInput", "["] if "Array" in str(hints) else []
    for word in words:
        assert word in text, f"the docstring of {name} lacks {word}"


def test_modules_say_what_they_are() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), f"{path.relative_to(PACKAGE)} has no docstring"
