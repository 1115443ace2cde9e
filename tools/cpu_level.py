"""Print the best level that this CPU has, for builds that are meant for one machine."""

import importlib.util
from pathlib import Path

path = Path(__file__).parents[1] / "src/tilewise/backends/cpu/library.py"
spec = importlib.util.spec_from_file_location("library", path)
assert spec is not None
assert spec.loader is not None
library = importlib.util.module_from_spec(spec)
spec.loader.exec_module(library)

flags = library._cpu_flags()
x86 = (name for name, needed in library.X86_LEVELS.items() if needed <= flags)
print(next(x86, "v2") if library._is_x86() else "base")
