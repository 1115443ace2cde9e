"""Which tiles a plan runs with: the tuned ones of this device kind, else the backend's own first choice."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from types import ModuleType
from typing import Any

from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import PagedProblem, Problem


def choose(name: str, backend: ModuleType, spec: AttentionSpec, problem: Problem | PagedProblem) -> Any:
    """Tiles for a call. A tuned entry that the backend no longer offers is passed over."""
    choices = backend.tile_choices(spec, problem)
    if not choices:
        return None
    tuned = _table(name, backend.device_kind()).get(tuning_key(spec, problem))
    by_text = {repr(choice): choice for choice in choices}
    return by_text.get(tuned, choices[0]) if tuned else choices[0]


def tuning_key(spec: AttentionSpec, problem: Problem | PagedProblem) -> str:
    """What tuned entries are filed under: features and widths exactly, lengths by power of two."""
    lengths = ("max_tokens", "max_seqs") if isinstance(problem, PagedProblem) else ("q_len", "kv_len")
    sizes = [f"{name}~{(getattr(problem, name)).bit_length()}" for name in lengths]
    widths = f"G{problem.group} D{problem.qk_dim} E{problem.v_dim} {problem.dtype}"
    return " ".join([problem.form, widths, *sizes, *sorted(spec.features())])


@lru_cache(maxsize=64)
def _table(backend: str, device_kind: str) -> dict[str, str]:
    path = files("tilewise") / "tuned" / backend / f"{device_kind}.json"
    return json.loads(path.read_text()) if path.is_file() else {}
