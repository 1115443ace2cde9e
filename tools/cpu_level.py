"""Print the best instruction-set level of this CPU, for a build that is meant for one machine.

--all: all that it can run, best first, with semicolons between, as CMake lists them.
"""

import importlib.util
import sys
from pathlib import Path

path = Path(__file__).parents[1] / "src/tilewise/backends/cpu/library.py"
spec = importlib.util.spec_from_file_location("library", path)
assert spec is not None
assert spec.loader is not None
library = importlib.util.module_from_spec(spec)
spec.loader.exec_module(library)

flags = library._cpu_flags()
x86 = [name for name, needed in library.X86_LEVELS.items() if needed <= flags] or ["v2"]
levels = x86 if library._is_x86() else ["base"]
print(";".join(levels) if "--all" in sys.argv else levels[0])
