"""The commands, and how a run of any of them ends: exit codes and one-sentence errors."""

import errno
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import cyclopts

import meshplan
from meshplan.cli.help import HelpFormatter
from meshplan.cli.progress import hush
from meshplan.cli.sentences import sentence
from meshplan.errors import MeshplanError
from meshplan.report.screen import printable
from meshplan.units import one_is_singular

BUG = 70
"""Exit code of a bug (``EX_SOFTWARE`` of sysexits.h)."""
INTERRUPTED = 130


class Command(NamedTuple):
    """A command's name, where its cyclopts app lives (imported when it is used), and its line of help."""

    name: str
    app: str
    help: str


COMMANDS = (
    Command("plan", "meshplan.cli.plan:app", "Rank the ways to lay a training run out over GPUs."),
    Command("estimate", "meshplan.cli.estimate:app", "Price one plan in full: time, memory, evidence."),
    Command("why", "meshplan.cli.why:app", "Say why one plan is better than another."),
    Command("why-not", "meshplan.cli.why_not:app", "Say what stands against a plan, and what would work."),
    Command("scale", "meshplan.cli.scale:app", "Find the best plan as the GPUs grow."),
    Command("check", "meshplan.cli.check:app", "The rules a plan breaks, and near plans that break none."),
    Command("rules", "meshplan.cli.rules:app", "What makes a plan valid, by framework, with sources."),
    Command("report", "meshplan.cli.report:app", "Make one HTML file of a saved answer, or its pictures."),
    Command("serve", "meshplan.cli.serve:app", "Open a local page to plan on (extra 'web')."),
    Command("validate", "meshplan.cli.validate:app", "Hold the cost model against measured training runs."),
    Command("export", "meshplan.cli.export:app", "Write launch files for a framework."),
    Command(
        "read", "meshplan.cli.read:app", "Read a launch script: what it will do, and what would be better."
    ),
    Command("mfu", "meshplan.cli.mfu:app", "Say what a measured speed is as MFU, by convention."),
    Command("models", "meshplan.cli.models:app", "List model presets; show what a model is made of."),
    Command("gpus", "meshplan.cli.gpus:app", "List GPU presets; show one with the source of each number."),
    Command("mesh", "meshplan.cli.mesh:app", "Which ranks form which group, drawn with node boundaries."),
    Command("timeline", "meshplan.cli.timeline:app", "Show what every rank of a plan does over a step."),
    Command("schedule", "meshplan.cli.schedule:app", "Simulate a pipeline schedule with given durations."),
    Command("measure", "meshplan.cli.measure:app", "Run plans in PyTorch; rank them by what was measured."),
    Command("calibrate", "meshplan.cli.calibrate:app", "Measure this machine into a cluster file."),
    Command("trace", "meshplan.cli.trace:app", "Where the steps of a profiled run went, rank by rank."),
    Command(
        "memory-check",
        "meshplan.cli.memory_check:app",
        "Hold the memory model against a real PyTorch module under fake tensors.",
    ),
    Command("schema", "meshplan.cli.schema:app", "The JSON schema of what a command prints with --json."),
    Command("doctor", "meshplan.cli.doctor:app", "Versions, GPUs and settings, for a bug report."),
    Command("completion", "meshplan.cli.completion:app", "Print or install completion for a shell."),
    Command(
        "handbook", "meshplan.cli.handbook:app", "The textbook model's five scenarios, all plans ranked."
    ),
)


def build() -> cyclopts.App:
    """The root app; no command's module is imported yet."""
    app = cyclopts.App(
        name="meshplan",
        version=f"meshplan {meshplan.__version__}",
        help="Plan how to lay an LLM training run out over GPUs.",
        help_formatter=HelpFormatter(),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for command in COMMANDS:
        app.command(command.app, name=command.name)
    return app


def run(argv: list[str]) -> int:
    """Run one command line; every way it can end becomes an exit code."""
    wants_json = _wants_json(argv)
    hush(wants_json)
    if sys.stdout is None:  # closed by whoever started us
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    _tolerate_narrow_encodings()
    code = 0
    try:
        code = _dispatch(argv)
        sys.stdout.flush()
    except (cyclopts.CycloptsError, MeshplanError) as error:
        code = getattr(error, "exit_code", 2)
        text = str(error) if isinstance(error, MeshplanError) else sentence(error)
        _complain(text, code, wants_json)
    except KeyboardInterrupt:
        code = INTERRUPTED
        _complain("interrupted", code, wants_json)
    except BrokenPipeError:  # the reader (head, less) has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except SystemExit as stop:  # what rich, which prints the help, makes of a broken pipe
        if not isinstance(stop.__context__, BrokenPipeError):
            raise
    except Exception as error:  # the outermost frame: a bug ends as a sentence too
        if _was_interrupted(error):
            _complain("interrupted", INTERRUPTED, wants_json)
            return INTERRUPTED
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            _complain("cannot write the output: no space left on the device", 2, wants_json)
            return 2
        if os.environ.get("MESHPLAN_DEBUG") == "1":
            raise
        code = BUG
        what = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        _complain(
            f"a bug in meshplan {meshplan.__version__} ({what}); please report it with the command line"
            " and what MESHPLAN_DEBUG=1 prints",
            code,
            wants_json,
        )
    return code


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether a keyboard interrupt is behind an error, as where it met the making of a class."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _dispatch(argv: list[str]) -> int:
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    if argv in ([], ["--help"], ["-h"]):  # cyclopts would import every command for this
        sys.stdout.write(_root_help())
        return 0
    if argv[:1] == ["report"]:  # cyclopts takes a lone dash for an option
        argv = ["/dev/stdin" if word == "-" else word for word in argv]
    console = None
    if not {"--help", "-h"}.isdisjoint(argv):  # one of its own: cyclopts keeps the width it saw first
        from rich.console import Console

        console = Console()
    result = build()(argv, console=console, exit_on_error=False, print_error=False)
    return result if isinstance(result, int) else 0


def _root_help() -> str:
    width = max(len(name) for name in (*(c.name for c in COMMANDS), "--version"))
    lines = [
        "Usage: meshplan COMMAND [OPTIONS]",
        "",
        "Plan how to lay an LLM training run out over GPUs.",
        "",
        "Commands:",
        *(line for c in COMMANDS for line in _listed(c.name, width, c.help)),
        "",
        "Options:",
        *_listed("--help", width, "Show this, or a command's own help after its name; as `meshplan help`."),
        f"  {'--version':<{width}}  Show the version.",
        "",
    ]
    return "\n".join(lines)


def _listed(name: str, width: int, text: str) -> list[str]:
    """A name and what it is, in the columns of the terminal."""
    columns = max(shutil.get_terminal_size((100, 24)).columns, 40)
    return textwrap.wrap(
        f"  {name:<{width}}  {text}", columns, subsequent_indent=" " * (width + 4), break_on_hyphens=False
    )


def _complain(text: str, code: int, wants_json: bool) -> None:
    """One line on standard error: a sentence, or with ``--json`` an object.

    What was typed may stand in it, so that nothing in it may steer a terminal.
    """
    text = one_is_singular(printable(text))
    line = json.dumps({"error": text, "exit_code": code}) if wants_json else f"error: {text}"
    encoding = sys.stderr.encoding or "utf-8"
    print(line.encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr)


def _wants_json(argv: list[str]) -> bool:
    return not {"--json", "--format=json"}.isdisjoint(argv) or ("--format", "json") in pairwise(argv)


def _tolerate_narrow_encodings() -> None:
    """A terminal that cannot show a character gets a ``?``, not a crash."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Callable[..., None] | None = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
