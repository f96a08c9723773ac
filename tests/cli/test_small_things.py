"""What people type by habit, and what is easily overlooked: a sentence or a note each."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshplan.cli import main

SMALL = ["llama-2-7b", "--gpu", "h100-sxm", "--gpus", "8", "--seq", "4096", "--gbs", "64"]


def said(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> tuple[str, str]:
    assert main(list(argv)) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_help_is_a_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "help") == said(capsys, "--help")
    assert said(capsys, "help", "check") == said(capsys, "check", "--help")


def test_json_and_csv_contradict(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = said(capsys, "plan", *SMALL, "--json", "--format", "csv", code=2)
    assert out == ""
    assert json.loads(err)["error"] == "--json and --format csv contradict each other; drop one"


def test_a_sequence_longer_than_the_model_was_made_for_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    long = [*SMALL[:-3], "32768", "--gbs", "8", "--tp", "8"]
    note = "seq 32,768 is longer than the 4,096 positions that llama-2-7b was made for"
    for command in ("plan", "estimate"):
        out, _ = said(capsys, command, *long)
        assert f"note: {note}" in out
        out, _ = said(capsys, command, *long, "--json")
        assert note in json.loads(out)["assumptions"]
        out, _ = said(capsys, command, *SMALL, "--tp", "8")
        assert "longer than" not in out


def test_a_key_given_twice_in_a_configuration(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "llama", "hidden_size": 4096, "hidden_size": 8192}')
    _, err = said(capsys, "plan", str(config), *SMALL[1:], code=2)
    assert err.endswith("gives 'hidden_size' twice; keep one\n")


@pytest.mark.parametrize("mark", ["[", "{a: ", "- "])
def test_deeply_nested_job_files_are_refused_in_no_time(
    mark: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"model: {mark * 100_000}" if mark != "- " else mark * 100_000)
    start = time.process_time()
    _, err = said(capsys, "plan", str(job), code=2)
    assert "nested more than 50 deep at line 1" in err
    assert time.process_time() - start < 2


def test_an_interrupt_while_starting_is_130() -> None:
    code = (
        "import sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'cyclopts': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "from meshplan.cli import main\n"
        "sys.exit(main(['plan']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


@pytest.mark.parametrize("layout", ["layout14.18", "layout=14.18", "layout14.18x1"])
def test_a_layout_in_the_text_of_a_plan(layout: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, "why-not", *SMALL, "--plan", f"tp2,pp2,{layout}", "--json")
    by_flag, _ = said(capsys, "why-not", *SMALL, "--plan", "tp2,pp2", "--layout", "14,18", "--json")
    assert json.loads(out)["plan"]["layout"] == [14, 18]
    assert out == by_flag


def test_why_not_within_what_a_framework_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    """torchtitan has no ZeRO-1 and wants tp to divide the KV heads (torchtitan docs/fsdp.md, decoder.py)."""
    run = ["llama-3.1-8b", *SMALL[1:]]
    out, _ = said(capsys, "why-not", *run, "--tp", "2", "--framework", "torchtitan", "--json")
    assert json.loads(out)["plan"]["sharding"] == "zero3"
    out, _ = said(capsys, "why-not", *run, "--tp", "2", "--json")
    assert json.loads(out)["plan"]["sharding"] == "zero1"


def test_a_miss_that_nobody_would_want_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """Of this question all that does not fit is pipelines whose few micro-batches never fill them."""
    long = [*SMALL[:-3], "32768", "--gbs", "8"]
    out, _ = said(capsys, "plan", *long, "--json")
    data = json.loads(out)
    assert data["closest_miss"]["step_s"] > 2 * data["plans"][0]["step_s"]
    out, _ = said(capsys, "plan", *long)
    assert "closest miss" not in out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--html", "."), "cannot write '.': it is a folder"),
        (("--html", "no/such/report.html"), "no such file or directory"),
        (("--svg", "here"), "cannot make folder 'here': a file of that name is there"),
    ],
)
def test_a_report_that_cannot_be_written_is_refused_before_the_search(
    flags: tuple[str, str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here").touch()
    out, err = said(capsys, "plan", *SMALL, *flags, code=2)
    assert (out, words in err) == ("", True)


@pytest.mark.parametrize(("command", "name"), [("models", "llama-3.1-8b"), ("gpus", "H100")])
def test_a_name_behind_a_list_shows_that_one(command, name, capsys):
    assert main([command, "show", name]) == 0
    shown = capsys.readouterr().out
    assert main([command, name]) == 0
    assert capsys.readouterr().out == shown
