"""The benchmarks measure what they say; figures themselves are not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require
from tilewise.bench import WORKS, goals, machine, runner
from tilewise.bench.row import OURS, Row
from tilewise.bench.settings import Settings
from tilewise.bench.worker import module
from tilewise.cli import run
from tilewise.errors import InvalidInput
from tilewise.testing.timing import Timings, interleave

ROOT = Path(__file__).parents[2]
TINY = Settings(threads=1, quick=True, backend="composed")


def _row(seconds: float = 0.5) -> Row:
    timings = Timings({OURS: [seconds] * 4, "rival": [2 * seconds] * 4}, "cpu")
    row = Row.of("forward", "D 64", "float32", 1, timings, flops=1e9, bytes=1e6, peak_flops=4e9)
    row.add("x rival", timings.ratio("rival", OURS), goals.Goal(1.5, 3))
    row.add_ceiling()
    return row


def test_interleave_takes_turns() -> None:
    order: list[str] = []
    calls = {name: (lambda name=name: order.append(name)) for name in ("a", "b")}
    timings = interleave(calls, clock="wall", rounds=3, turn=0.0)
    assert order[-6:] == ["a", "b", "b", "a", "a", "b"]  # neither always meets the cache that the other left
    assert len(timings.seconds["a"]) == 3


def test_ratio_is_taken_round_by_round() -> None:
    timings = Timings({"slow": [2.0, 20.0, 2.0], "fast": [1.0, 10.0, 1.0]}, "wall")
    assert timings.ratio("slow", "fast") == 2
    assert timings.median("slow") == 2
    assert timings.best("slow") == 2


def test_every_work_has_cases_without_importing_a_framework() -> None:
    program = (
        "import sys\nfrom tilewise.bench import WORKS\nfrom tilewise.bench.settings import Settings\n"
        "from tilewise.bench.worker import module\n"
        "for work in WORKS:\n    assert module(work).cases(Settings(threads=2)), work\n"
        "print(*{'torch', 'jax', 'mlx'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_goals_of_another_machine_are_not_judged() -> None:
    assert goals.goal("forward float32 full", "v4_bf16") == goals.Goal(2.2, 2.6)
    assert goals.goal("forward float32 full", "v3") == goals.Goal(1.1)
    stated_elsewhere = goals.goal("backward float32", "v3")
    assert stated_elsewhere is not None
    assert not stated_elsewhere.applies
    assert goals.goal("no such goal", "v4_bf16") is None


@pytest.mark.parametrize(
    ("level", "vendor", "flags", "kind"),
    [
        ("v4_bf16", "AuthenticAMD", "avx512f avx512_bf16", "v4_bf16"),
        ("v4_bf16", "GenuineIntel", "avx512f avx512_bf16", "v4_bf16 among other rivals"),
        ("v4_bf16", "AuthenticAMD", "avx512f amx_tile", "v4_bf16 among other rivals"),
        ("v3", "AuthenticAMD", "avx2 fma", "v3"),
        ("v3", "GenuineIntel", "avx2 fma avx512f", "v3 among other rivals"),
        ("v4", "GenuineIntel", "avx512f amx_tile", "v4"),
    ],
)
def test_bars_hold_only_beside_the_rivals_that_they_speak_of(
    level: str, vendor: str, flags: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "level", lambda: level)
    monkeypatch.setattr(machine.library, "cpu_info", lambda: {"vendor_id": vendor, "flags": flags})
    assert machine.kind() == kind
    stated = goals.goal("forward float32 full", kind)
    assert stated is not None
    assert stated.applies == (kind in ("v4_bf16", "v3"))
    assert stated.bar == (1.1 if level == "v3" else 2.2)
    everywhere = goals.goal("memory", kind)
    assert everywhere is not None
    assert everywhere.applies


def test_paged_decode_outgrows_the_last_level_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    paged = module("paged")
    for cache in (0, 32 << 20, 320 << 20):
        monkeypatch.setattr(machine, "last_level_cache", lambda cache=cache: cache)
        largest = paged.cases(Settings())[-1]
        assert largest.page_dtype != "bfloat16"
        assert largest.batch * largest.length * 8 * 128 * 2 >= max(64e6, 2 * cache)


def test_rows_travel_as_json(tmp_path: Path) -> None:
    rows = [_row(), _row(0.25)]
    path = tmp_path / "results.json"
    runner.save(path, rows, TINY, "tilewise bench")
    document, loaded = runner.load(path)
    assert loaded == rows
    assert document["command"] == "tilewise bench"
    assert document["machine"]["cpu"]
    assert [result.passed for result in loaded[0].results] == [True, None]
    assert loaded[0].results[1].value == pytest.approx(50)


def test_show_compare_and_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    runner.save(before, [_row()], TINY, "")
    runner.save(after, [_row(0.25)], TINY, "")
    assert run(["bench", "--read", str(after), "--check"]) == 0
    assert "1 of 1 bars reached" in capsys.readouterr().out
    compare = [sys.executable, str(ROOT / "benchmarks/compare.py"), "--worse-than", "1.1"]
    faster = subprocess.run([*compare, str(before), str(after)], capture_output=True, text=True)
    assert faster.returncode == 0, faster.stderr
    assert "2.000" in faster.stdout
    assert subprocess.run([*compare, str(after), str(before)], capture_output=True).returncode == 1
    require("matplotlib")
    assert run(["bench", "--read", str(after), "--plot", str(tmp_path / "chart.svg")]) == 0
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == ["chart-rivals-1.svg", "chart-roofline-1.svg"]


def test_a_missed_bar_fails_the_check(tmp_path: Path) -> None:
    row = _row()
    row.add("x rival", 1.0, goals.Goal(1.5))
    path = tmp_path / "results.json"
    runner.save(path, [row], TINY, "")
    assert run(["bench", "--read", str(path), "--check"]) == 1


def test_a_worker_that_dies_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "unused", sys)
    settings = Settings(quick=True, backend="no such backend")
    with pytest.raises(runner.BenchmarkFailed, match="no such backend"):
        list(runner.rows(["memory"], [1], settings, lambda work, threads: None))


def test_rows_before_a_failure_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                        capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    def rows(*arguments: object) -> Iterator[Row]:
        yield _row()
        raise runner.BenchmarkFailed("the second worker died")

    monkeypatch.setattr(runner, "rows", rows)
    path = tmp_path / "rows.json"
    assert run(["bench", "--work", "memory", "--out", str(path)]) == 1
    assert "the second worker died" in capsys.readouterr().err
    assert len(runner.load(path)[1]) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"machine": {}, "rows": []}', '{"machine": {}, "rows": [1]}'])
def test_what_is_no_file_of_rows_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=r"rows\.json is not a file of benchmark rows"):
        runner.load(path)


def test_features_are_measured_with_what_they_name() -> None:
    require("torch")
    options = module("features").options
    assert options("soft cap 30", 8, "float32") == {"softcap": 30.0}
    assert set(options("segments, 4 documents", 8, "float32")) == {"q_segment_ids", "kv_segment_ids"}
    assert options("bias", 8, "bfloat16")["bias"].shape == (1, 8, 8, 8)


@pytest.mark.parametrize("work", ["paged", "mixed", "window"])
def test_rivals_compute_the_same(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small forms of the works whose rivals are written by hand; `difference` is between ours and theirs."""
    require("torch")
    found = module(work)
    case = {
        "paged": lambda: found.Case("bfloat16", 2, 64),
        "mixed": lambda: found.Case("float32", (300,), 2),
        "window": lambda: found.Case("float32", 300),
    }[work]()
    backend = "cpu" if _cpu() else "composed"
    row = found.measure(case, Settings(quick=True, backend=backend))
    assert row.difference is not None
    assert row.difference < (0.03 if row.dtype == "bfloat16" else 1e-5)


def test_json_of_a_row_is_plain() -> None:
    assert json.loads(json.dumps(_row().as_json()))["seconds"][OURS] == 0.5


def _cpu() -> bool:
    from tilewise.backends.cpu import library

    return library.missing() is None


def test_works_are_all_named() -> None:
    files = {path.stem for path in (ROOT / "src/tilewise/bench/works").glob("*.py")}
    assert set(WORKS) == files - {"__init__", "inputs", "pages"}


def test_summary_has_a_line_for_each_bar(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    runner.save(path, [_row(), _row(1.0)], TINY, "")
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/summary.py"), str(path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[2:] == ["| forward f32 | 1 | x rival | 2.00 | 2.00 | 2.00 | 1.5 | 2 of 2 |"]


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks/results").glob("*.json")), ids=lambda path: path.stem)
def test_quoted_results_can_be_read(path: Path) -> None:
    document, rows = runner.load(path)
    assert rows
    assert {"machine", "date", "command"} <= set(document)
    assert not document["quick"]
