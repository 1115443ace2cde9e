"""How an array lies in memory: strides that kernels misread, and guard bytes on both sides."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Container
from dataclasses import dataclass, field

import numpy as np

MARGIN = 256
GUARD = 0xFF  # NaN in every float format, -1 in every integer one: a stray read shows


@dataclass
class Buffers:
    """Memory that holds the arrays of a call; `changed()` tells what the call wrote where it must not.

    fenced: each array ends where the readable memory ends, so a read past its last element ends the process.
    """

    fenced: bool = False
    _kept: list[tuple[str, np.ndarray, np.ndarray, slice]] = field(default_factory=list)  # now, before, the array in it
    _maps: list[mmap.mmap] = field(default_factory=list)

    def place(self, name: str, x: np.ndarray, order: str = "plain") -> np.ndarray:
        """The values of x in memory of this order, between guard bytes."""
        if order in ("expanded", "scalar"):
            return self._expanded(name, x, axes=range(x.ndim) if order == "scalar" else [max(x.ndim - 2, 0)])
        stored, view = ORDERS[order](x)
        return view(self._allocate(name, stored, skew=1 if order == "unaligned" else 0))

    def changed(self, written: Container[str] = ()) -> str | None:
        """The name of a buffer that is not as it was, or None. Of arrays in `written` only the guard bytes count."""
        for name, now, before, inside in self._kept:
            same = now == before
            if name in written:
                same[inside] = True
            if not same.all():
                return name
        return None

    def _allocate(self, name: str, x: np.ndarray, skew: int = 0) -> np.ndarray:
        size = x.nbytes
        if self.fenced:
            memory = self._fenced_bytes(size + MARGIN)[: size + MARGIN]
            start = MARGIN
        else:
            memory = np.full(size + 2 * MARGIN + 64, GUARD, np.uint8)
            start = MARGIN + -(memory.ctypes.data + MARGIN) % 64 + skew
        memory[:] = GUARD
        result = np.ndarray(x.shape, x.dtype, memory, start)
        result[...] = x
        self._kept.append((name, memory, memory.copy(), slice(start, start + size)))
        return result

    def _expanded(self, name: str, x: np.ndarray, axes: range | list[int]) -> np.ndarray:
        """Stride 0 along these axes: every element along them reads the first one's memory."""
        one = x[tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(x.ndim))]
        small = self._allocate(name, one)
        strides = [0 if axis in axes else stride for axis, stride in enumerate(small.strides)]
        return np.ndarray(x.shape, x.dtype, small.reshape(-1).view(np.uint8), 0, strides)

    def _fenced_bytes(self, size: int) -> np.ndarray:
        """Bytes that end at a page that may not be touched."""
        page = mmap.PAGESIZE
        whole = -(-size // page) * page
        memory = mmap.mmap(-1, whole + page)
        self._maps.append(memory)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(base + whole), ctypes.c_size_t(page), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
        return np.frombuffer(memory, np.uint8, whole)[whole - size :]


Order = Callable[[np.ndarray], tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]]


def _swapped(first: int, second: int) -> Order:
    return lambda x: (
        np.ascontiguousarray(x.swapaxes(first, second)),
        lambda stored: stored.swapaxes(first, second),
    )


def _padded(x: np.ndarray) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Rows that are 3 elements further apart than they are long; the gaps hold NaN (or -1)."""
    stored = np.frombuffer(bytes([GUARD]) * (x.itemsize * (x.size // max(x.shape[-1], 1)) * (x.shape[-1] + 3)), x.dtype)
    stored = stored.reshape(*x.shape[:-1], x.shape[-1] + 3).copy()
    stored[..., 1:-2] = x
    return stored, lambda memory: memory[..., 1:-2]


def _every_second(axis: int) -> Order:
    def order(x: np.ndarray) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
        shape = list(x.shape)
        shape[axis] *= 2
        stored = np.frombuffer(bytes([GUARD]) * (x.nbytes * 2), x.dtype).reshape(shape).copy()
        at: list[slice] = [slice(None)] * x.ndim
        at[axis] = slice(0, None, 2)
        stored[tuple(at)] = x
        return stored, lambda memory: memory[tuple(at)]

    return order


def _reversed(axis: int) -> Order:
    return lambda x: (np.ascontiguousarray(np.flip(x, axis)), lambda stored: np.flip(stored, axis))


ORDERS: dict[str, Order] = {
    "plain": lambda x: (np.ascontiguousarray(x), lambda stored: stored),
    "unaligned": lambda x: (np.ascontiguousarray(x), lambda stored: stored),
    "transposed": lambda x: _swapped(-3, -2)(x),  # [.., T, H, D] stored as [.., H, T, D]
    "pages_last": lambda x: _swapped(0, 1)(x),  # the outer two axes
    "columns": lambda x: _swapped(-2, -1)(x),  # the innermost axis is not dense
    "padded": _padded,
    "every_second": _every_second(-1),  # last stride 2
    "interleaved": _every_second(-2),  # K and V heads take turns
    "unbound": lambda x: _every_second(0)(x),  # pages of twice the stride, as kv.unbind(1) gives
    "backwards": _reversed(-3),  # a negative stride
    "last_backwards": _reversed(-1),
}
