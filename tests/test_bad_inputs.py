"""Calls without a meaning: each raises InvalidInput that tells the values, and leaves every array as it was."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewise as tw
from tests.conftest import require
from tilewise.testing.frameworks import FRAMEWORKS

F32, I32, I64 = np.float32, np.int32, np.int64
B, T, S, H, HKV, D, E = 2, 4, 6, 4, 2, 8, 5
N, P, TOKENS, SEQS, PAGES = 7, 4, 5, 3, 2


def rows(*shape: int, dtype: Any = F32) -> np.ndarray:
    return (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 7 / 7).astype(dtype)


def ints(*values: Any, dtype: Any = I32) -> np.ndarray:
    return np.array(values, dtype)


def dense() -> dict[str, Any]:
    return {"q": rows(B, T, H, D), "k": rows(B, S, HKV, D), "v": rows(B, S, HKV, E)}


def packed() -> dict[str, Any]:
    return {"q": rows(6, H, D), "k": rows(8, HKV, D), "v": rows(8, HKV, E), "q_starts": ints(0, 2, 6),
            "kv_starts": ints(0, 5, 8)}  # fmt: skip


def paged() -> dict[str, Any]:
    return {"q": rows(TOKENS, H, D), "kv_pages": rows(N, P, 2 * HKV, D), "kv_lens": ints(8, 3, 4),
            "page_indices": ints([0, 1], [2, -1], [3, -1]), "cu_q_lens": ints(0, 1, 4, 5)}  # fmt: skip


def append() -> dict[str, Any]:
    return {**{name: x for name, x in paged().items() if name != "q"}, "k": rows(TOKENS, HKV, D),
            "v": rows(TOKENS, HKV, D)}  # fmt: skip


def pair() -> dict[str, Any]:
    return {**paged(), "kv_pages": (rows(N, P, HKV, D), rows(N, P, HKV, E))}


def backward() -> dict[str, Any]:
    out, lse = tw.attention(**dense(), return_lse=True, backend="composed")
    return {**dense(), "out": out, "lse": lse, "dout": rows(*out.shape)}


def merge() -> dict[str, Any]:
    return {"states": [(rows(B, T, H, E), rows(B, H, T)) for _ in range(2)]}


CALLS: dict[str, tuple[Callable[..., Any], Callable[[], dict[str, Any]]]] = {
    "attention": (tw.attention, dense), "packed": (tw.attention_packed, packed),
    "paged": (tw.ragged_paged_attention, paged), "pair": (tw.ragged_paged_attention, pair),
    "append": (tw.append_to_pages, append), "backward": (tw.attention_backward, backward), "merge": (tw.merge, merge),
}  # fmt: skip

# (call, what is given in place of a good argument, words that the message must hold)
TABLE: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    # what is no array
    ("attention", {"q": [[1.0]]}, ("NumPy", "list")),
    ("attention", {"q": None}, ("NoneType",)),
    ("attention", {"q": "q"}, ("str",)),
    ("attention", {"k": [[1.0]]}, ("k", "list")),
    ("attention", {"v": None}, ("v",)),
    ("attention", {"bias": 1.0}, ("bias", "float")),
    ("attention", {"mask": True}, ("mask", "bool")),
    ("attention", {"kv_lens": [6, 6]}, ("kv_lens", "list")),
    ("paged", {"page_indices": [[0, 1]]}, ("page_indices", "list")),
    ("paged", {"kv_pages": (rows(N, P, HKV, D),)}, ("1 parts",)),
    ("paged", {"kv_pages": "pages"}, ("str",)),
    ("merge", {"states": []}, ("at least one",)),
    ("merge", {"states": [(rows(B, T, H, E),)]}, ("pair",)),
    # ranks and sizes
    ("attention", {"q": rows(T, H, D)}, ("q", "3 axes", "[4, 4, 8]")),
    ("attention", {"k": rows(B, S, HKV, D, 1)}, ("k", "5 axes")),
    ("attention", {"k": rows(B + 1, S, HKV, D)}, ("batch", "2, 3")),
    ("attention", {"v": rows(B, S - 1, HKV, E)}, ("6 x 2", "5 x 2")),
    ("attention", {"v": rows(B, S, HKV + 1, E)}, ("6 x 2", "6 x 3")),
    ("attention", {"k": rows(B, S, HKV, D + 1)}, ("width", "8 and 9")),
    ("attention", {"k": rows(B, HKV, S, D), "v": rows(B, HKV, S, E)}, ("4 % 6",)),
    ("attention", {"q": rows(B, T, 3, D)}, ("3 % 2",)),
    ("attention", {"q": rows(B, T, 33, D)}, ("33 % 2",)),
    ("attention", {"q": rows(B, T, 0, D)}, ("at least one head", "0 query heads")),
    ("attention", {"k": rows(B, S, 0, D), "v": rows(B, S, 0, E)}, ("0 kv heads",)),
    ("attention", {"q": rows(B, T, H, 0), "k": rows(B, S, HKV, 0)}, ("at least 1", "D 0")),
    ("attention", {"v": rows(B, S, HKV, 0)}, ("E 0",)),
    ("attention", {"bias": rows(T, S)}, ("bias", "2 axes")),
    ("attention", {"bias": rows(B, H, T, S + 1)}, ("bias", "broadcast", "[2, 4, 4, 6]")),
    ("attention", {"mask": np.ones((B, 3, T, S), bool)}, ("mask", "broadcast", "[2, 3, 4, 6]")),
    ("attention", {"mask": np.ones((B, HKV, T, S), bool)}, ("mask", "broadcast")),
    ("attention", {"sinks": rows(H - 1)}, ("sinks", "[4]", "[3]")),
    ("attention", {"sinks": rows(1, H)}, ("sinks", "[1, 4]")),
    ("attention", {"q_lens": ints(1, 2, 3)}, ("q_lens", "[2]", "[3]")),
    ("attention", {"kv_lens": ints([1], [2])}, ("kv_lens", "[2, 1]")),
    ("attention", {"q_segment_ids": ints([0] * T, [0] * T)}, ("together",)),
    ("attention", {"q_segment_ids": np.zeros((B, T), I32), "kv_segment_ids": np.zeros((B, T), I32)},
     ("kv_segment_ids", "[2, 6]", "[2, 4]")),
    ("packed", {"q": rows(1, 6, H, D)}, ("q", "4 axes")),
    ("packed", {"q_starts": ints(0, 6)}, ("n + 1", "2 and 3")),
    ("packed", {"q_starts": ints(), "kv_starts": ints()}, ("n + 1", "0 and 0")),
    ("packed", {"q_starts": ints([0, 2, 6])}, ("q_starts", "2 axes")),
    ("paged", {"q": rows(TOKENS, 3, D)}, ("3 % 2",)),
    ("paged", {"kv_pages": rows(N, P, 3, D)}, ("odd", "3 heads")),
    ("paged", {"kv_pages": rows(N, 0, 2 * HKV, D)}, ("page_size", "0")),
    ("paged", {"kv_pages": rows(N, P, 2 * HKV, D + 2)}, ("8 and 10",)),
    ("paged", {"kv_pages": rows(N, P, D)}, ("3 axes",)),
    ("paged", {"page_indices": ints([0, 1], [2, -1])}, ("2 rows", "3")),
    ("paged", {"cu_q_lens": ints(0, 1, 4)}, ("cu_q_lens", "[4]", "[3]")),
    ("paged", {"num_seqs": ints(1, 2)}, ("num_seqs", "[2]")),
    ("paged", {"k_scale": rows(3)}, ("k_scale", "[3]")),
    ("paged", {"v_scale": rows(P, HKV)}, ("v_scale", "[4, 2]")),
    ("paged", {"draft_mask": np.ones((TOKENS + 1, 2), bool)}, ("draft_mask", "5", "6")),
    ("pair", {"kv_pages": (rows(N, P, HKV, D), rows(N - 1, P, HKV, E))}, ("agree", "[6, 4, 2, 5]")),
    ("append", {"k": rows(TOKENS, HKV + 1, D)}, ("heads",)),
    ("append", {"k": rows(TOKENS, HKV, D + 1), "v": rows(TOKENS, HKV, D + 1)}, ("8 and 8", "9 and 9")),
    ("append", {"v": rows(TOKENS - 1, HKV, D)}, ("5 x 2", "4 x 2")),
    ("backward", {"dout": rows(B, T, H, E + 1)}, ("dout", "[2, 4, 4, 5]", "[2, 4, 4, 6]")),
    ("backward", {"lse": rows(B, T, H + 1)}, ("lse",)),
    ("backward", {"dlse": rows(B, H)}, ("dlse", "[2, 4]")),
    ("backward", {"out": None}, ("out", "None")),
    ("backward", {"lse": None}, ("lse", "None")),
    ("backward", {"dout": None}, ("dout", "None")),
    ("backward", {"kv_lens": ints(99, 3)}, ("kv_lens[0]", "99")),
    ("merge", {"states": [(rows(B, T, H, E), rows(B, T, H + 3))]}, ("lse", "[2, 4, 7]")),
    ("merge", {"states": [(rows(T, E), rows(T))]}, ("[4, 5]",)),
    ("merge", {"states": [(rows(B, T, H, E), rows(B, H, T)), (rows(B, T, H, E + 1), rows(B, H, T))]}, ("state 1",)),
    # dtypes
    ("attention", {"q": rows(B, T, H, D, dtype=I32)}, ("int32",)),
    ("attention", {"q": rows(B, T, H, D, dtype=np.complex64)}, ("complex64",)),
    ("attention", {"q": np.full((B, T, H, D), "x")}, ("q",)),
    ("attention", {"q": np.full((B, T, H, D), None)}, ("object",)),
    ("attention", {"k": rows(B, S, HKV, D, dtype=np.float16)}, ("one dtype", "float16")),
    ("attention", {"v": rows(B, S, HKV, E, dtype=ml_dtypes.bfloat16)}, ("one dtype", "bfloat16")),
    ("attention", {"k": np.zeros((B, S, HKV, D), np.int8), "v": np.zeros((B, S, HKV, E), np.int8)}, ("int8", "pages")),
    ("attention", {"k": rows(B, S, HKV, D, dtype=ml_dtypes.float8_e4m3fn),
                   "v": rows(B, S, HKV, E, dtype=ml_dtypes.float8_e4m3fn)}, ("float8_e4m3fn", "pages")),
    ("attention", {"mask": rows(B, 1, T, S)}, ("mask", "float32", "bias")),
    ("attention", {"mask": np.ones((B, 1, T, S), I32)}, ("mask", "int32", "mask != 0")),
    ("attention", {"bias": np.ones((B, 1, T, S), bool)}, ("bias", "bool", "mask")),
    ("attention", {"bias": np.ones((B, 1, T, S), I32)}, ("bias", "int32")),
    ("attention", {"sinks": ints(1, 2, 3, 4)}, ("sinks", "int32")),
    ("attention", {"kv_lens": rows(B)}, ("kv_lens", "float32")),
    ("attention", {"kv_lens": ints(3, 4, dtype=np.uint8)}, ("kv_lens", "uint8")),
    ("attention", {"q_segment_ids": rows(B, T), "kv_segment_ids": rows(B, S)}, ("q_segment_ids", "float32")),
    ("packed", {"q_starts": rows(3)}, ("q_starts", "float32")),
    ("paged", {"page_indices": rows(SEQS, PAGES)}, ("page_indices", "float32")),
    ("paged", {"kv_pages": np.zeros((N, P, 2 * HKV, D), np.uint8)}, ("uint8",)),
    ("paged", {"draft_mask": rows(TOKENS, 2)}, ("draft_mask", "float32")),
    ("paged", {"k_scale": ints(1, 2)}, ("k_scale", "int32")),
    ("paged", {"q": np.zeros((TOKENS, H, D), np.int8)}, ("int8",)),
    ("pair", {"kv_pages": (rows(N, P, HKV, D), rows(N, P, HKV, E, dtype=np.float16))}, ("one dtype", "float16")),
    ("append", {"v": rows(TOKENS, HKV, D, dtype=np.float16)}, ("one dtype", "float16")),
    ("append", {"k": np.zeros((TOKENS, HKV, D), np.int8), "v": np.zeros((TOKENS, HKV, D), np.int8)}, ("int8",)),
    ("backward", {"out": rows(B, T, H, E, dtype=np.float16)}, ("out", "float16")),
    ("backward", {"lse": rows(B, H, T, dtype=np.float64)}, ("lse", "float64")),
    ("merge", {"states": [(rows(B, T, H, E), rows(B, H, T, dtype=np.float16))]}, ("lse", "float16")),
    ("merge", {"states": [(rows(B, T, H, E), rows(B, H, T, dtype=np.float64))]}, ("lse", "float32", "float64")),
    ("merge", {"states": [(rows(B, T, H, E, dtype=np.float64), rows(B, H, T))]}, ("lse", "float64")),
    # options
    ("attention", {"scale": float("nan")}, ("scale", "nan")),
    ("attention", {"scale": float("inf")}, ("scale", "inf")),
    ("attention", {"scale": "1"}, ("scale", "str")),
    ("attention", {"scale": True}, ("scale", "bool")),
    ("attention", {"scale": 1e-46}, ("scale", "1e-46")),
    ("attention", {"scale": 1e39}, ("scale", "1e+39")),
    ("attention", {"softcap": 1e-46}, ("softcap", "1e-46")),
    ("attention", {"softcap": True}, ("softcap", "bool")),
    ("attention", {"window": (1.0, 0)}, ("left", "1.0")),
    ("attention", {"scale": 10**400}, ("scale", "inf")),
    ("attention", {"scale": 1e-8, "softcap": 1.7e38}, ("scale / softcap",)),
    ("attention", {"scale": 1e4, "softcap": 2.0**-126}, ("scale / softcap",)),
    ("merge", {"states": 3}, ("a list",)),
    ("merge", {"states": [3]}, ("pair",)),
    ("merge", {"states": [(np.zeros((B, T, H, E), I64), rows(B, H, T))]}, ("out", "int64")),
    ("merge", {"states": [(np.zeros((B, T, H, E), np.int8), rows(B, H, T))]}, ("out", "int8")),
    ("append", {"k_scale": 1e-60}, ("k_scale", "1e-60")),
    ("append", {"k_scale": np.float32(-1)}, ("k_scale", "-1.0")),
    ("paged", {"k_scale": 10**400}, ("k_scale", "positive")),
    ("pair", {"kv_pages": (rows(N, P, 2 * HKV, D), None)}, ("None",)),
    ("attention", {"backend": ["cpu"]}, ("backend", "['cpu']")),
    ("merge", {"layout": "bhsd"}, ("layout", "'bhsd'")),
    ("paged", {"k_scale": 0.0}, ("k_scale", "positive", "0.0")),
    ("append", {"v_scale": -1.0}, ("v_scale", "positive", "-1.0")),
    ("attention", {"softcap": 0.0}, ("softcap", "0.0")),
    ("attention", {"softcap": -30.0}, ("softcap", "-30.0")),
    ("attention", {"softcap": float("inf")}, ("softcap", "inf")),
    ("attention", {"window": (-1, 0)}, ("left", "-1")),
    ("attention", {"window": (0, -3)}, ("right", "-3")),
    ("attention", {"window": 128}, ("(127, 0)",)),
    ("attention", {"window": (1, 2, 3)}, ("window", "(1, 2, 3)")),
    ("attention", {"window": (1.5, 0)}, ("left", "1.5")),
    ("attention", {"window": "causal"}, ("window", "'causal'")),
    ("attention", {"causal": "yes"}, ("causal", "'yes'")),
    ("attention", {"causal": 1}, ("causal", "1")),
    ("attention", {"layout": "bhsd"}, ("layout", "'bhsd'")),
    ("attention", {"backend": "cuda"}, ("backend", "'cuda'")),
    ("paged", {"batch_invariant": 1}, ("batch_invariant", "1")),
    ("paged", {"k_scale": float("nan")}, ("k_scale", "nan")),
    ("paged", {"v_scale": float("inf")}, ("v_scale", "inf")),
    ("paged", {"k_scale": "1"}, ("k_scale", "str")),
    # values
    ("attention", {"kv_lens": ints(6, 7)}, ("kv_lens[1]", "[0, 6]", "7")),
    ("attention", {"kv_lens": ints(-1, 6)}, ("kv_lens[0]", "-1")),
    ("attention", {"q_lens": ints(5, 4)}, ("q_lens[0]", "5")),
    ("attention", {"q_lens": ints(4, -(2**31))}, ("q_lens[1]", "-2147483648")),
    ("attention", {"kv_lens": ints(2**31 - 1, 0)}, ("kv_lens[0]", "2147483647")),
    ("attention", {"kv_lens": ints(2**32 + 3, 3, dtype=I64)}, ("kv_lens[0]", "4294967299")),
    ("attention", {"q_lens": ints(3, -(2**32) + 2, dtype=I64)}, ("q_lens[1]", "-4294967294")),
    ("attention", {"q_segment_ids": np.full((B, T), 2**32, I64), "kv_segment_ids": np.zeros((B, S), I64)},
     ("q_segment_ids", "4294967296")),
    ("packed", {"q_starts": ints(0, 4, 3)}, ("q_starts", "fall", "4")),
    ("packed", {"kv_starts": ints(0, 5, 9)}, ("kv_starts", "9", "8 tokens")),
    ("packed", {"q_starts": ints(-1, 2, 6)}, ("q_starts[0]", "-1")),
    ("packed", {"kv_starts": ints(0, 5, 2**32 + 8, dtype=I64)}, ("kv_starts", "4294967304")),
    ("paged", {"kv_lens": ints(9, 3, 4)}, ("kv_lens[0]", "[0, 8]", "9")),
    ("paged", {"kv_lens": ints(8, -3, 4)}, ("kv_lens[1]", "-3")),
    ("paged", {"kv_lens": ints(8, 2**32 + 1, 4, dtype=I64)}, ("kv_lens[1]", "4294967297")),
    ("paged", {"page_indices": ints([0, 7], [2, -1], [3, -1])}, ("page_indices[0, 1]", "[0, 7)", "7")),
    ("paged", {"page_indices": ints([0, 1], [-1, -1], [3, -1])}, ("page_indices[1, 0]", "-1")),
    ("paged", {"page_indices": ints([0, 1], [2, -1], [2**32, -1], dtype=I64)}, ("page_indices[2, 0]", "4294967296")),
    ("paged", {"cu_q_lens": ints(0, 3, 2, 5)}, ("cu_q_lens", "fall", "3")),
    ("paged", {"cu_q_lens": ints(0, 1, 4, 6)}, ("cu_q_lens", "6", "5 rows")),
    ("paged", {"cu_q_lens": ints(-1, 1, 4, 5)}, ("cu_q_lens[0]", "-1")),
    ("paged", {"num_seqs": ints(4)}, ("num_seqs", "[0, 3]", "4")),
    ("paged", {"num_seqs": ints(-1)}, ("num_seqs", "-1")),
    ("append", {"page_indices": ints([0, 1], [2, -1], [99, -1])}, ("page_indices[2, 0]", "99")),
    ("append", {"kv_lens": ints(8, 3, 9)}, ("kv_lens[2]", "9")),
    ("append", {"cu_q_lens": ints(0, 1, 4, 3)}, ("cu_q_lens", "fall")),
    ("append", {"num_seqs": ints(9)}, ("num_seqs", "9")),
    ("append", {"kv_lens": ints(8, 2, 4)}, ("kv_lens[1] is 2", "3 new tokens")),
    ("append", {"kv_lens": ints(8, 2, 4, dtype=I64)}, ("kv_lens[1] is 2", "3 new tokens")),
]  # fmt: skip

BACKENDS = [name for name, reason in tw.backends().items() if reason is None]


def flat(x: Any) -> list[Any]:
    if isinstance(x, dict):
        return [y for value in x.values() for y in flat(value)]
    return [y for value in x for y in flat(value)] if isinstance(x, list | tuple) else [x]


def name_of(entry: tuple[str, dict[str, Any], tuple[str, ...]]) -> str:
    return f"{entry[0]}-{'-'.join(entry[1])}-{entry[2][0]}"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("entry", TABLE, ids=name_of)
def test_refused_with_the_values(entry: tuple[str, dict[str, Any], tuple[str, ...]], backend: str) -> None:
    call, wrong, words = entry
    function, good = CALLS[call]
    arguments = {**good(), **({} if call == "merge" else {"backend": backend}), **wrong}
    before = copy.deepcopy(arguments)
    with pytest.raises(tw.InvalidInput) as caught:
        function(**arguments)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert isinstance(caught.value, ValueError)
    for now, then in zip(flat(arguments), flat(before), strict=True):
        assert not isinstance(now, np.ndarray) or now.tobytes() == then.tobytes(), "an array was written"


def as_torch(x: Any) -> Any:
    """The same argument with PyTorch arrays."""
    if isinstance(x, tuple | list):
        return type(x)(as_torch(y) for y in x)
    return FRAMEWORKS["torch"].array(x) if isinstance(x, np.ndarray) else x


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("entry", TABLE, ids=name_of)
def test_refused_from_torch_too(entry: tuple[str, dict[str, Any], tuple[str, ...]], backend: str) -> None:
    require("torch")
    call, wrong, words = entry
    if any(isinstance(x, np.ndarray) and x.dtype.kind in "OU" for x in flat(wrong)):
        return  # PyTorch has no such array
    function, good = CALLS[call]
    arguments = {**good(), **({} if call == "merge" else {"backend": backend}), **wrong}
    arguments = {name: as_torch(x) for name, x in arguments.items()}
    with pytest.raises(tw.InvalidInput) as caught:
        function(**arguments)
    message = str(caught.value)
    assert all(word in message or word == "NumPy" for word in words), message


def test_the_table_is_long_and_the_good_calls_are_good() -> None:
    assert len(TABLE) >= 60
    for function, good in CALLS.values():
        function(**good(), **({} if function is tw.merge else {"backend": "composed"}))


@pytest.mark.parametrize("name", ["torch", "mlx.core"])
def test_frameworks_do_not_mix(name: str) -> None:
    module = require(name)
    other = {"torch": "from_numpy", "mlx.core": "array"}[name]
    other = operator.attrgetter(other)(module)
    with pytest.raises(tw.InvalidInput, match="k must be a NumPy array"):
        tw.attention(**{**dense(), "k": other(dense()["k"])})
    with pytest.raises(tw.InvalidInput, match="k"):
        tw.attention(**{**dense(), "q": other(dense()["q"])})
    with pytest.raises(tw.InvalidInput, match="kv_lens"):
        tw.ragged_paged_attention(**{**paged(), "kv_lens": other(paged()["kv_lens"])})


def test_jax_takes_numpy_as_its_own_functions_do() -> None:
    numpy = require("jax").numpy
    with pytest.raises(tw.InvalidInput, match="k must be a NumPy array"):
        tw.attention(**{**dense(), "k": numpy.array(dense()["k"])})
    out = tw.attention(**{**dense(), "q": numpy.array(dense()["q"])})
    assert type(out) is type(numpy.zeros(1))


def test_masked_arrays() -> None:
    with pytest.raises(tw.InvalidInput, match="q is a masked array"):
        tw.attention(**{**dense(), "q": np.ma.masked_array(dense()["q"])})


def test_read_only_pages() -> None:
    arguments = append()
    arguments["kv_pages"].flags.writeable = False
    for backend in BACKENDS:
        with pytest.raises(tw.InvalidInput, match="read-only"):
            tw.append_to_pages(**arguments, backend=backend)


def test_check_values_takes_any_framework() -> None:
    with pytest.raises(tw.InvalidInput, match=r"kv_lens\[1\].*7"):
        tw.check_values(kv_len=6, kv_lens=require("torch").tensor([1, 7]))
    with pytest.raises(tw.InvalidInput, match=r"q_starts must not fall"):
        tw.check_values(q_len=6, q_starts=require("jax").numpy.array([0, 4, 3]))
    tw.check_values(q_len=6, kv_len=6, q_lens=np.array([0, 6]), kv_starts=np.array([0, 3]))


@pytest.mark.parametrize("wrong", [
    {"q_starts": []}, {"kv_lens": 3}, {"kv_lens": [[1]]}, {"kv_lens": [1.5]}, {"page_indices": [[0]]},
    {"page_indices": [0], "kv_lens": [1], "cu_q_lens": [0, 1]}, {"q_lens": [[1], [1, 2]]},
    {"page_indices": [[0], [0]], "kv_lens": [1], "cu_q_lens": [0, 1, 2]},
    {"num_seqs": np.zeros(0, int), "page_indices": [[0]], "kv_lens": [1], "cu_q_lens": [0, 1]},
])  # fmt: skip
def test_check_values_refuses_in_words(wrong: dict[str, Any]) -> None:
    with pytest.raises(tw.InvalidInput, match=next(iter(wrong))):
        tw.check_values(**wrong)
