"""``meshplan serve``: the local page."""

import importlib
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from meshplan.cli.help import HelpFormatter
from meshplan.cli.options import option, read_count
from meshplan.errors import InputError

app = cyclopts.App(name="serve", help_formatter=HelpFormatter())

PORT = 8571
Flag = Annotated[bool, Parameter(negative=())]


def read_port(text: str, what: str) -> int:
    """A TCP port; 0: any free one."""
    return 0 if text.strip() == "0" else read_count(text, what, most=65535)


@app.default
def serve(
    *,
    host: Annotated[str, Parameter(metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[int, option(read_port)] = PORT,
    open_: Annotated[bool, Parameter(name="--open", negative=())] = False,
    token: Annotated[str | None, Parameter(metavar="TEXT")] = None,
) -> int:
    """Open a local page: choose, move sliders, compare, download.

    It runs until Ctrl-C, which is its usual end: exit code 0. It needs the extra 'web'
    (pip install 'meshplan[web]'), no network, and sends nothing anywhere.

    Parameters
    ----------
    host
        Address to listen on: 127.0.0.1 for this machine alone, 0.0.0.0 for all that can reach it. Others
        need the token that is printed.
    port
        Port to listen on; 0 takes any free one.
    open_
        Open the page in the browser.
    token
        What visitors must show (default: none on this machine alone, else a random one).
    """
    try:
        run = importlib.import_module("meshplan.web.run")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("starlette", "uvicorn", "anyio"):
            raise
        raise InputError(f"the page needs the package {package}: pip install 'meshplan[web]'") from None
    code: int = run.serve(host=host, port=port, open_browser=open_, token=token)
    return code
