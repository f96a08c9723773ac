"""``meshplan serve``: how it starts, and what it says when it cannot."""

from __future__ import annotations

import importlib
import re
import socket
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

from meshplan.cli import main


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.import_module

    def missing(name: str, package: str | None = None) -> Any:
        if name == "meshplan.web.run":
            raise ModuleNotFoundError("No module named 'starlette'", name="starlette.applications")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", missing)
    assert main(["serve", "--port", "0"]) == 2
    said = capsys.readouterr().err
    assert said == "error: the page needs the package starlette: pip install 'meshplan[web]'\n"


def test_help_needs_no_extra(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    assert "Open a local page" in capsys.readouterr().out


def test_a_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("uvicorn", reason="NOT CHECKED: the page (pip install -e '.[test]')")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert (
        f"cannot listen on 127.0.0.1 port {port}: address already in use; --port 0 takes a free one" in said
    )


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--host", "no.such.host.invalid"], "--host 'no.such.host.invalid' is no address of this machine"),
        (["--host", "no.such.host.invalid"], "; 127.0.0.1 is for this machine alone, 0.0.0.0 for all that"),
        (["--host", "192.0.2.1"], "--host '192.0.2.1' is no address of this machine; 127.0.0.1 is for"),
        (["--host", "localhost:80"], "and the port is --port"),
        (["--port", "70000"], "--port must be from 1 to 65,535"),
        (["--port", "x"], "--port must be a whole number"),
        (["--token", "short"], "the token must be 16 to 200 plain letters and digits"),
    ],
)
def test_bad_calls(flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("uvicorn", reason="NOT CHECKED: the page (pip install -e '.[test]')")
    assert main(["serve", *flags]) == 2
    assert sentence in capsys.readouterr().err


def test_bound_wider_it_asks_for_the_token_it_printed(start_server: Any) -> None:
    pytest.importorskip("uvicorn", reason="NOT CHECKED: the page (pip install -e '.[test]')")
    server = start_server("--host", "0.0.0.0")
    try:
        found = re.fullmatch(r"http://0\.0\.0\.0:(\d+)/\?token=([0-9a-f]{48})", server.url)
        assert found
        home = f"http://127.0.0.1:{found[1]}/page.css"
        with pytest.raises(HTTPError, match="401"):
            build_opener().open(home, timeout=30)
        with build_opener(HTTPCookieProcessor()).open(f"{home}?token={found[2]}", timeout=30) as answer:
            assert answer.status == 200
            assert "token" not in answer.url
    finally:
        server.stop()
