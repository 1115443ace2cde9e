"""tilewise demo: a real language model served on tilewise, or a small one trained on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewise.cli.choices import one_of

KV_DTYPES = ("f32", "bf16", "fp8", "int8")


def demo(
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt of your own; repeat it for more.")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest answer, in tokens.  [default: 32]")
    ] = None,
    kv_dtype: Annotated[
        str | None, typer.Option(help=f"What the pages hold: {', '.join(KV_DTYPES)}.  [default: f32]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="When prompts arrive; with --train, weights and batches.")] = 0,
    train: Annotated[bool, typer.Option("--train", help="Train a small GPT in PyTorch instead.")] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="With --train: steps.  [default: 120]")] = None,
    plot: Annotated[Path | None, typer.Option(help="With --train: draw the loss curves to a file.")] = None,
) -> None:
    """Serve a real language model, and check every token.

    SmolLM2-135M with continuous batching over a paged cache, against a dense run without batches; or, with --train,
    a small GPT's loss curve against PyTorch's own attention. Exits with 1 if they disagree.
    """
    from tilewise.cli import files
    from tilewise.demo.checkpoint import DemoUnavailable
    from tilewise.errors import Unsupported

    files.judge_picture("--plot", plot)
    _only(train, prompt=bool(prompt), max_new_tokens=max_new_tokens is not None, kv_dtype=kv_dtype is not None,
          steps=steps is not None, plot=plot is not None)  # fmt: skip
    kv_dtype, max_new_tokens, steps = kv_dtype or "f32", max_new_tokens or 32, steps or 120
    one_of("--kv-dtype", kv_dtype, KV_DTYPES)
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


def _only(train: bool, **given: bool) -> None:
    """Refuse options of the other demo."""
    from tilewise.errors import InvalidInput

    for name, is_given in given.items():
        if is_given and (name in ("steps", "plot")) != train:
            raise InvalidInput(f"--{name.replace('_', '-')} goes {'without' if train else 'with'} --train.")
