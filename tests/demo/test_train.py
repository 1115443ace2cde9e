"""The training demo: same weights, same batches, and a verdict that can fail."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tilewise.demo import train_demo
from tilewise.demo.small_gpt import GptSizes, training_text
from tilewise.demo.train_demo import TILEWISE, TORCH, run_train_demo

pytest.importorskip("torch")

SMALL = GptSizes(layers=2, width=32, heads=2, context=32)


def quiet() -> Console:
    return Console(file=io.StringIO(), width=120)


def test_curves_agree_and_learn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = run_train_demo(30, 0, sizes=SMALL, probes=4, plot=tmp_path / "curves.svg", console=quiet())
    assert (result.ok, result.exit_status) == (True, 0)
    assert result.losses[TILEWISE][0] == pytest.approx(result.losses[TORCH][0], rel=1e-6)
    assert result.losses[TILEWISE][-1] < result.losses[TILEWISE][0] - 1
    assert sorted({probe.step for probe in result.probes}) == [0, 9, 19, 29]
    assert (tmp_path / "curves.svg").stat().st_size > 1000


@pytest.mark.parametrize("wrong", ["q", "v"])
def test_a_wrong_attention_is_caught(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Off by one part in ten thousand: no eye would see it in the curve."""
    right = train_demo._attentions()
    factor = {"q": 1.0, "v": 1.0, wrong: 1.0001}

    def off(q: Any, k: Any, v: Any) -> Any:
        return right[TILEWISE](q * factor["q"], k, v * factor["v"])

    monkeypatch.setattr(train_demo, "_attentions", lambda: {**right, TILEWISE: off})
    assert run_train_demo(12, 0, sizes=SMALL, probes=3, console=quiet()).exit_status == 1


def test_the_text_is_real() -> None:
    text = training_text()
    assert len(text) > 100_000
    assert b'The "while" statement' in text


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="steps=0"):
        run_train_demo(0)
