"""visibility.py: integer arithmetic against a look at every pair."""

from __future__ import annotations

import itertools

import pytest

from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.visibility import Tile, key_range, position, tile, tile_map

WINDOWS = [(None, None), (None, 0), (0, 0), (2, 0), (1, 1), (None, 2), (3, None)]


def seen(i: int, j: int, q_len: int, kv_len: int, window: tuple[int | None, int | None]) -> bool:
    at = i + kv_len - q_len
    return (window[0] is None or j >= at - window[0]) and (window[1] is None or j <= at + window[1])


def test_the_two_corners() -> None:
    """The masks of 2 x 5 and 5 x 2, as users ask for them."""
    def matrix(q_len: int, kv_len: int) -> list[list[int]]:
        return [[int(j in key_range(i, q_len, kv_len, (None, 0))) for j in range(kv_len)] for i in range(q_len)]

    assert matrix(2, 5) == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert matrix(5, 2) == [[0, 0], [0, 0], [0, 0], [1, 0], [1, 1]]
    assert position(0, 1, 8) == 7


@pytest.mark.parametrize("window", WINDOWS)
def test_key_range(window: tuple[int | None, int | None]) -> None:
    for q_len, kv_len in itertools.product(range(1, 7), range(0, 7)):
        for i in range(q_len):
            want = [j for j in range(kv_len) if seen(i, j, q_len, kv_len, window)]
            assert list(key_range(i, q_len, kv_len, window)) == want


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("q_len", "kv_len"), [(7, 7), (3, 9), (9, 3), (1, 8), (5, 0)])
def test_tiles(q_len: int, kv_len: int, window: tuple[int | None, int | None]) -> None:
    spec = AttentionSpec(scale=1.0, window=window)
    for r, row in enumerate(tile_map(spec, q_len, kv_len, 2, 3)):
        for c, found in enumerate(row):
            pairs = [seen(i, j, q_len, kv_len, window) for i in range(2 * r, min(2 * r + 2, q_len))
                     for j in range(3 * c, min(3 * c + 3, kv_len))]  # fmt: skip
            want = Tile.FULL if all(pairs) else Tile.PARTIAL if any(pairs) else Tile.EMPTY
            assert found is want, (r, c)


def test_empty_tiles() -> None:
    assert tile(range(0), range(3), 3, 3, (None, None)) is Tile.EMPTY
    assert tile(range(3), range(0), 3, 3, (None, None)) is Tile.EMPTY
