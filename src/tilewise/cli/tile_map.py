"""The map of tiles that a call visits, as text and as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.visibility import Tile, tile_map

MARKS = {Tile.EMPTY: "·", Tile.PARTIAL: "▒", Tile.FULL: "█"}
COLOURS = {Tile.EMPTY: "#f2f2f2", Tile.PARTIAL: "#f0a35e", Tile.FULL: "#2f6690"}
WORDS = {
    Tile.EMPTY: "empty: skipped", Tile.PARTIAL: "partial: masks are applied", Tile.FULL: "full: no mask is looked at"
}  # fmt: skip


@dataclass(frozen=True)
class TileMap:
    """Classes of cells of `rows` queries x `columns` keys; a cell is `factor` tiles of the kernel a side."""

    cells: list[list[Tile]]
    rows: int
    columns: int
    factor: int

    def count(self, kind: Tile) -> int:
        return sum(row.count(kind) for row in self.cells)


def draw(spec: AttentionSpec, q_len: int, kv_len: int, tile: tuple[int, int], widest: int = 64) -> TileMap:
    """The map of one head; cells grow by whole tiles until there are at most `widest` a side."""
    rows, columns = tile
    factor = max(1, -(-max(-(-q_len // rows), -(-kv_len // columns)) // widest))
    return TileMap(
        tile_map(spec, q_len, kv_len, rows * factor, columns * factor), rows * factor, columns * factor, factor
    )


def text(found: TileMap) -> str:
    """One character a cell, keys to the right, queries down."""
    grain = f"a cell is {found.rows} queries x {found.columns} keys"
    if found.factor > 1:
        grain += f", {found.factor} x {found.factor} tiles of the kernel"
    total = sum(len(row) for row in found.cells)
    counts = "   ".join(f"{MARKS[kind]} {found.count(kind)} of {total} {WORDS[kind]}" for kind in Tile)
    return "\n".join([*("".join(MARKS[cell] for cell in row) for row in found.cells), grain, counts])


def save(found: TileMap, title: str, path: Path) -> None:
    """Write the map as PNG, SVG or PDF (by the name's ending)."""
    from tilewise.bench.plots import pyplot

    plt = pyplot()
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    kinds = list(Tile)
    figure, axes = plt.subplots(figsize=(6.5, 6.5))
    numbers: Any = [[kinds.index(cell) for cell in row] for row in found.cells]
    height, width = len(found.cells) * found.rows, len(found.cells[0]) * found.columns
    axes.imshow(numbers, cmap=ListedColormap([COLOURS[kind] for kind in kinds]), vmin=0, vmax=len(kinds) - 1,
                extent=(0, width, height, 0), interpolation="nearest", aspect="auto")  # fmt: skip
    axes.set(xlabel="key", ylabel="query", title=title)
    axes.title.set_size(9)
    handles = [Patch(facecolor=COLOURS[kind], edgecolor="0.6", label=WORDS[kind]) for kind in kinds]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.09), ncols=3, frameon=False, fontsize=8)
    figure.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(figure)
