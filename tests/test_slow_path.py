"""SlowPathWarning names the line of the caller, whatever call it is."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewise as tw
from tests.conftest import require
from tilewise.choose import backend_list, plan


def dense(q: Any) -> None:
    tw.attention(q[None], q[None], q[None])


def packed(q: Any) -> None:
    starts = np.array([0, len(q)], np.int32)
    tw.attention_packed(q, q, q, starts, starts)


def paged(q: Any) -> None:
    lens, table = np.array([len(q)], np.int32), np.array([[0]], np.int32)
    tw.ragged_paged_attention(q, np.zeros((1, 8, 4, 16), np.float32), lens, table, np.array([0, len(q)], np.int32))


@pytest.fixture
def no_fused_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_list, "FUSED", ())
    plan._make_plan.cache_clear()


@pytest.mark.usefixtures("no_fused_backend")
@pytest.mark.parametrize(("call", "width"), [(dense, 3), (packed, 5), (paged, 7)])
def test_the_line(call: Callable[[Any], None], width: int) -> None:
    q = np.zeros((width, 2, 16), np.float32)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call(q)
    lines, first = inspect.getsourcelines(call)
    (warning,) = [w for w in found if w.category is tw.SlowPathWarning]
    assert warning.filename == __file__
    assert first < warning.lineno < first + len(lines)


@pytest.mark.usefixtures("no_fused_backend")
def test_the_line_of_a_call_that_wants_gradients() -> None:
    torch = require("torch")
    q = torch.zeros(11, 2, 16, requires_grad=True)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        dense(q)
    assert [w.filename for w in found if w.category is tw.SlowPathWarning] == [__file__]
