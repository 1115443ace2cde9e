"""Every array argument of every public call in every order in memory: the bits of the contiguous call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewise as tw
from tests.conftest import require
from tests.frameworks.calls import KINDS, call_of, paged_step
from tilewise.testing.buffers import ORDERS, Buffers

pytestmark = pytest.mark.skipif(tw.backends()["cpu"] is not None, reason=str(tw.backends()["cpu"]))

Arrays = dict[str, Any]
# Axes that an order needs, where it is not 2.
RANK = {"unaligned": 1, "every_second": 1, "last_backwards": 1, "unbound": 1, "backwards": 3, "transposed": 3}
ALL = [*(order for order in ORDERS if order != "plain"), "expanded", "scalar", "offset"]
OF_TORCH = [order for order in ALL if order not in ("backwards", "last_backwards", "unaligned")]  # it has none of these


def place(name: str, x: np.ndarray, order: str) -> np.ndarray | None:
    """x (or, with strides of 0, its first elements over and over) in this order; None: it has too few axes."""
    if order == "offset":
        wider = np.full([n + 2 for n in x.shape], -1, x.dtype)
        view: np.ndarray = wider[tuple(slice(1, -1) for _ in x.shape)]
        view[...] = x
        return view
    if x.ndim < RANK.get(order, 2) or 0 in x.shape:
        return None
    if order in ("expanded", "scalar") and name.endswith(("starts", "lens", "indices")):
        return None  # starts that do not rise own no token, and padding of a page table is no page
    return Buffers().place(name, x, order)


def dense(kind: str) -> tuple[Callable[[Arrays], list[Any]], Arrays]:
    call = call_of(kind)
    packed = kind == "packed"
    forward: Any = tw.attention_packed if packed else tw.attention
    backward: Any = tw.attention_packed_backward if packed else tw.attention_backward
    arrays: Arrays = {name: x.astype(np.float32) for name, x in call.arrays.items()} | call.others

    def run(arrays: Arrays) -> list[Any]:
        given = {name: x for name, x in arrays.items() if name not in ("out", "lse", "dout", "dlse")}
        rows = {name: arrays[name] for name in ("out", "lse", "dout", "dlse")}
        out, lse = forward(**given, **call.options, return_lse=True, backend="cpu")
        return [out, lse, *backward(**given, **rows, **call.options, backend="cpu")]

    rows = {"out": call.out, "lse": call.lse, "dout": call.dout, "dlse": call.dlse}
    return run, arrays | {name: x.astype(np.float32) for name, x in rows.items()}


def dense_of_bhtd(kind: str) -> tuple[Callable[[Arrays], list[Any]], Arrays]:
    call = call_of(kind)
    arrays = {name: np.ascontiguousarray(x.astype(np.float32).swapaxes(1, 2)) for name, x in call.arrays.items()}

    def run(arrays: Arrays) -> list[Any]:
        return list(tw.attention(**arrays, **call.options, layout="bhtd", return_lse=True, backend="cpu"))

    return run, arrays


def pages(dtype: str, combined: bool) -> tuple[Callable[[Arrays], list[Any]], Arrays]:
    step = paged_step(dtype, combined)
    stored = {"kv_pages": step.kv_pages} if combined else {"k_pages": step.kv_pages[0], "v_pages": step.kv_pages[1]}
    scales = {name: x for name, x in step.scales.items() if isinstance(x, np.ndarray)}
    numbers = {name: x for name, x in step.scales.items() if name not in scales}
    arrays = {"q": step.q, "k": step.k, "v": step.v, **stored, **step.batch, **scales}

    def run(arrays: Arrays) -> list[Any]:
        batch = {name: arrays[name] for name in (*step.batch, *scales)} | numbers
        given = arrays["kv_pages"] if combined else (arrays["k_pages"], arrays["v_pages"])
        before = tw.ragged_paged_attention(arrays["q"], given, **batch, return_lse=True, backend="cpu")
        tw.append_to_pages(given, arrays["k"], arrays["v"], **batch, backend="cpu")
        after = tw.ragged_paged_attention(arrays["q"], given, **batch, return_lse=True, backend="cpu")
        return [*before, *after, *([given] if combined else given)]

    return run, arrays


def merged() -> tuple[Callable[[Arrays], list[Any]], Arrays]:
    rng = np.random.default_rng(0)
    arrays = {f"out{i}": rng.standard_normal((2, 5, 4, 6)).astype(np.float32) for i in range(3)}
    arrays |= {f"lse{i}": rng.standard_normal((2, 4, 5)).astype(np.float32) for i in range(3)}
    return lambda x: list(tw.merge([(x[f"out{i}"], x[f"lse{i}"]) for i in range(3)])), arrays


CALLS: dict[str, Any] = {
    **{f"dense {kind}": lambda kind=kind: dense(kind) for kind in KINDS},
    "dense bhtd": lambda: dense_of_bhtd("causal"),
    **{
        f"pages {dtype} {'combined' if combined else 'pair'}": lambda d=dtype, c=combined: pages(d, c)
        for dtype in ("float32", "bfloat16", "int8", "float8_e4m3fn") for combined in (True, False)
    },
    "merge": merged,
}  # fmt: skip


def check(name: str, order: str, run_as: Callable[[Any, Arrays], list[np.ndarray]]) -> None:
    """The call with each array alone in this order, then with all of them, against contiguous copies."""
    run, arrays = CALLS[name]()
    views = {n: place(n, x, order) for n, x in arrays.items()}
    possible = [n for n, view in views.items() if view is not None]
    writes = order not in ("expanded", "scalar")  # what shares memory with itself is not written to
    possible = [n for n in possible if writes or not n.endswith("pages")]
    assert possible
    for changed in [*([n] for n in possible), possible]:
        # Fresh memory at each turn: append writes to it.
        mine = {n: (place(n, x, order) if n in changed else x.copy()) for n, x in arrays.items()}
        theirs = {n: np.array(x, order="C", copy=True) for n, x in mine.items()}
        before = {n: x.copy() for n, x in mine.items()}
        for i, (a, b) in enumerate(zip(run_as(run, mine), run_as(run, theirs), strict=True)):
            if b is not None:
                assert a.dtype == b.dtype
                assert np.array(a, order="C").tobytes() == np.array(b, order="C").tobytes(), (changed, i)
        for n, x in mine.items():
            assert n.endswith("pages") or x.tobytes() == before[n].tobytes(), f"{n} was written to"


@pytest.mark.parametrize("order", ALL)
@pytest.mark.parametrize("name", CALLS)
def test_numpy(name: str, order: str) -> None:
    check(name, order, lambda run, arrays: run(arrays))


@pytest.mark.parametrize("order", OF_TORCH)
@pytest.mark.parametrize("name", CALLS)
def test_torch(name: str, order: str) -> None:
    torch = require("torch")

    def tensor(x: np.ndarray) -> Any:
        special = {"bfloat16": np.int16, "float8_e4m3fn": np.uint8}.get(x.dtype.name)
        return torch.from_numpy(x) if special is None else torch.from_numpy(x.view(special)).view(
            getattr(torch, x.dtype.name))  # fmt: skip

    def array(x: Any) -> Any:
        return None if x is None else (x if x.dtype in (torch.float32, torch.int8) else x.float()).numpy()

    check(name, order, lambda run, arrays: [array(x) for x in run({n: tensor(x) for n, x in arrays.items()})])


@pytest.mark.parametrize("order", OF_TORCH)
@pytest.mark.parametrize("kind", KINDS)
def test_torch_autograd(kind: str, order: str) -> None:
    """Leaves that are views, and a dout that is one."""
    torch = require("torch")
    call = call_of(kind)
    forward: Any = tw.attention_packed if kind == "packed" else tw.attention

    def run(arrays: Arrays) -> list[Any]:
        tensors = {n: torch.from_numpy(x) for n, x in arrays.items()}
        dout, dlse = tensors.pop("dout"), tensors.pop("dlse")
        leaves = [tensors[n].requires_grad_() for n in call.arrays]
        out, lse = forward(**tensors, **call.options, return_lse=True, backend="cpu")
        grads = torch.autograd.grad([out, lse], leaves, [dout, dlse])
        return [x.detach().numpy() for x in (out, lse, *grads)]

    arrays = {n: x.astype(np.float32) for n, x in (*call.arrays.items(), ("dout", call.dout), ("dlse", call.dlse))}
    views = {n: place(n, x, order) for n, x in (*arrays.items(), *call.others.items())}
    mine = {n: (arrays | call.others)[n] if x is None else x for n, x in views.items()}
    for a, b in zip(run(mine), run({n: np.array(x, order="C") for n, x in mine.items()}), strict=True):
        assert a.tobytes() == b.tobytes()
