"""The benchmarks: works that are measured, rivals that they are measured against, and what each must reach.

`tilewise bench` and benchmarks/run.py run them; docs/performance.md says how the figures are made.
"""

WORKS = ("forward", "backward", "features", "window", "paged", "mixed", "small", "jax", "memory", "threads")
