"""explain() names the tiles of the kernel that runs: those that native/ is compiled with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewise as tw
from tests.conftest import require
from tilewise.backends.cpu import library, tiles

NATIVE = Path(__file__).parents[3] / "src" / "tilewise" / "backends" / "cpu" / "native"


def constant(file: str, name: str) -> int:
    """The last number of `name = ...` in a source of native/."""
    found = re.search(rf"\b{name} = ([^,;]+)[,;]", (NATIVE / file).read_text())
    assert found is not None, f"{file} has no {name}"
    return int(found[1].split()[-1])


def test_constants_are_those_of_the_kernels() -> None:
    assert (constant("forward_block.hpp", "kQueryBlock"), constant("forward_block.hpp", "kKeyBlock")) == tiles.BLOCK
    assert constant("forward_block.hpp", "kFewQueries") == tiles.FEW_ROWS
    gradients = (constant("backward_block.hpp", f"k(?:Grad)?{side}Block") for side in ("Query", "Key"))
    assert tuple(gradients) == tiles.GRADIENT_BLOCK
    assert (constant("decode.hpp", "kDecodeRows"), constant("decode.hpp", "kDecodeKeys")) == tiles.DECODE_BLOCK
    assert constant("paged.cpp", "kRowsInPlace") == tiles.ROWS_IN_PLACE


def dense(q_len: int) -> str:
    q, k = np.zeros((1, q_len, 8, 16), np.float32), np.zeros((1, 300, 2, 16), np.float32)
    return str(tw.explain(q, k, k))


def paged(tokens: int, dtype: Any = np.float32) -> str:
    q, pages = np.zeros((tokens, 8, 16), dtype), np.zeros((3, 4, 4, 16), dtype)
    lens, table, starts = (np.array(x, np.int32) for x in ([9], [[0, 1, 2]], [0, tokens]))
    return str(tw.explain_paged(q, pages, lens, table, starts))


@pytest.mark.skipif(library.missing() is not None, reason="no compiled module for this CPU")
def test_what_explain_says() -> None:
    assert "cpu: yes, tiles of 96 queries x 256 keys\n" in dense(40)
    assert "cpu: yes, tiles of 8 queries x 256 keys\n" in dense(2)
    assert "cpu: yes, tiles of 8 queries x 64 keys\n" in paged(1)
    assert "cpu: yes, tiles of 96 queries x 256 keys (decode: 8 x 64)\n" in paged(9)
    assert "cpu: yes\n" in paged(9, np.float64)


@pytest.mark.skipif(library.missing() is not None, reason="no compiled module for this CPU")
def test_gradients_have_tiles_of_their_own() -> None:
    torch = require("torch")
    q = torch.zeros(1, 40, 2, 16, requires_grad=True)
    assert "cpu: yes, tiles of 96 queries x 256 keys, backward 128 x 128\n" in str(tw.explain(q, q, q))
