"""Charts of saved rows: the roofline, and how many times faster than each rival."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilewise.bench.report import number
from tilewise.bench.row import OURS, Result, Row
from tilewise.bench.works.inputs import SHORT
from tilewise.errors import Unsupported

MARKERS = {"float32": "o", "bfloat16": "s", "float16": "^"}
COLOURS = {"forward": "#1b6ca8", "backward": "#c8553d", "window": "#588157", "paged": "#7b4b94", "mixed": "#b08900"}


def pyplot() -> Any:
    """matplotlib.pyplot, drawing to files only."""
    try:
        import matplotlib
    except ImportError as error:
        raise Unsupported('Charts need matplotlib: pip install matplotlib.') from error
    matplotlib.use("Agg")
    matplotlib.rcParams.update(
        {"svg.fonttype": "none", "svg.hashsalt": "tilewise"}
    )  # small, the same from the same rows
    from matplotlib import pyplot as plt

    return plt


def draw(rows: Sequence[Row], machine: str, path: Path) -> list[Path]:
    """Write NAME-roofline.EXT and NAME-rivals.EXT for each thread count; returns the files (PNG, SVG or PDF)."""
    written = []
    for threads in sorted({row.threads for row in rows}):
        here = [row for row in rows if row.threads == threads]
        title = f"{machine}, {threads} thread{'s' if threads > 1 else ''}"
        for name, chart in (("roofline", roofline), ("rivals", rivals)):
            figure = chart(here, title)
            if figure is not None:
                target = path.with_name(f"{path.stem}-{name}-{threads}{path.suffix or '.png'}")
                undated = {"metadata": {"Date": None}} if target.suffix == ".svg" else {}
                figure.savefig(target, dpi=150, bbox_inches="tight", **undated)
                pyplot().close(figure)
                written.append(target)
    return written


def roofline(rows: Sequence[Row], title: str) -> Any | None:
    """GFLOP/s over FLOP a byte; the roofs are this run's own ceilings. None without rows that have both."""
    points = [row for row in rows if row.flops and row.bytes]
    peaks = {row.dtype: row.peak_flops / 1e9 for row in points if row.peak_flops}
    if not points or not peaks:
        return None
    # of the largest buffer, which caches hold least of
    largest = max((row for row in points if row.peak_bytes), key=lambda row: row.bytes or 0, default=None)
    read = (largest.peak_bytes or 0) / 1e9 if largest else 0
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(9, 6))
    intensity = [row.flops / row.bytes for row in points]  # type: ignore[operator]
    low, high = min(*intensity, 0.5) / 2, max(intensity) * 2
    for names, peak in _alike(peaks).items():
        corner = peak / read if read else low
        axes.plot([corner, high], [peak, peak], color="0.3", lw=1)
        axes.annotate(f"{names} multiply-adds {peak:.0f} GFLOP/s", (high, peak), ha="right", va="bottom", size=8)
    lowest = min(row.flops / row.seconds[OURS] / 1e9 for row in points) / 3  # type: ignore[operator]
    if read:
        corner = max(peaks.values()) / read
        axes.plot([low, corner], [low * read, corner * read], color="0.3", lw=1)
        start = max(low, lowest / read)
        axes.annotate(
            f"reading memory {read:.1f} GB/s", (start, start * read), (14, 4), textcoords="offset points", size=8
        )
    for row, x in zip(points, intensity, strict=True):
        y = row.flops / row.seconds[OURS] / 1e9  # type: ignore[operator]
        axes.plot(x, y, MARKERS.get(row.dtype, "d"), color=COLOURS.get(row.work, "0.5"), ms=6, alpha=0.8)
    for work in dict.fromkeys(row.work for row in points):
        axes.plot([], [], "-", lw=5, color=COLOURS.get(work, "0.5"), label=work)
    for dtype in dict.fromkeys(row.dtype for row in points):
        axes.plot([], [], MARKERS.get(dtype, "d"), color="0.5", label=SHORT[dtype])
    axes.set(xscale="log", yscale="log", xlabel="FLOP a byte that must move", ylabel="GFLOP/s", title=title)
    axes.set_ylim(lowest, max(peaks.values()) * 1.6)
    for axis in (axes.yaxis, axes.xaxis):
        axis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(lambda y, _: f"{y:g}" if f"{y:g}"[0] in "25" else "")
    axes.legend(loc="lower right", frameon=False, ncols=2)
    axes.grid(which="both", alpha=0.15)
    return figure


def rivals(rows: Sequence[Row], title: str) -> Any | None:
    """Bars: how many times faster than each rival; ticks at bar and aim. None without rivals."""
    found = [(row, result) for row in rows for result in row.results if _is_ratio(result)]
    if not found:
        return None
    plt = pyplot()
    from matplotlib.ticker import LogLocator, NullLocator

    figure, axes = plt.subplots(figsize=(9, 1 + 0.24 * len(found)))
    for y, (row, result) in enumerate(found):
        axes.barh(y, result.value - 1, left=1, color=COLOURS.get(row.work, "0.5"), height=0.7)
        axes.text(max(1, result.value), y, f" {number(result.value)}", va="center", size=7)
        if result.goal is not None and result.goal.applies:
            for value, style in ((result.goal.bar, "-"), (result.goal.aim, ":")):
                if value is not None:
                    axes.plot([value, value], [y - 0.45, y + 0.45], color="k", lw=1.2, ls=style)
    labels = [f"{row.work} {SHORT[row.dtype]} {row.case}  /  {result.what[2:]}" for row, result in found]
    axes.set_yticks(range(len(found)), labels, size=7)
    axes.invert_yaxis()
    axes.axvline(1, color="0.3", lw=1)
    axes.set(
        xscale="log", xlabel="times faster than the rival, on a logarithmic scale (line: bar, dots: aim)", title=title
    )
    axes.xaxis.set_major_locator(LogLocator(2))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(y=0.01)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure


def _alike(peaks: dict[str, float]) -> dict[str, float]:
    """Roofs that differ by less than a tenth, as one."""
    roofs: list[tuple[list[str], float]] = []
    for dtype, peak in peaks.items():
        near = next((names for names, other in roofs if abs(peak - other) < 0.1 * other), None)
        if near is None:
            roofs.append(([SHORT[dtype]], peak))
        else:
            near.append(SHORT[dtype])
    return {", ".join(names): peak for names, peak in roofs}


def _is_ratio(result: Result) -> bool:
    return result.what.startswith("x ") and not (result.goal is not None and result.goal.lower) \
        and not result.what.endswith("time")  # fmt: skip
