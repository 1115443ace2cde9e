"""Which keys a query sees, as arithmetic on integers: the same nouns as the kernels' `visibility` files."""

from __future__ import annotations

from enum import Enum

from tilewise.spec.attention_spec import AttentionSpec, Window


class Tile(Enum):
    """How much of a tile of queries x keys is visible, as far as window and lengths decide."""

    EMPTY = "empty"
    PARTIAL = "partial"
    FULL = "full"


def position(query: int, q_len: int, kv_len: int) -> int:
    """Where query i stands among the keys: the last query stands at the last key."""
    return query + kv_len - q_len


def key_range(query: int, q_len: int, kv_len: int, window: Window) -> range:
    """Keys that window and length let this query see."""
    at = position(query, q_len, kv_len)
    left, right = window
    first = 0 if left is None else max(0, at - left)
    last = kv_len if right is None else min(kv_len, at + right + 1)
    return range(first, max(first, last))


def tile(queries: range, keys: range, q_len: int, kv_len: int, window: Window) -> Tile:
    """Class of the tile queries x keys; rows past q_len and keys past kv_len are invisible."""
    rows = range(queries.start, min(queries.stop, q_len))
    if not rows or not keys:
        return Tile.EMPTY
    # From row to row both ends move right by at most one, so the first and the last row decide.
    first, last = (key_range(row, q_len, kv_len, window) for row in (rows[0], rows[-1]))
    if max(keys.start, first.start) >= min(keys.stop, last.stop):
        return Tile.EMPTY
    full = len(rows) == len(queries) and last.start <= keys.start and keys.stop <= first.stop
    return Tile.FULL if full else Tile.PARTIAL


def tile_map(spec: AttentionSpec, q_len: int, kv_len: int, rows: int, columns: int) -> list[list[Tile]]:
    """Classes of all tiles of `rows` queries x `columns` keys. Masks, segments and bias are not looked at."""
    return [
        [
            tile(range(t, min(t + rows, q_len)), range(s, min(s + columns, kv_len)), q_len, kv_len, spec.window)
            for s in range(0, kv_len, columns)
        ]
        for t in range(0, q_len, rows)
    ]
