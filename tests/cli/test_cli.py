"""The command line: exit codes, one-line errors, and what each command prints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tilewise
from tilewise.cli import run

DENSE = ["explain", "--q", "1x1000x8x64", "--kv", "1x1000x2x64"]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == tilewise.__version__


COMMANDS = ("demo", "doctor", "verify", "bench", "explain", "emit", "compile")


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--help"]) == 0
    assert "Usage: tilewise" in capsys.readouterr().out


def test_alone_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    assert "Usage: tilewise" in capsys.readouterr().out


def test_help_imports_no_framework() -> None:
    program = (
        "import sys; from tilewise.cli import run; run(['--help']);"
        "print(*sorted({'torch', 'jax', 'mlx', 'matplotlib', 'rich.console'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == ""


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["no-such-command"], 2, "No such command"),
        (["explain", "--q", "1x1x1x1"], 2, "Missing option"),
        (["explain", "--q", "1x2x3", "--kv", "1x2x3x4"], 2, "--q must be BxTxHxD"),
        (["explain", "--q", "1x4x4x8", "--kv", "1x4x3x8"], 2, "must be a multiple of kv heads"),
        ([*DENSE, "--window", "3"], 2, "--window must be LEFT,RIGHT"),
        ([*DENSE, "--window", "-3,0"], 2, "must be at least 0"),
        ([*DENSE, "--dtype", "int32"], 2, "int32"),
        ([*DENSE, "--framework", "tensorflow"], 2, "--framework must be"),
        (["explain", "--paged", "--q", "1x8x64", "--kv", "9x16x2x64", "--kv-scale", "row"], 2, "--kv-scale must be"),
        (["explain", "--packed", "--q", "4x8x64", "--kv", "9x2x64", "--sequence", "5:5"], 2, "there is room for 4"),
        (["explain", "--packed", "--q", "4x8x64", "--kv", "9x2x64", "--sequence", "5"], 2, "QUERIES:KEYS"),
        (["bench", "--work", "coffee"], 2, "--work must be one of"),
        (["bench", "--dtype", "float31"], 2, "--dtype must be one of"),
        (["bench", "--threads", "0"], 2, "--threads must be positive"),
        (["bench", "--read", "no/such/file.json"], 2, "no/such/file.json"),
        (["bench", "--read", __file__], 2, "not a file of benchmark rows"),
        (["bench", "--plot", "chart.txt"], 2, "--plot must end in"),
        (["demo", "--train", "--plot", "chart.txt"], 2, "--plot must end in"),
        ([*DENSE, "--out", "map"], 2, "--out must end in"),
        (["verify", "--backend", "abacus"], 2, "--backend must be one of"),
        (["verify", "--tag", "no such tag"], 2, "--tag must be one of"),
        (["verify", "--out", "no/such/folder/x.json"], 2, "a folder that exists"),
        (["bench", "--out", "no/such/folder/x.json"], 2, "a folder that exists"),
        (["bench", "--plot", "no/such/folder/x.png"], 2, "a folder that exists"),
        (["bench", "--backend", "abacus"], 2, "--backend must be one of"),
        (["demo", "--steps", "3"], 2, "--steps goes with --train"),
        (["demo", "--train", "--kv-dtype", "int8"], 2, "--kv-dtype goes without --train"),
        ([*DENSE, "--sequence", "3:4"], 2, "no --sequence"),
        ([*DENSE, "--draft", "3"], 2, "no --draft"),
        (["explain", "--packed", "--q", "4x8x64", "--kv", "9x2x64", "--bias"], 2, "no --bias"),
        (["demo", "--kv-dtype", "f8"], 2, "--kv-dtype must be one of"),
        (["demo", "--max-new-tokens", "0"], 2, "max-new-tokens"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == code
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("tilewise: ")
    assert words in line


def test_explain_names_every_backend(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*DENSE, "--causal", "--window", "255,0"]) == 0
    printed = capsys.readouterr().out
    assert "dense B1 T1000 S1000 H8/2 D64 float32, numpy on cpu" in printed
    for backend in tilewise.backends():
        assert f"{backend}: " in printed
    assert "· " in printed
    assert "▒" in printed


def test_explain_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    for ending, magic in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        path = tmp_path / f"map.{ending}"
        assert run([*DENSE, "--causal", "--out", str(path)]) == 0
        assert path.read_bytes().startswith(magic)
    assert "wrote" in capsys.readouterr().out


def test_explain_paged_and_packed(capsys: pytest.CaptureFixture[str]) -> None:
    paged = ["explain", "--paged", "--q", "300x8x64", "--kv", "200x16x2x64", "--page-dtype", "int8", "--kv-scale"]
    for scale in ("scalar", "head", "slot"):
        assert run([*paged, scale, "--sequence", "256:1000", "--sequence", "1:77"]) == 0
        assert "paged 300 tokens in 2 sequences" in capsys.readouterr().out
    packed = ["explain", "--packed", "--q", "300x8x64", "--kv", "400x2x64", "--v-dim", "32", "--causal"]
    assert run([*packed, "--sequence", "300:400"]) == 0
    printed = capsys.readouterr().out
    assert "packed" in printed
    assert "E32" in printed


def test_explain_equals_the_library() -> None:
    """Sizes on the command line describe the same call as arrays of those sizes."""
    import numpy as np

    from tilewise.cli import problem

    q, kv = np.zeros((1, 9, 8, 64), np.float32), np.zeros((1, 7, 2, 64), np.float32)
    by_sizes = problem.dense(
        "1x9x8x64", "1x7x2x64", None, dtype="float32", framework="numpy", device="cpu", bias=False, mask=False,
        sinks=False, segments=False, lens=False, layout="bthd", grad=False, causal=True, window=(3, None), scale=None,
        softcap=None,
    )  # fmt: skip
    assert by_sizes == tilewise.explain(q, kv, kv, causal=True, window=(3, None))


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    usable = any(reason is None for name, reason in tilewise.backends().items() if name != "composed")
    assert run(["doctor", "--json"]) == (0 if usable else 1)
    found = json.loads(capsys.readouterr().out)
    assert found["tilewise"] == tilewise.__version__
    assert found["backends"] == tilewise.backends()
    assert found["frameworks"]["numpy"]["note"] == "ready"
    run(["doctor"])
    assert "Backends" in capsys.readouterr().out


def test_doctor_imports_no_framework() -> None:
    program = (
        "import sys; from tilewise.cli import run; run(['doctor', '--json']);"
        "print(*sorted({'torch', 'jax', 'mlx'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == ""


def test_a_fault_within_the_demo_is_no_mistake_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewise.demo import serving_demo

    def broken(*arguments: object) -> None:
        raise ValueError("operands could not be broadcast together")

    monkeypatch.setattr(serving_demo, "run_serving_demo", broken)
    with pytest.raises(ValueError, match="broadcast"):
        run(["demo"])


def test_verify_writes_results(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                               monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """A few cases; the suite itself is run by tests/conformance."""
    from tilewise.testing import cases

    few = cases.select(["smoke"])[:3]
    monkeypatch.setattr(cases, "select", lambda tags: few)
    path = tmp_path / "results.json"
    assert run(["verify", "--backend", "composed", "--framework", "numpy", "--out", str(path)]) == 0
    results = json.loads(path.read_text())
    assert {result["status"] for result in results} == {"ok"}
    assert f"all {len(results)} checks passed" in capsys.readouterr().out


def test_verify_reports_failures(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewise.testing import cases, conform

    few = cases.select(["smoke"])[:2]
    monkeypatch.setattr(cases, "select", lambda tags: few)

    def wrong(case: object, pair: object) -> None:
        raise conform.Mismatch("out[0] is 1, not 2")

    monkeypatch.setattr(conform, "CHECKS", {"forward": (wrong, ("dense", "packed", "paged", "merge", "append"))})
    assert run(["verify", "--backend", "composed", "--framework", "numpy"]) == 1
    captured = capsys.readouterr()
    assert "out[0] is 1, not 2" in captured.out
    assert "2 of 2 checks failed" in captured.err
