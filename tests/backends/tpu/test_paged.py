"""The paged kernel in TPU interpret mode: NaN in memory that nobody wrote, DMA as late as it may be and at once."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backends.tpu import interpret
from tests.conftest import require
from tilewise.testing.case import PagedCase
from tilewise.testing.cases import BY_NAME

QUICK = (
    "paged/mixed", "paged/decode, pair", "paged/spare rows", "paged/no keys", "paged/everything", "paged/page of 3",
    "paged/window, long", "paged/sinks without keys", "paged/bfloat16, mixed",
    "paged/float8_e4m3fn, scale head, decode", "paged/nan query",
)  # fmt: skip
SLOW = [case for case in interpret.paged_cases() if case.name not in QUICK]


@pytest.fixture(autouse=True)
def _jax() -> None:
    require("jax")


def check(case: PagedCase, mode: str, **options: object) -> None:
    assert (text := interpret.wrong(case, interpret.run(case, mode, **options))) is None, text


@pytest.mark.parametrize("name", QUICK)
def test_quick(name: str) -> None:
    check(BY_NAME[name], "on_wait", clipped=False)


def test_scores_run_ahead() -> None:
    check(interpret.PIPELINED, "on_wait", clipped=False)


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW, ids=lambda case: case.name)
def test_table(case: PagedCase) -> None:
    check(case, "on_wait", clipped=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_eager(name: str) -> None:
    check(BY_NAME[name], "eager", clipped=False)


@pytest.mark.parametrize(
    "name",
    ["paged/decode", *(pytest.param(name, marks=pytest.mark.slow) for name in ("paged/mixed", "paged/window, mixed"))],
)
def test_no_races(name: str) -> None:
    check(BY_NAME[name], "races", clipped=False)
    assert not interpret.races_found()


@pytest.mark.slow
@pytest.mark.parametrize(
    "tiles", [(8, 8, 1, 4), (16, 1, 3, 2), (4, 2, 2, 4), (64, 32, 4, 1)], ids=lambda sizes: "x".join(map(str, sizes))
)
def test_tiles_change_no_meaning(tiles: tuple[int, int, int, int]) -> None:
    from tilewise.backends.tpu.tiles import PagedTiles

    check(BY_NAME["paged/everything"], "on_wait", tiles=PagedTiles(*tiles), clipped=False)


def test_ids_that_name_no_page_are_not_read() -> None:
    """With a wrong id among a sequence's own, another page is read: nothing out of bounds, the rest stays right."""
    case = BY_NAME["paged/decode"]
    assert isinstance(case, PagedCase)
    got = interpret.run(case, "on_wait", clipped=True)
    assert np.isfinite(got["out"]).all()
