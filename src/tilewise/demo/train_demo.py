"""`tilewise demo --train`: a small GPT learns Python's own manual, once with tilewise and once with PyTorch's attention.

Both models start from the same weights and read the same batches. Rounding differs, and training amplifies it, so
"the curves agree" needs a yardstick: a third model, in float64, is the truth, and PyTorch's own float32 distance from it
says how far apart two right implementations may drift.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tilewise.demo.checkpoint import DemoUnavailable
from tilewise.demo.small_gpt import GptSizes, make_training, training_text

TILEWISE, TORCH, TRUTH = "tilewise", "torch sdpa", "torch sdpa, float64"
# Two float32 runs drift like two random walks of one size; their largest excursions differ by less than this.
ALLOWED_DRIFT = 4.0
SPARKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class TrainResult:
    """Loss curves by name, and how far the float32 ones strayed from float64."""

    losses: dict[str, list[float]]
    seconds: dict[str, float]

    def drift(self, name: str) -> float:
        """Largest distance from the float64 curve, over all steps."""
        return max(abs(a - b) for a, b in zip(self.losses[name], self.losses[TRUTH], strict=True))

    @property
    def largest_difference(self) -> float:
        """Between tilewise and PyTorch, step by step."""
        return max(abs(a - b) for a, b in zip(self.losses[TILEWISE], self.losses[TORCH], strict=True))

    @property
    def ok(self) -> bool:
        rounding = 2**-23 * max(self.losses[TRUTH])  # one ulp of the loss itself
        return self.drift(TILEWISE) <= ALLOWED_DRIFT * self.drift(TORCH) + rounding

    @property
    def exit_status(self) -> int:
        return 0 if self.ok else 1


def run_train_demo(
    steps: int = 120,
    seed: int = 0,
    *,
    sizes: GptSizes | None = None,
    batch_size: int = 8,
    learning_rate: float = 1e-3,
    plot: Path | None = None,
    console: Console | None = None,
) -> TrainResult:
    """Train the same small GPT three times, in step, and compare the loss curves.

    Args:
        steps: AdamW steps. seed: weights and batches. plot: write the curves there (PNG, SVG or PDF; matplotlib).

    Raises:
        DemoUnavailable: PyTorch (or matplotlib, for a plot) is missing.
        ValueError: steps or batch_size below 1.
    """
    if steps < 1 or batch_size < 1:
        raise ValueError(f"steps and batch_size must be at least 1, not {steps} and {batch_size}")
    console = console or Console()
    sizes = sizes or GptSizes()
    runs = _start(sizes, steps, seed, batch_size, learning_rate)
    losses: dict[str, list[float]] = {name: [] for name in runs}
    seconds = dict.fromkeys(runs, 0.0)
    with Live(console=console, auto_refresh=False) as live:
        for _ in range(steps):
            for name, run in runs.items():
                loss, elapsed = next(run)
                losses[name].append(loss)
                seconds[name] += elapsed
            live.update(_view(losses, steps), refresh=True)
    result = TrainResult(losses, seconds)
    console.print(_summary(result))
    if plot is not None:
        _plot(result, plot)
        console.print(Text(f"curves written to {plot}"))
    return result


def _start(
    sizes: GptSizes, steps: int, seed: int, batch_size: int, learning_rate: float
) -> dict[str, Iterator[tuple[float, float]]]:
    try:
        import torch
    except ImportError:
        raise DemoUnavailable("the training demo needs PyTorch: pip install 'tilewise[torch]'") from None
    import tilewise as tw

    def by_tilewise(q: Any, k: Any, v: Any) -> Any:
        return tw.attention(q, k, v, causal=True)

    def by_torch(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    kinds: dict[str, tuple[Callable[..., Any], Any]] = {
        TILEWISE: (by_tilewise, torch.float32),
        TORCH: (by_torch, torch.float32),
        TRUTH: (by_torch, torch.float64),
    }
    text = training_text()
    return {
        name: make_training(sizes, text, attention, dtype, steps, seed, batch_size, learning_rate)
        for name, (attention, dtype) in kinds.items()
    }


def _view(losses: dict[str, list[float]], steps: int) -> Panel:
    top = max(max(curve) for curve in losses.values())
    low = min(min(curve) for curve in losses.values())
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, curve in losses.items():
        table.add_row(Text(name, style="cyan"), f"{curve[-1]:.6f}", Text(_spark(curve, low, top), style="green"))
    done = len(losses[TILEWISE])
    apart = abs(losses[TILEWISE][-1] - losses[TORCH][-1])
    title = f"[bold]tilewise[/bold] trains a small GPT, step {done}/{steps}, losses {apart:.1e} apart"
    return Panel(table, title=title, title_align="left", border_style="cyan", expand=False)


def _spark(curve: list[float], low: float, top: float, width: int = 48) -> str:
    picked = [curve[i * len(curve) // width] for i in range(width)] if len(curve) > width else curve
    scale = (len(SPARKS) - 1) / max(top - low, 1e-9)
    return "".join(SPARKS[round((loss - low) * scale)] for loss in picked)


def _summary(result: TrainResult) -> Table:
    table = Table(title="one model, one text, three attentions", title_justify="left")
    for column in ("attention", "first loss", "last loss", "largest distance from float64", "seconds"):
        table.add_column(column, justify="left" if column == "attention" else "right")
    for name, curve in result.losses.items():
        drift = "-" if name == TRUTH else f"{result.drift(name):.2e}"
        table.add_row(name, f"{curve[0]:.4f}", f"{curve[-1]:.4f}", drift, f"{result.seconds[name]:.1f}")
    mark = "[bold green]✓[/bold green]" if result.ok else "[bold red]✗[/bold red]"
    table.caption = f"{mark} tilewise and torch are at most {result.largest_difference:.2e} apart, step by step"
    table.caption_justify = "left"
    return table


def _plot(result: TrainResult, path: Path) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise DemoUnavailable("a plot needs matplotlib: pip install 'tilewise[bench]'") from None
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    curves, apart = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    for name, style in ((TORCH, {"linewidth": 4, "alpha": 0.35}), (TILEWISE, {"linewidth": 1.2})):
        curves.plot(result.losses[name], label=name, **style)
        distance = [abs(a - b) for a, b in zip(result.losses[name], result.losses[TRUTH], strict=True)]
        apart.semilogy([max(d, 1e-12) for d in distance], label=name, linewidth=1)
    curves.set_ylabel("loss (nats a byte)")
    curves.legend()
    apart.set_ylabel("distance from float64")
    apart.set_xlabel("step")
    figure.savefig(path)
