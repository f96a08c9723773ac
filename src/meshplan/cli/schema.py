"""``meshplan schema``: the JSON schema of what commands print with ``--json``."""

import json
from importlib import resources

import cyclopts

from meshplan.cli.help import HelpFormatter
from meshplan.cli.options import Json
from meshplan.errors import UnknownNameError
from meshplan.report.parts import wrap
from meshplan.report.screen import Screen

app = cyclopts.App(
    name="schema", help_formatter=HelpFormatter(), usage="Usage: meshplan schema [OPTIONS] [COMMAND]"
)


@app.default
def schema(command: str | None = None, /, *, json_: Json = False) -> int:
    """Print the JSON schema of a command's --json, or list the commands that have one.

    Keys end in their unit: _s seconds, _bytes bytes, _per_s a second. Errors are an object with error and
    exit_code, on standard error.

    Parameters
    ----------
    command
        plan, estimate …; models-show for `meshplan models show`.
    """
    names = schema_names()
    if command is None:
        if json_:
            print(json.dumps({"schema_version": 1, "commands": list(names)}, indent=2))
        else:
            width, screen = max(map(len, names)), Screen.of()
            for name in names:
                line = f"{name:<{width}}  {_read(name)['description']}"
                print("\n".join(wrap(line, screen.width, " " * (width + 2))))
        return 0
    if command not in names:
        raise UnknownNameError("schema", command, names, f"known: {', '.join(names)}")
    print(json.dumps(_read(command), indent=2))
    return 0


def schema_names() -> tuple[str, ...]:
    """Commands with a schema."""
    folder = resources.files("meshplan.cli") / "schemas"
    return tuple(sorted(f.name.removesuffix(".json") for f in folder.iterdir() if f.name.endswith(".json")))


def _read(name: str) -> dict[str, object]:
    text = (resources.files("meshplan.cli") / "schemas" / f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, object] = json.loads(text)
    return found
