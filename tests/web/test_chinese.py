"""The Chinese page says errors, reasons, assumptions and evidence in Chinese; JSON stays as the CLI's."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest

pytest.importorskip("starlette")
from starlette.testclient import TestClient

from meshplan.web.app import create_app

QUESTION = {
    "model": "llama-3.1-8b", "gpu": "h100-sxm", "gpus": "16", "seq": "8192", "gbs": "64", "lang": "zh",
}  # fmt: skip


@pytest.fixture(scope="module")
def page() -> TestClient:
    return TestClient(create_app(), base_url="http://127.0.0.1:8571", follow_redirects=False)


def asked(**more: str) -> str:
    return "?" + urlencode({**QUESTION, **more})


def words_of(html: str) -> str:
    return " ".join(re.sub(r"<(style|script).*?</\1>|<[^>]+>", " ", html, flags=re.DOTALL).split())


@pytest.mark.parametrize(
    ("wrong", "english", "chinese"),
    [
        ({"gpu": "h100x"}, "unknown GPU", "不认识的 GPU"),
        ({"gpus": "12"}, "do not fill whole nodes", "不能填满每节点 8 张的整节点"),
        ({"seq": "0"}, "must be from 1 to", "seq 须在 1 到 1,000,000,000 之间"),
        ({"seq": "many"}, "must be a whole number", "seq 须为整数"),
        ({"model": ""}, "is missing", "缺少"),
    ],
)
def test_errors(page: TestClient, wrong: dict[str, str], english: str, chinese: str) -> None:
    answer = page.get("/" + asked(**wrong))
    assert answer.status_code == 422
    told = words_of(answer.text)
    assert chinese in told
    assert english not in told
    assert english in page.get("/plan.json" + asked(**wrong)).json()["error"]
    assert english in words_of(page.get("/" + asked(**wrong, lang="en")).text)


def test_why_a_plan_is_not_possible(page: TestClient) -> None:
    told = words_of(page.get("/why-not" + asked(why="tp3")).text)
    assert "不能整除 16 张 GPU" in told
    assert "does not divide" not in told


def test_why_nothing_fits(page: TestClient) -> None:
    asking = asked(model="llama-3.1-405b", gpus="8", tp="8", cp="1", pp="1")
    nothing = page.get("/plan.json" + asking).json()["nothing"]  # waits for the search
    assert "needs" in nothing["reason"]
    told = words_of(page.get("/" + asking).text)
    assert re.search(r"显存：\d+ 个合法方案中最小的", told)
    assert "needs" not in told


def test_assumptions_and_evidence(page: TestClient) -> None:
    key = page.get("/plan.json" + asked()).json()["plans"][0]
    found = re.search(r'data-plan="([^"]+)"', page.get("/" + asked()).text)
    assert found is not None
    told = words_of(page.get("/report.html" + asked(plan=found[1])).text)
    assert key["mfu"] > 0
    assert "MFU 只计模型自身的 FLOP" in told
    assert "打包的文档" in told
    assert "counts the model's own FLOP" not in told
