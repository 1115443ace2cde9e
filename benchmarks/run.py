"""Measure tilewise against its rivals: `tilewise bench`, from a source tree. Options: --help.

python benchmarks/run.py --work forward --dtype float32 --threads 1,2 --out benchmarks/results/NAME.json
"""

import sys

from tilewise.cli import main

main(["bench", *sys.argv[1:]])
