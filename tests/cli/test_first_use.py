"""What somebody meets in the first hour: pipes, interrupts, jobs of phases."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from meshplan.cli import main
from meshplan.cli.progress import hush, note, progress

ROOT = Path(__file__).parents[2]
PHASES = str(ROOT / "examples" / "deepseek-v3.yaml")
LLAMA = "llama-3.1-8b --gpu h100-sxm --gpus 8 --seq 4096 --gbs 64"


class Terminal:
    """Standard error that is a terminal."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def test_a_reader_that_stops_early_is_no_error() -> None:
    run = subprocess.Popen(
        [sys.executable, "-m", "meshplan", "plan", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert run.stdout is not None
    assert run.stderr is not None
    run.stdout.close()  # before anything is written
    err = run.stderr.read()
    run.stderr.close()
    assert (run.wait(), err) == (0, b"")


def test_the_entry_point_is_light() -> None:
    """An interrupt is a traceback until ``main`` runs: what it imports first must be next to nothing."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import meshplan.cli;"
        " print([m for m in ('typing', 'importlib', 'json', 'numpy', 'cyclopts') if m in sys.modules])"
    )
    args = [sys.executable, "-I", "-S", "-c", code, str(ROOT / "src")]
    assert subprocess.run(args, capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(("terminal", "as_json", "told"), [(True, False, True), (True, True, False)])
def test_progress_is_for_terminals(
    terminal: bool, as_json: bool, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("meshplan.cli.progress.QUIET_S", -1.0)
    monkeypatch.delenv("MESHPLAN_NO_PROGRESS", raising=False)
    hush(as_json)
    try:
        progress()("plans priced")
    finally:
        hush(False)
    assert (screen.text == "(plans priced)\n") is told


def test_no_progress_into_files(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("meshplan.cli.progress.QUIET_S", -1.0)
    monkeypatch.delenv("MESHPLAN_NO_PROGRESS", raising=False)
    progress()("plans priced")
    assert capsys.readouterr().err == ""
    note("read twice")
    assert capsys.readouterr().err == "note: read twice\n"


def test_sequence_parallel_takes_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["plan", *LLAMA.split(), "--tp", "2", "--pp", "1", "--json"]
    for words, used in (("off", {False}), ("on", {True}), ("on,off", {True, False})):
        assert main([*ask, "--sp", words, "--top", "50"]) == 0
        assert {plan["sp"] for plan in json.loads(capsys.readouterr().out)["plans"]} == used


def test_phases_have_no_single_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", PHASES, "--json"])
    saved = tmp_path / "phases.json"
    saved.write_text(capsys.readouterr().out, encoding="utf-8")
    assert main(["report", str(saved), "--out", str(tmp_path / "a.html")]) == 2
    assert "a job of phases has no single report" in capsys.readouterr().err
    assert main(["plan", PHASES, "--html", str(tmp_path / "b.html")]) == 2
    assert "--html shows one ranking" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.html"))


def test_other_commands_say_that_they_leave_phases_out(capsys: pytest.CaptureFixture[str]) -> None:
    plan = ["--pp", "16", "--ep", "64", "--stack", "deepseek-v3"]
    main(["estimate", PHASES, *plan, "--json"])
    first = capsys.readouterr().err.splitlines()[0]
    assert "has phases, which `meshplan plan` alone reads" in json.loads(first)["note"]
    main(["check", PHASES, *plan[:4]])
    assert capsys.readouterr().err.startswith("note: job file")
