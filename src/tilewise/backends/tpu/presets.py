"""Attention of well-known models by name: heads, widths, window, soft cap, sinks. Public configurations."""

from __future__ import annotations

from dataclasses import dataclass

from tilewise.errors import InvalidInput
from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import PagedProblem


@dataclass(frozen=True, slots=True)
class Model:
    """One kind of attention layer of a model.

    Attributes:
        window: tokens that a query sees, itself included; None: all before it.
        scale: None: 1/sqrt(head_dim).
    """

    name: str
    q_heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    scale: float | None = None


MODELS = {
    model.name: model
    for model in (
        Model("llama-3-8b", 32, 8, 128),
        Model("gemma-2-9b", 16, 8, 256, window=4096, softcap=50.0, scale=256**-0.5),
        Model("gpt-oss-20b", 64, 8, 64, window=128, sinks=True),
        Model("qwen3-4b", 32, 8, 128),
        Model("mistral-7b", 32, 8, 128, window=4096),
    )
}


def model_named(name: str) -> Model:
    """The model; InvalidInput names those there are."""
    if name not in MODELS:
        raise InvalidInput(f"model must be one of {', '.join(MODELS)}, but is {name!r}.")
    return MODELS[name]


def paged_call_of(
    model: str, *, tokens: int = 2048, seqs: int = 64, context: int = 4096, page_size: int = 16,
    dtype: str = "bfloat16", page_dtype: str | None = None, combined: bool = True,
) -> tuple[AttentionSpec, PagedProblem]:  # fmt: skip
    """(spec, problem) of a serving step of a model's windowed layer, or of its only kind of layer.

    tokens == seqs is a decode step.
    """
    layer = model_named(model)
    stored = page_dtype or dtype
    scaled = "head" if stored in ("int8", "float8_e4m3fn", "float8_e5m2") else "none"
    window = (None if layer.window is None else layer.window - 1, 0)
    spec = AttentionSpec(
        scale=layer.scale or layer.head_dim**-0.5, window=window, softcap=layer.softcap, sinks=layer.sinks,
        k_scale=scaled, v_scale=scaled,
    )  # fmt: skip
    pages_per_seq = -(-context // page_size)
    problem = PagedProblem(
        max_tokens=tokens, max_seqs=seqs, num_pages=seqs * pages_per_seq, page_size=page_size,
        pages_per_seq=pages_per_seq, q_heads=layer.q_heads, kv_heads=layer.kv_heads, qk_dim=layer.head_dim,
        v_dim=layer.head_dim, dtype=dtype, page_dtype=stored, device="tpu", framework="jax", combined=combined,
    )  # fmt: skip
    return spec, problem
