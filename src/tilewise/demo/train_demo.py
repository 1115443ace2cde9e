"""`tilewise demo --train`: a small GPT learns Python's own manual, with tilewise and with PyTorch's attention.

All models start from the same weights and read the same batches. Training amplifies rounding: two right
implementations drift apart, by amounts that differ a hundredfold from seed to seed, so the distance of free-running
curves proves little. It is shown beside the distance of two of PyTorch's own attentions. What is *judged* is free of
that: on the very weights that the tilewise run has reached, the gradients of every layer's q, k and v matrices, in
float32 by each attention, against float64. There the rule of the house holds for each of q, k and v: at most twice the
error of PyTorch's, in the median over layers and steps (single ones scatter, where a gradient nearly cancels).
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tilewise.demo.checkpoint import DemoUnavailable
from tilewise.demo.small_gpt import Attention, GptSizes, Training, attention_gradients, training_text
from tilewise.errors import InvalidInput

TILEWISE, TORCH, PLAIN = "tilewise", "torch sdpa", "torch softmax(qk)v"
SPARKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Probe:
    """Relative error |g - g64| / |g64| of one layer's q, k or v gradient at one step, by each attention."""

    step: int
    kind: str  # "q", "k" or "v"
    tilewise: float
    torch: float

    @property
    def ratio(self) -> float:
        """1: as exact as PyTorch. An error below one ulp counts as one ulp."""
        return self.tilewise / max(self.torch, 2**-23)


@dataclass(frozen=True)
class TrainResult:
    """Loss curves by name, and the gradient probes along the tilewise run."""

    losses: dict[str, list[float]]
    seconds: dict[str, float]
    probes: tuple[Probe, ...]

    def apart(self, one: str, other: str) -> float:
        """Largest difference of two curves, step by step."""
        return max(abs(a - b) for a, b in zip(self.losses[one], self.losses[other], strict=True))

    def error_ratio(self, kind: str) -> float:
        """Median over layers and steps of tilewise's gradient error relative to PyTorch's."""
        return statistics.median(probe.ratio for probe in self.probes if probe.kind == kind)

    @property
    def ok(self) -> bool:
        return all(self.error_ratio(kind) <= 2 for kind in "qkv")

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
    probes: int = 8,
    plot: Path | None = None,
    console: Console | None = None,
) -> TrainResult:
    """Train the same small GPT with each attention, in step, and compare.

    Args:
        steps: AdamW steps. seed: weights and batches. probes: how often gradients are measured against float64.
        plot: write the curves there (PNG, SVG or PDF; matplotlib).

    Raises:
        DemoUnavailable: PyTorch (or matplotlib, for a plot) is missing.
        InvalidInput: steps, batch_size or probes below 1.
    """
    if min(steps, batch_size, probes) < 1:
        raise InvalidInput(f"{steps=}, {batch_size=} and {probes=} must be at least 1")
    attentions = _attentions()
    console, sizes, text = console or Console(), sizes or GptSizes(), training_text()
    runs = {
        name: Training(sizes, text, attention, seed, batch_size, learning_rate)
        for name, attention in attentions.items()
    }
    losses: dict[str, list[float]] = {name: [] for name in runs}
    seconds = dict.fromkeys(runs, 0.0)
    measured: list[Probe] = []
    probed = {i * (steps - 1) // max(probes - 1, 1) for i in range(probes)}
    with Live(console=console, auto_refresh=False) as live:
        for step in range(steps):
            for name, run in runs.items():
                windows = run.next_batch()
                if name == TILEWISE and step in probed:
                    measured.extend(_probe(step, run, windows, attentions))
                began = time.perf_counter()
                losses[name].append(run.step(windows))
                seconds[name] += time.perf_counter() - began
            live.update(_view(losses, steps), refresh=True)
        console.print()
    result = TrainResult(losses, seconds, tuple(measured))
    console.print(_summary(result))
    if plot is not None:
        _plot(result, plot)
        console.print(Text(f"curves written to {plot}"))
    return result


def _attentions() -> dict[str, Attention]:
    """Three right ways, q, k, v [batch, tokens, heads, head_dim]."""
    try:
        import torch
    except ImportError:
        raise DemoUnavailable("the training demo needs PyTorch: pip install torch") from None
    import tilewise as tw

    def by_tilewise(q: Any, k: Any, v: Any) -> Any:
        return tw.attention(q, k, v, causal=True)

    def by_torch(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    def plainly(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(1, 2)

    return {TILEWISE: by_tilewise, TORCH: by_torch, PLAIN: plainly}


def _probe(step: int, run: Training, windows: Any, attentions: dict[str, Attention]) -> list[Probe]:
    import torch

    def gradients(name: str, dtype: Any) -> list[dict[str, Any]]:
        return attention_gradients(run.sizes, attentions[name], run.model.state_dict(), windows, dtype)

    exact = gradients(PLAIN, torch.float64)
    ours, theirs = gradients(TILEWISE, torch.float32), gradients(TORCH, torch.float32)
    return [
        Probe(step, kind, *(float((got[kind] - truth[kind]).norm() / truth[kind].norm()) for got in (our, their)))
        for truth, our, their in zip(exact, ours, theirs, strict=True)
        for kind in "qkv"
    ]


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
    table = Table(title="one model, one text, three attentions", title_justify="left", caption_justify="left")
    for column in ("attention", "first loss", "last loss", "seconds", "furthest from torch sdpa"):
        table.add_column(column, justify="left" if column == "attention" else "right")
    for name, curve in result.losses.items():
        apart = "-" if name == TORCH else f"{result.apart(name, TORCH):.1e}"
        table.add_row(name, f"{curve[0]:.4f}", f"{curve[-1]:.4f}", f"{result.seconds[name]:.1f}", apart)
    ratios = ", ".join(f"d{kind.upper()} {result.error_ratio(kind):.2f}" for kind in "qkv")
    table.caption = (
        f"{'[bold green]✓' if result.ok else '[bold red]✗'}[/] gradients on the same weights: error against float64, "
        f"relative to torch's, median of {len(result.probes) // 3}: {ratios} (at most 2)"
    )
    return table


def _plot(result: TrainResult, path: Path) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise DemoUnavailable("a plot needs matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    curves, apart = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    for name, style in ((TORCH, {"linewidth": 4, "alpha": 0.35}), (TILEWISE, {"linewidth": 1.2})):
        curves.plot(result.losses[name], label=name, **style)
    for name in (TILEWISE, PLAIN):
        distance = [abs(a - b) for a, b in zip(result.losses[name], result.losses[TORCH], strict=True)]
        apart.semilogy([max(d, 1e-9) for d in distance], label=name, linewidth=1)
    apart.legend()
    curves.set_ylabel("loss (nats a byte)")
    curves.legend()
    apart.set_ylabel("distance from torch sdpa")
    apart.set_xlabel("step")
    figure.savefig(path)
