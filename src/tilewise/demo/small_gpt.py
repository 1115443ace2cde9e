"""A GPT over bytes in PyTorch, with attention as an argument, and a loop that trains it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# q, k, v [batch, tokens, heads, head_dim] -> [batch, tokens, heads, head_dim], causal
Attention = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor"], "torch.Tensor"]


@dataclass(frozen=True)
class GptSizes:
    layers: int = 3
    width: int = 128
    heads: int = 4
    context: int = 128


def training_text() -> bytes:
    """Half a megabyte of English that every Python carries: the language reference behind `help()`."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics)).encode()


def make_training(
    sizes: GptSizes, text: bytes, attention: Attention, dtype: Any, steps: int, seed: int, batch_size: int,
    learning_rate: float,
) -> Iterator[tuple[float, float]]:  # fmt: skip
    """Train from a seed; yields (loss, seconds) of each step. Same seed, same weights and batches in any dtype."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    model = make_gpt(sizes, attention, generator).to(dtype)
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
    for _ in range(steps):
        began = time.perf_counter()
        starts = torch.randint(len(data) - sizes.context - 1, (batch_size,), generator=generator)
        windows = torch.stack([data[start : start + sizes.context + 1] for start in starts.tolist()])
        logits = model(windows[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield loss.item(), time.perf_counter() - began


def make_gpt(sizes: GptSizes, attention: Attention, generator: torch.Generator) -> torch.nn.Module:
    """[batch, tokens] of bytes -> logits [batch, tokens, 256]. Pre-norm blocks, learned positions."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention_norm = nn.LayerNorm(sizes.width)
            self.qkv = nn.Linear(sizes.width, 3 * sizes.width)
            self.output = nn.Linear(sizes.width, sizes.width)
            self.mlp = nn.Sequential(
                nn.LayerNorm(sizes.width),
                nn.Linear(sizes.width, 4 * sizes.width),
                nn.GELU(),
                nn.Linear(4 * sizes.width, sizes.width),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (3, sizes.heads, -1)).unbind(2)
            x = x + self.output(attention(q, k, v).flatten(2))
            return x + self.mlp(x)

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bytes = nn.Embedding(256, sizes.width)
            self.positions = nn.Embedding(sizes.context, sizes.width)
            self.blocks = nn.Sequential(*(Block() for _ in range(sizes.layers)))
            self.norm = nn.LayerNorm(sizes.width)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.bytes(tokens) + self.positions.weight[: tokens.shape[1]]
            return self.norm(self.blocks(x)) @ self.bytes.weight.T

    model = Gpt()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0.0, 0.02, generator=generator)
            elif parameter.ndim == 1:
                pass  # norms begin at one and zero
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    return model
