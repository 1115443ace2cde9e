"""A GPT over bytes in PyTorch, with attention as an argument, and a loop that trains it."""

from __future__ import annotations

from collections.abc import Callable
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


class Training:
    """A model, its optimizer and its stream of batches. Same seed, same weights and batches."""

    def __init__(
        self, sizes: GptSizes, text: bytes, attention: Attention, seed: int, batch_size: int, learning_rate: float
    ) -> None:
        import torch

        self.sizes, self.batch_size = sizes, batch_size
        self._generator = torch.Generator().manual_seed(seed)
        self.model = make_gpt(sizes, attention, self._generator)
        self._data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self._optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.1
        )

    def next_batch(self) -> torch.Tensor:
        """[batch, context + 1] of bytes."""
        import torch

        last = len(self._data) - self.sizes.context - 1
        starts = torch.randint(last, (self.batch_size,), generator=self._generator)
        return torch.stack([self._data[start : start + self.sizes.context + 1] for start in starts.tolist()])

    def step(self, windows: torch.Tensor) -> float:
        """One AdamW step; the loss before it."""
        import torch

        self._optimizer.zero_grad(set_to_none=True)
        loss = loss_of(self.model, windows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        return float(loss.item())


def loss_of(model: torch.nn.Module, windows: torch.Tensor) -> torch.Tensor:
    import torch

    logits = model(windows[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def attention_gradients(
    sizes: GptSizes, attention: Attention, weights: dict[str, Any], windows: torch.Tensor, dtype: Any
) -> list[dict[str, torch.Tensor]]:
    """At given weights, computed in `dtype`: for each layer the gradients of its q, k and v matrices, as float64.

    These are what attention's backward makes (dQ, dK and dV times the layer's input). The whole model's gradient would
    hide them: a scale wrong by 1e-4 leaves it as it is, to seven digits.
    """
    import torch

    model = make_gpt(sizes, attention, torch.Generator())
    model.load_state_dict(weights)
    model.to(dtype)
    loss_of(model, windows).backward()
    gradients = [p.grad for name, p in model.named_parameters() if name.endswith("qkv.weight")]
    return [dict(zip("qkv", g.double().chunk(3), strict=True)) for g in gradients if g is not None]


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
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    return model
