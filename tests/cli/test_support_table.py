"""The support table of the README is what the backends say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewise.backends.cpu import library
from tilewise.cli import support

README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- support table: tilewise doctor --support-table -->\n", "<!-- end -->"


@pytest.mark.skipif(library.missing() is not None, reason="the CPU backend is not built")
def test_readme_is_up_to_date() -> None:
    text = README.read_text(encoding="utf-8")
    written = text.partition(BEGIN)[2].partition(END)[0]
    assert written == support.markdown(), "run: python tools/support_table.py"


def test_composed_takes_everything() -> None:
    for name, call in support.calls().items():
        assert support.answer("composed", "numpy", call) is None, name


def test_every_known_feature_is_a_row() -> None:
    """A feature that a backend learns must be asked about."""
    from tilewise.backends import composed

    asked = set().union(*(spec.features() for spec, _ in support.calls().values()))
    assert asked == set(composed.KNOWN)
