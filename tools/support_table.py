"""Write the support table into README.md: run where the CPU backend is built, with jaxlib's headers."""

from pathlib import Path

from tilewise.cli import support

BEGIN, END = "<!-- support table: tilewise doctor --support-table -->\n", "<!-- end -->"
readme = Path(__file__).parents[1] / "README.md"
head, begin, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
readme.write_text(head + begin + support.markdown() + END + rest.partition(END)[2], encoding="utf-8")
