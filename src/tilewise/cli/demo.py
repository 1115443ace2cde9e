"""tilewise demo: a real language model served on tilewise, or a small one trained on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

KV_DTYPES = ("f32", "bf16", "fp8", "int8")


def demo(
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt of your own; repeat it for more.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 32,
    kv_dtype: Annotated[str, typer.Option(help=f"What the pages hold: {', '.join(KV_DTYPES)}.")] = "f32",
    seed: Annotated[int, typer.Option(min=0, help="When prompts arrive; with --train, weights and batches.")] = 0,
    train: Annotated[bool, typer.Option("--train", help="Train a small GPT in PyTorch instead.")] = False,
    steps: Annotated[int, typer.Option(min=1, help="With --train: steps.")] = 120,
    plot: Annotated[Path | None, typer.Option(help="With --train: draw the loss curves to a file.")] = None,
) -> None:
    """Serve a real language model, and check every token.

    SmolLM2-135M with continuous batching over a paged cache, against a dense run without batches; or, with --train,
    a small GPT's loss curve against PyTorch's own attention. Exits with 1 if they disagree.
    """
    from tilewise.cli import pictures
    from tilewise.demo.checkpoint import DemoUnavailable
    from tilewise.errors import InvalidInput, Unsupported

    pictures.judge("--plot", plot)
    if kv_dtype not in KV_DTYPES:
        raise InvalidInput(f"--kv-dtype must be one of {', '.join(KV_DTYPES)}, but is {kv_dtype!r}.")
    try:
        if train:
            from tilewise.demo.train_demo import run_train_demo

            status = run_train_demo(steps, seed, plot=plot).exit_status
        else:
            from tilewise.demo.serving_demo import run_serving_demo

            status = run_serving_demo(prompt, max_new_tokens, kv_dtype, seed).exit_status
    except DemoUnavailable as error:
        raise Unsupported(f"{error}") from error
    raise typer.Exit(status)
