"""Nothing that a command prints is wider than the terminal, in columns as a terminal counts them."""

from __future__ import annotations

import unicodedata

import pytest

from meshplan.cli.app import COMMANDS, run
from meshplan.report.screen import Screen
from meshplan.report.table import Column, table

ASK = "llama-3.1-8b --gpu h100-sxm --gpus 16 --seq 8192 --gbs 64"
PLAN = "--tp 2 --pp 2 --mbs 1"
LINES = (
    "", "rules", "rules seq-divides-cp", "doctor", "schema", "gpus", "gpus show h100-sxm", "models",
    "models show deepseek-v3", "handbook --top 3", "validate --by source,gpu --worst 5",
    f"plan {ASK} --what-if nic=2x", f"why {ASK}", f"why-not {ASK} --plan tp8,pp2", f"check {ASK} {PLAN}",
    f"estimate {ASK} {PLAN} --detail all", f"timeline {ASK} {PLAN}",
    "mesh --tp 8 --pp 2 --dp 4", "schedule 1f1b --ranks 4 --micro-batches 8 --timeline",
    "schedule --compare 1f1b,zb-h1 --ranks 4 --micro-batches 8",
    "scale llama-3.1-8b --gpu h100-sxm --gpus 16,32 --seq 8192 --gbs 64",
    *(f"{command.name} --help" for command in COMMANDS),
)  # fmt: skip


def columns(text: str) -> int:
    wide = {"W": 2, "F": 2}
    return sum(0 if unicodedata.combining(c) else wide.get(unicodedata.east_asian_width(c), 1) for c in text)


@pytest.mark.parametrize("width", [120, 60, 80])
@pytest.mark.parametrize("line", LINES)
def test_no_line_is_wider_than_the_terminal(line, width, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert run(line.split()) in (0, 1)
    out = capsys.readouterr().out
    assert out.strip()
    wide = [text for text in out.splitlines() if columns(text) > width]
    assert [text for text in wide if not _is_one_word(text)] == []


def _is_one_word(text: str) -> bool:
    """An address, or a path, may run over alone on its line."""
    return len(text.split()) == 1 and "/" in text


def test_wide_characters_count_twice_and_colours_not() -> None:
    """Each ideograph takes two columns (Unicode TR 11): five fit into ten."""
    assert Screen(width=10).text("显存显存显 显存") == "显存显存显\n  显存"
    assert Screen(width=4).text("\x1b[1mstep\x1b[0m") == "\x1b[1mstep\x1b[0m"


def test_texts_of_a_table_give_way_where_no_column_can_go() -> None:
    columns = [
        Column(title="plan", cells=["tp8 cp1 dp4 pp2", "tp4"]),
        Column(title="s", cells=["1", "2"], right=True),
    ]
    assert table(columns, 12) == ["plan       s", "tp8 cp1    1", "  dp4 pp2", "tp4        2"]
