"""``meshplan completion``: what a shell needs to complete meshplan's command lines."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import cyclopts
from cyclopts import Parameter
from cyclopts.completion import ShellDetectionError

from meshplan.cli.help import HelpFormatter
from meshplan.errors import InputError
from meshplan.files import write_text
from meshplan.plan.kinds import Schedule

app = cyclopts.App(
    name="completion", help_formatter=HelpFormatter(), usage="Usage: meshplan completion [OPTIONS] [SHELL]"
)

Shell = Literal["bash", "zsh", "fish", "powershell"]


@app.default
def completion(
    shell: Shell | None = None, /, *, install: Annotated[bool, Parameter(negative=())] = False
) -> int:
    """Print the completion script of a shell, to be sourced; --install puts it where the shell looks.

    Parameters
    ----------
    shell
        The running shell unless given.
    install
        Write it into the home folder, without touching the shell's start-up file.
    """
    from meshplan.cli.app import build

    root = build()
    try:
        script = _labelled(root.generate_completion(prog_name="meshplan", shell=shell))
        if install:
            path = root.install_completion(shell=shell, add_to_startup=False)
            write_text(path, script)
            print(_shown(path))
        else:
            sys.stdout.write(script)
    except ShellDetectionError:
        raise InputError("cannot tell which shell this is; name it: bash, zsh, fish, powershell") from None
    except OSError as error:
        raise InputError(f"cannot write the completion script: {error.strerror or error}") from None
    return 0


def _labelled(script: str) -> str:
    """The script with schedules as the command line spells them; cyclopts makes words of their names."""
    for schedule in Schedule:
        script = script.replace(schedule.name.lower().replace("_", "-"), schedule.label)
    return script


def _shown(path: Path) -> str:
    home = str(Path.home())
    return str(path).replace(home, "~", 1) if home != "/" else str(path)
