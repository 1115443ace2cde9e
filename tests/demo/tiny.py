"""A Llama of random weights, small enough that a test can afford to recompute everything."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tilewise.demo.checkpoint import Checkpoint, LayerWeights, LlamaConfig, TokenizerTables
from tilewise.demo.llama import Llama, read_text

END = 0


def tiny_llama(seed: int = 0) -> Llama:
    config = LlamaConfig(
        layers=2, width=32, query_heads=4, kv_heads=2, head_dim=8, vocabulary=61, context=256, rope_base=10000.0,
        norm_epsilon=1e-5,
    )  # fmt: skip
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) * rows**-0.5).astype(np.float32)

    def norm() -> np.ndarray:
        return random.uniform(0.5, 1.5, config.width).astype(np.float32)

    layers = tuple(
        LayerWeights(norm(), matrix(32, 64), matrix(32, 32), norm(), matrix(32, 96), matrix(48, 32))
        for _ in range(config.layers)
    )
    # Rows of length one, not sqrt(width): a token's own logit then does not drown all others.
    embedding = matrix(61, 32) * np.float32(61**0.5 / 32**0.5)
    tables = TokenizerTables((), (), (), END)
    return Llama(Checkpoint("tiny", Path("tiny.gguf"), config, tables, embedding, norm(), layers))


def greedy(llama: Llama, text: list[int], new_tokens: int) -> list[int]:
    """The plainest generation there is: each token from a dense pass over the whole text."""
    answer: list[int] = []
    while len(answer) < new_tokens and END not in answer:
        answer.append(int(llama.logits(read_text(llama, [*text, *answer])[-1:]).argmax()))
    return answer
