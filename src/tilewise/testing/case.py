"""What a case is: the sizes, options and values of one call, under a name. It holds no array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tilewise.spec.attention_spec import Window

# (name of an array, or "*" for q, k, v and dout) -> how it lies in memory: a name of buffers.ORDERS.
Orders = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Case:
    """What every case has.

    Attributes:
        name: "group/case"; unique; the test id.
        says: what must hold, in a line.
        reports: reports of users of other kernels (docs/cases.md links them) that this case would have caught.
        tags: "smoke" (a quick cross-section), "every" (on each framework, not NumPy alone), "plain" (in the
            plain array code of each framework too, which is slow), "long" (seconds).
        heads: (query heads, kv heads). widths: (D, E).
        values: what q, k and v hold: a name of values.VALUES.
        orders: how arrays lie in memory.
    """

    form: ClassVar[str]
    name: str
    says: str
    reports: tuple[str, ...] = ()
    tags: frozenset[str] = frozenset()
    dtype: str = "float32"
    heads: tuple[int, int] = (4, 2)
    widths: tuple[int, int] = (16, 16)
    values: str = "normal"
    orders: Orders = ()
    causal: bool = False
    window: Window | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False

    def options(self) -> dict[str, Any]:
        """Keyword arguments of the call that are no arrays."""
        return {"causal": self.causal, "window": self.window, "scale": self.scale, "softcap": self.softcap}

    def order(self, name: str) -> str:
        """How the array lies in memory."""
        orders = dict(self.orders)
        return orders.get(name, orders.get("*", "plain") if name in ("q", "k", "v", "dout") else "plain")


@dataclass(frozen=True, kw_only=True)
class DenseCase(Case):
    """attention().

    Attributes:
        bias, mask: axes of the operand, a letter of "bhts" or "1" each: "1h1s" is [1, H, 1, S].
        bias_values, mask_values, segments: names of values.BIASES, values.MASKS and values.SEGMENTS.
    """

    form: ClassVar[str] = "dense"
    batch: int = 2
    q_len: int = 6
    kv_len: int = 9
    layout: str = "bthd"
    bias: str | None = None
    bias_dtype: str = "float32"
    bias_values: str = "normal"
    mask: str | None = None
    mask_values: str = "random"
    segments: str | None = None
    q_lens: tuple[int, ...] | None = None
    kv_lens: tuple[int, ...] | None = None
    ints: str = "int32"

    def options(self) -> dict[str, Any]:
        return {**super().options(), "layout": self.layout}


@dataclass(frozen=True, kw_only=True)
class PackedCase(Case):
    """attention_packed(). `lead` and `tail` tokens stand before and behind the sequences, owned by none."""

    form: ClassVar[str] = "packed"
    q_lens: tuple[int, ...] = (3, 5)
    kv_lens: tuple[int, ...] = (4, 6)
    lead: int = 0
    tail: int = 0
    ints: str = "int32"


@dataclass(frozen=True, kw_only=True)
class PagedCase(Case):
    """ragged_paged_attention().

    Attributes:
        lead, tail: rows of q before and behind the sequences.
        spare_seqs: rows of the batch arrays past num_seqs; they hold nonsense. None: num_seqs is not given.
        page_dtype: None: the dtype of q. combined: one array with K at even heads, else a pair.
        k_scale, v_scale: None, "number" (Python), "scalar", "one" ([1]), "head" or "slot".
        draft: columns of the draft mask, or None.
    """

    form: ClassVar[str] = "paged"
    causal: bool = True
    q_lens: tuple[int, ...] = (1, 4, 1)
    kv_lens: tuple[int, ...] = (5, 9, 17)
    lead: int = 0
    tail: int = 2
    spare_seqs: int | None = None
    page_size: int = 4
    page_dtype: str | None = None
    combined: bool = True
    k_scale: str | None = None
    v_scale: str | None = None
    draft: int | None = None
    batch_invariant: bool = False
    ints: str = "int32"

    @property
    def stored(self) -> str:
        """The dtype of the pages."""
        return self.page_dtype or self.dtype

    def options(self) -> dict[str, Any]:
        return {**super().options(), "batch_invariant": self.batch_invariant}


@dataclass(frozen=True, kw_only=True)
class AppendCase(PagedCase):
    """append_to_pages() with the arrays of a paged call."""

    form: ClassVar[str] = "append"

    def options(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, kw_only=True)
class MergeCase(Case):
    """merge(). `states`: what each state is: a name of values.STATES."""

    form: ClassVar[str] = "merge"
    states: tuple[str, ...] = ("normal", "normal")
    batch: int | None = 2
    q_len: int = 5

    def options(self) -> dict[str, Any]:
        return {}
