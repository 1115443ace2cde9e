"""The math of one attention call, frozen."""

from __future__ import annotations

from dataclasses import dataclass

Window = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """scale -> soft cap -> + bias -> mask (window, mask, segments, lengths) -> sink -> softmax -> @ V.

    Query i of T and key j of S: query i stands at position i + S - T (bottom-right), with lengths at
    i + kv_len - q_len. Key j is visible iff position - left <= j <= position + right; None is open.
    docs/meaning.md has every rule; spec/reference.py is the same in code.

    Attributes:
        scale: factor on q.k; 1/sqrt(D) of the caller's D when the caller gave none.
        window: (left, right), inclusive, at least 0. Causal is right = 0.
        softcap: c of c * tanh(scale * q.k / c), or None.
        bias: an additive [B|1, H|1, T|1, S|1] operand follows.
        mask: a bool [B|1, H|1, T|1, S|1] operand follows; True keeps.
        sinks: an [H] operand follows: one more logit a query head, with no value.
        segments: int32 [B, T] and [B, S] operands follow; equal ids see each other, negative ids nobody.
        q_lens, kv_lens: int32 [B] operands follow (dense calls).
        draft_mask: a bool [max_tokens, max_new] operand follows (paged calls).
        k_scale, v_scale: "none", "scalar", "head" ([Hkv]) or "slot" ([N, P, Hkv]) (paged calls).
        batch_invariant: a row's bits may not depend on what else is in the batch (paged calls).
    """

    scale: float
    window: Window = (None, None)
    softcap: float | None = None
    bias: bool = False
    mask: bool = False
    sinks: bool = False
    segments: bool = False
    q_lens: bool = False
    kv_lens: bool = False
    draft_mask: bool = False
    k_scale: str = "none"
    v_scale: str = "none"
    batch_invariant: bool = False

    @property
    def causal(self) -> bool:
        """No query sees a key to its right."""
        return self.window[1] == 0

    def features(self) -> frozenset[str]:
        """Names of what this spec uses beyond softmax(scale * q.k) @ v. A backend refuses names it does not know."""
        flags = ("bias", "mask", "sinks", "segments", "q_lens", "kv_lens", "draft_mask", "batch_invariant")
        used = {name for name in flags if getattr(self, name)}
        if self.window != (None, None):
            used.add("causal" if self.window == (None, 0) else "window")
        if self.softcap is not None:
            used.add("softcap")
        used.update(name for name in ("k_scale", "v_scale") if getattr(self, name) != "none")
        return frozenset(used)

    def describe(self) -> str:
        """One line for people: "scale 0.125, causal, sinks"."""
        parts = [f"scale {self.scale:g}"]
        features = self.features()
        if "window" in features:
            parts.append(f"window {self.window}")
        if self.softcap is not None:
            parts.append(f"softcap {self.softcap:g}")
        parts += sorted(features - {"window", "softcap"})
        return ", ".join(parts)
