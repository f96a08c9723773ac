"""``meshplan trace``: where the steps of a profiled run went."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import cyclopts
from cyclopts import Parameter

from meshplan.cli.help import HelpFormatter
from meshplan.cli.options import Json
from meshplan.errors import InputError, shown
from meshplan.files import read_text
from meshplan.report.screen import Screen
from meshplan.report.trace_view import trace_data, trace_text
from meshplan.trace.breakdown import read_traces

app = cyclopts.App(
    name="trace", help_formatter=HelpFormatter(), usage="Usage: meshplan trace [OPTIONS] FILES..."
)
SUFFIXES = (".json", ".json.gz", ".pt.trace.json", ".pt.trace.json.gz")


@app.default
def trace(
    *files: Path,
    against: Annotated[
        str | None,
        Parameter(
            name=("--against", "--plan"),
            metavar="FILE",
            help="Hold this beside it: what `meshplan estimate --json` printed of the plan that ran. Both"
            " names mean the same.",
        ),
    ] = None,
    json_: Json = False,
) -> int:
    """Read PyTorch profiler traces, one a rank: computing, transfers exposed and hidden, waiting, idle.

    Parameters
    ----------
    files
        Chrome traces (.json, .json.gz) of any framework, or folders of them; streamed, of any size.
    """
    paths = [p for f in files for p in _traces(f)]
    if not paths:
        raise InputError("no trace files are given; see `meshplan trace --help`")
    data = trace_data(read_traces(paths), None if against is None else _estimate(against))
    if json_:
        print(json.dumps(data, indent=2, allow_nan=False))
    else:
        sys.stdout.write(trace_text(data, Screen.of()))
    return 0


def _traces(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(p for p in path.iterdir() if p.name.endswith(SUFFIXES) and "trace" in p.name)
    if not found:
        raise InputError(f"folder {shown(path, 200)} holds no traces (files with 'trace' in their name)")
    return found


def _estimate(path: str) -> dict[str, Any]:
    try:
        data = json.loads(read_text(path, what="estimate"))
    except json.JSONDecodeError as error:
        raise InputError(f"estimate {shown(path, 200)} is not JSON: {error.msg}") from None
    if not isinstance(data, dict) or "step_s" not in data or not isinstance(data.get("time"), dict):
        raise InputError(f"estimate {shown(path, 200)} is not what `meshplan estimate --json` prints")
    return data
