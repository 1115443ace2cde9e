"""python -m tilewise.cli."""

from tilewise.cli import main

main()
