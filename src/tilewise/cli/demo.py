"""tilewise demo: a real language model served on tilewise, or a small one trained on it."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt of your own; repeat it for more.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 32,
    kv_dtype: Annotated[str, typer.Option(help="What the pages hold: f32, bf16, fp8 or int8.")] = "f32",
    seed: Annotated[int, typer.Option(help="When the prompts arrive; with --train, weights and batches.")] = 0,
    train: Annotated[bool, typer.Option(help="Train a small GPT in PyTorch instead.")] = False,
) -> None:
    """Serve SmolLM2-135M with continuous batching over a paged cache, and check every token."""
    raise NotImplementedError
