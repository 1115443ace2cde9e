"""The arguments of one call, as they are judged, and the one way to refuse it."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from numbers import Integral, Real

from tilewise.errors import InvalidInput
from tilewise.spec.attention_spec import Window
from tilewise.spec.problem import QUERY_DTYPES, ArrayInfo

Given = Mapping[str, ArrayInfo | None]
LARGEST_INT32 = 2**31 - 1


class Call:
    """The arguments of one call, and the one way to refuse it."""

    def __init__(self, name: str, given: Given, options: Mapping[str, object]) -> None:
        self.name = name
        self.given = {key: info for key, info in given.items() if info is not None}
        self.texts = {key: str(info) for key, info in self.given.items()}
        self.texts.update({key: repr(value) for key, value in options.items() if value is not None})

    def __getitem__(self, name: str) -> ArrayInfo:
        if name not in self.given:
            raise self.refuse(f"{name} must be an array, but is None")
        return self.given[name]

    def __contains__(self, name: str) -> bool:
        return name in self.given

    def refuse(self, message: str) -> InvalidInput:
        return InvalidInput(f"{self.name}: {message}.", self.texts)

    def rank(self, name: str, axes: str) -> tuple[int, ...]:
        """The shape of an argument, which must have the named axes."""
        shape = self[name].shape
        wanted = axes.split()
        if len(shape) != len(wanted):
            raise self.refuse(f"{name} must be [{', '.join(wanted)}], but has {len(shape)} axes")
        return shape

    def shape(self, name: str, wanted: tuple[int, ...], words: str) -> None:
        if name in self and self[name].shape != wanted:
            raise self.refuse(f"{name} must be {words} = {list(wanted)}, but is {list(self[name].shape)}")

    def dtype(self, name: str, allowed: tuple[str, ...]) -> None:
        if name in self and self[name].dtype not in allowed:
            raise self.refuse(f"{name} must be of dtype {' or '.join(allowed)}, but is {self[name].dtype}")

    def same_device(self) -> str:
        device = self["q" if "q" in self else "k"].device
        for name, info in self.given.items():
            if info.device != device:
                raise self.refuse(f"all arrays must be on one device, but {name} is on {info.device}, not {device}")
        return device

    def heads(self, q_heads: int, kv_heads: int) -> None:
        if q_heads < 1 or kv_heads < 1:
            raise self.refuse(f"there must be at least one head, got {q_heads} query heads and {kv_heads} kv heads")
        if q_heads % kv_heads:
            raise self.refuse(f"query heads must be a multiple of kv heads, but {q_heads} % {kv_heads} != 0")

    def widths(self, qk_dim: int, v_dim: int) -> None:
        if qk_dim < 1 or v_dim < 1:
            raise self.refuse(f"head widths must be at least 1, got D {qk_dim} and E {v_dim}")

    def number(self, name: str, value: object) -> float:
        """A number that the dtype computed in holds as a normal one, or 0."""
        if isinstance(value, bool) or not isinstance(value, Real):
            raise self.refuse(f"{name} must be a Python number, but is {type(value).__name__}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self.refuse(f"{name} must be finite, but is {number}")
        self._normal(name, number)
        return number

    def _normal(self, name: str, number: float) -> None:
        wide = "q" in self and self["q"].dtype == "float64"
        least, most = (2.0**-1022, sys.float_info.max) if wide else (2.0**-126, 2.0**127)
        if number != 0 and not least <= abs(number) <= most:
            raise self.refuse(f"{name} must be 0 or of a size in [{least}, {most}], but is {number}")

    def scale(self, value: object, qk_dim: int) -> float:
        return 1.0 / math.sqrt(qk_dim) if value is None else self.number("scale", value)

    def softcap(self, value: object, scale: float) -> float | None:
        if value is None:
            return None
        number = self.number("softcap", value)
        if number <= 0:
            raise self.refuse(f"softcap must be positive (None for no cap), but is {number}")
        self._normal("scale / softcap", scale / number if number > abs(scale) / sys.float_info.max else math.inf)
        return number

    def window(self, causal: object, window: object, q_len: int, kv_len: int) -> Window:
        """(left, right); a side that hides nothing in a context of this size is open, however wide it was."""
        left, right = self._sides(causal, window)
        return (None if left is not None and left >= kv_len else left, None if right and right >= q_len else right)

    def _sides(self, causal: object, window: object) -> Window:
        if not isinstance(causal, bool):
            raise self.refuse(f"causal must be True or False, but is {causal!r}")
        if window is None:
            return (None, 0) if causal else (None, None)
        if isinstance(window, Integral):
            pair = (int(window) - 1, 0)
            raise self.refuse(f"window must be (left, right); {window} tokens, the query's own included, is {pair}")
        if not isinstance(window, tuple | list) or len(window) != 2:
            raise self.refuse(f"window must be (left, right) or None, but is {window!r}")
        left, right = (self._side(side, value) for side, value in zip(("left", "right"), window, strict=True))
        return (left, 0 if causal else right)

    def _side(self, side: str, value: object) -> int | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise self.refuse(f"the {side} side of the window must be an integer or None (open), but is {value!r}")
        if value < 0:
            raise self.refuse(f"the {side} side of the window must be at least 0 (None is open), but is {int(value)}")
        return int(value)

    def sinks(self, q_heads: int) -> None:
        self.shape("sinks", (q_heads,), "[H]")
        self.dtype("sinks", QUERY_DTYPES)

    def countable(self, **sizes: int) -> None:
        """Lengths and positions travel as int32."""
        for name, size in sizes.items():
            if size > LARGEST_INT32:
                raise self.refuse(f"{name} must be below 2^31, but is {size}")
