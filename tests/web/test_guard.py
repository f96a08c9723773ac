"""Who may ask, how much they may send, and what browsers are told: the outermost part of the server."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="NOT CHECKED: the page (pip install -e '.[test]')")
pytest.importorskip("httpx2", reason="NOT CHECKED: the page (pip install -e '.[test]')")

from starlette.testclient import TestClient

from meshplan.web import views
from meshplan.web.app import create_app
from meshplan.web.guard import COOKIE, MOST_BODY, MOST_QUERY

TOKEN = "0123456789abcdef0123456789abcdef"
HOME = "http://127.0.0.1:8571"


def client(base_url: str = HOME, **how: object) -> TestClient:
    return TestClient(
        create_app(**how),  # type: ignore[arg-type]
        base_url=base_url, follow_redirects=False, raise_server_exceptions=False,
    )  # fmt: skip


def test_every_answer_carries_the_policy() -> None:
    home = client()
    for path in ("/", "/answer", "/nope", "/app.js", "/page.css", "/plan.json", "/plan.json?foo=1"):
        headers = home.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


@pytest.mark.parametrize("host", ["127.0.0.1:8571", "localhost:8571", "LOCALHOST", "[::1]:8571", "127.0.0.1"])
def test_its_own_names(host: str) -> None:
    assert client().get("/page.css", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil", "", "10.0.0.1:8571"]
)
def test_names_of_others_are_refused(host: str) -> None:
    """Otherwise a page of another site could read answers after pointing its own name here."""
    answer = client().get("/plan.json", headers={"host": host})
    assert answer.status_code == 421
    assert "llama" not in answer.text


def test_other_sites_may_not_post() -> None:
    home = client()
    assert home.post("/config", content="text=x", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert (
        home.post("/config", content="text=x", headers={"sec-fetch-site": "same-origin"}).status_code == 422
    )


def test_methods_and_sizes() -> None:
    home = client()
    assert home.put("/").status_code == 405
    assert home.delete("/config").status_code == 405
    assert home.get("/config").status_code in (404, 405)
    assert home.get("/?model=" + "x" * (MOST_QUERY + 1)).status_code == 414
    assert home.post("/config", content=b"text=" + b"x" * MOST_BODY).status_code == 413
    assert home.get("/?" + "&".join(["pin=tp1"] * 300)).status_code == 422


def test_without_a_token_nothing_is_shown() -> None:
    far = client("http://planner.example:8571", hosts=None, token=TOKEN)
    for path in ("/", "/plan.json", "/app.js", f"/?token={TOKEN[:-1]}x", "/?token="):
        answer = far.get(path)
        assert answer.status_code == 401
        assert "llama" not in answer.text


def test_the_token_is_shown_once_and_then_a_cookie() -> None:
    far = client("http://planner.example:8571", hosts=None, token=TOKEN)
    answer = far.get(f"/?gpus=64&token={TOKEN}&lang=zh")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/?gpus=64&lang=zh"
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}={TOKEN};")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert far.get("/page.css").status_code == 200  # the client kept the cookie
    assert TOKEN not in far.get("/").text


def test_the_token_leads_to_no_other_site() -> None:
    far = client("http://planner.example", hosts=None, token=TOKEN)
    answer = far.get(f"http://planner.example//evil.example/x?token={TOKEN}")
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/evil.example")


def test_a_bug_in_one_request_is_not_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: object, **more: object) -> object:
        raise RuntimeError("<b>boom</b>")

    monkeypatch.setattr(views, "named_ranking", broken)
    home = client()
    page = home.get("/")
    assert page.status_code == 500
    assert "A bug in meshplan" in page.text
    assert "&lt;b&gt;boom&lt;/b&gt;" in page.text
    assert any(record.exc_info for record in caplog.records)
    monkeypatch.undo()
    assert home.get("/").status_code == 200
