"""The sizes of a call, frozen: what a plan, a tuning table and a test id are keyed by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

QUERY_DTYPES = ("float32", "bfloat16", "float16", "float64")
PAGE_DTYPES = (*QUERY_DTYPES, "int8", "float8_e4m3fn", "float8_e5m2")
QUANTISED = ("int8", "float8_e4m3fn", "float8_e5m2")


class ArrayInfo(NamedTuple):
    """An array, as far as planning looks at it."""

    shape: tuple[int, ...]
    dtype: str
    device: str

    def __str__(self) -> str:
        return f"{list(self.shape)} {self.dtype} on {self.device}"


def real_dtype(dtype: str) -> str:
    """The dtype of lse, sinks and their gradients, and of what is accumulated, in a call of this dtype."""
    return "float64" if dtype == "float64" else "float32"


@dataclass(frozen=True, slots=True)
class Problem:
    """Sizes of a dense or packed call.

    Dense: q is [batch, q_len, q_heads, qk_dim] ("bthd") or [batch, q_heads, q_len, qk_dim] ("bhtd").
    Packed: `batch` sequences laid end to end; q_len and kv_len are the totals of tokens.
    """

    form: str  # "dense" | "packed"
    batch: int
    q_len: int
    kv_len: int
    q_heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    dtype: str
    device: str
    framework: str
    layout: str = "bthd"
    needs_grad: bool = False
    bias: ArrayInfo | None = None
    mask: ArrayInfo | None = None

    @property
    def group(self) -> int:
        """Query heads that share a kv head."""
        return self.q_heads // self.kv_heads

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of out, in the layout of q."""
        if self.form == "packed":
            return (self.q_len, self.q_heads, self.v_dim)
        rows = (self.q_len, self.q_heads) if self.layout == "bthd" else (self.q_heads, self.q_len)
        return (self.batch, *rows, self.v_dim)

    @property
    def lse_shape(self) -> tuple[int, ...]:
        """[B, H, T] or [H, tokens]."""
        shape = (self.batch, self.q_heads, self.q_len)
        return shape if self.form == "dense" else shape[1:]

    @property
    def real(self) -> str:
        """The dtype of lse, and of what the kernels accumulate."""
        return real_dtype(self.dtype)

    def describe(self) -> str:
        """One line for people."""
        sizes = f"B{self.batch} T{self.q_len} S{self.kv_len} H{self.q_heads}/{self.kv_heads} D{self.qk_dim}"
        width = "" if self.v_dim == self.qk_dim else f" E{self.v_dim}"
        grad = ", with gradients" if self.needs_grad else ""
        return f"{self.form} {sizes}{width} {self.dtype}, {self.framework} on {self.device}{grad}"


@dataclass(frozen=True, slots=True)
class PagedProblem:
    """Sizes of a ragged paged call: capacities only, no length is read."""

    max_tokens: int
    max_seqs: int
    num_pages: int
    page_size: int
    pages_per_seq: int
    q_heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    dtype: str
    page_dtype: str
    device: str
    framework: str
    combined: bool = True  # one [N, P, 2 * Hkv, D] array, K at even heads; else a pair
    max_new: int = 0  # columns of the draft mask
    form: str = "paged"
    needs_grad: bool = False

    @property
    def group(self) -> int:
        """Query heads that share a kv head."""
        return self.q_heads // self.kv_heads

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of out."""
        return (self.max_tokens, self.q_heads, self.v_dim)

    @property
    def lse_shape(self) -> tuple[int, ...]:
        """[H, max_tokens]."""
        return (self.q_heads, self.max_tokens)

    @property
    def real(self) -> str:
        """The dtype of lse."""
        return real_dtype(self.dtype)

    def describe(self) -> str:
        """One line for people."""
        width = "" if self.v_dim == self.qk_dim else f" E{self.v_dim}"
        return (
            f"paged {self.max_tokens} tokens in {self.max_seqs} sequences, H{self.q_heads}/{self.kv_heads} "
            f"D{self.qk_dim}{width} {self.dtype}, {self.num_pages} pages of {self.page_size} {self.page_dtype}, "
            f"{self.framework} on {self.device}"
        )


class Operands(NamedTuple):
    """The arrays of a dense or packed call, in the caller's framework and layout. Absent ones are None."""

    q: Any
    k: Any
    v: Any
    bias: Any = None
    mask: Any = None
    sinks: Any = None
    q_segment_ids: Any = None
    kv_segment_ids: Any = None
    q_lens: Any = None
    kv_lens: Any = None
    q_starts: Any = None
    kv_starts: Any = None

    def integers(self) -> tuple[Any, ...]:
        """Segment ids, lengths and starts: all from q_segment_ids on."""
        return self[6:]


class PagedOperands(NamedTuple):
    """The arrays of a paged call. v_pages is None when k_pages is the combined array."""

    q: Any
    k_pages: Any
    v_pages: Any
    kv_lens: Any
    page_indices: Any
    cu_q_lens: Any
    num_seqs: Any = None
    sinks: Any = None
    k_scale: Any = None
    v_scale: Any = None
    draft_mask: Any = None

    def integers(self) -> tuple[Any, ...]:
        """kv_lens, page_indices, cu_q_lens, num_seqs."""
        return self[3:7]


class Gradients(NamedTuple):
    """Gradients of a dense or packed call; None where not wanted."""

    q: Any
    k: Any
    v: Any
    bias: Any = None
    sinks: Any = None
