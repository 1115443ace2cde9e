"""Print the package's requirements with those of the named extras, one a line: to install all but the package."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
extras = [line for extra in sys.argv[1:] for line in project["optional-dependencies"][extra]]
print("\n".join([*project["dependencies"], *extras]))
