"""Every command shown in the documentation runs, with the exit code the page says."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from meshplan.cli.app import COMMANDS

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(str(file.relative_to(DOCS)) for file in DOCS.rglob("*.md") if file.name != "validation.md")
ELSEWHERE = {
    "serve": "runs until it is ended; run in tests/web",
    "measure": "trains in PyTorch; run in tests/measure",
    "memory-check": "needs PyTorch; run with the oracle tests",
    "calibrate --processes": "times this machine; run in tests/calibrate",
    "calibrate --samples machine.samples.json --from": "reads a log of nccl-tests; run in tests/calibrate",
    "calibrate --from": "reads results of measure; run in tests/calibrate",
    "validate": "takes seconds and is held to its page in tests/validation",
}
"""Commands that are shown and not run here, and why."""


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / "_ext" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


commands = load("commands")
FENCE = commands.FENCE


def left_out(command: str) -> bool:
    return any(f"{command} ".startswith(f"meshplan {start} ") for start in ELSEWHERE)


def shown(page: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return [command for block in commands.blocks(text) for command in commands.shown_commands(block)]


WITH_COMMANDS = [page for page in PAGES if shown(page) and not page.startswith("zh/")]
"""Chinese pages show the same commands: ``test_docs_chinese``."""


def test_commands_are_found() -> None:
    every = [command for page in WITH_COMMANDS for command in shown(page)]
    assert len(set(every)) > 35
    assert {command.split()[1] for command in every} <= {command.name for command in COMMANDS}
    for start in ELSEWHERE:  # nothing is excused that is not shown
        assert any(f"{command} ".startswith(f"meshplan {start} ") for command in every), start


@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_every_command_runs(page: str, tmp_path: Path) -> None:
    # One test a page: later commands read what earlier ones wrote. Commands that stand on several pages
    # and leave no files are run once.
    ran = 0
    for block in commands.blocks((DOCS / page).read_text(encoding="utf-8")):
        if block.kind == "{write}":
            commands.write(block, tmp_path)
        elif block.kind == "{sample}":
            commands.put_sample(block, tmp_path)
        elif block.kind == "{show-file}":
            assert (tmp_path / block.argument).read_text(encoding="utf-8")
        for command in commands.shown_commands(block):
            if left_out(command):
                continue
            found = commands.run(command, tmp_path)
            assert found.code == int(block.options.get("exit", 0)), (command, found.text[-500:])
            assert found.text
            start = block.options.get("from")
            assert start is None or start in found.text, (command, start)
            ran += 1
    assert ran or all(map(left_out, shown(page)))


def test_commands_named_in_the_text_exist_and_run(tmp_path: Path) -> None:
    named = {
        " ".join(found.split())
        for page in PAGES
        for found in re.findall(
            r"`(meshplan [^`]+)`", FENCE.sub("", (DOCS / page).read_text(encoding="utf-8"))
        )
    }
    assert {command.split()[1] for command in named} <= {command.name for command in COMMANDS} | {"COMMAND"}
    whole = [c for c in named if "…" not in c and "COMMAND" not in c and not left_out(c)]
    whole = [c for c in whole if "results.jsonl" not in c]  # of measured runs; read in tests/calibrate
    runs = [c for c in whole if len(c.split()) > 2 or c.split()[1] in ("models", "rules", "handbook")]
    assert len(runs) >= 4
    for command in runs:
        assert commands.run(command, tmp_path).code == 0, command


def test_a_page_that_is_wrong_is_found(tmp_path: Path) -> None:
    page = (
        "```{run} meshplan plan llama-3.1-70b --gpus 7\n:exit: 1\n```\n\n"
        "```bash\nmeshplan gpus \\\n  list\npip install x\n```\n"
    )
    one, two = commands.blocks(page)
    assert (one.kind, one.options) == ("{run}", {"exit": "1"})
    assert commands.run(one.argument, tmp_path).code == 2
    assert commands.shown_commands(two) == ["meshplan gpus list"]
