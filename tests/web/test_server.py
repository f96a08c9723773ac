"""The pages, their twins and the downloads: what they say is what the command line says."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

pytest.importorskip("starlette", reason="NOT CHECKED: the page (pip install -e '.[test]')")
pytest.importorskip("httpx2", reason="NOT CHECKED: the page (pip install -e '.[test]')")

from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from meshplan.cli import main
from meshplan.web.app import create_app
from meshplan.web.desk import Desk
from meshplan.web.question import KEYS

APP = create_app()

QUESTION = {"model": "llama-3.1-70b", "gpu": "h100-sxm", "gpus": "64", "seq": "8192", "gbs": "512"}
FLAGS = ["llama-3.1-70b", "--gpu", "h100-sxm", "--gpus", "64", "--seq", "8192", "--gbs", "512"]
CONFIG = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256,
}  # fmt: skip


@pytest.fixture(scope="module")
def page() -> TestClient:
    return TestClient(create_app(), base_url="http://127.0.0.1:8571", follow_redirects=False)


def query(**more: str | None) -> str:
    return "?" + urlencode({k: v for k, v in {**QUESTION, **more}.items() if v is not None})


def printed(capsys: pytest.CaptureFixture[str], argv: list[str], code: int = 0) -> str:
    assert main([*argv, "--json"]) == code
    said = capsys.readouterr()
    return said.out or said.err


def best(page: TestClient, n: int = 0, **more: str) -> dict[str, Any]:
    plan: dict[str, Any] = page.get("/plan.json" + query(**more)).json()["plans"][n]
    return plan


def keys(page: TestClient) -> list[str]:
    """The keys of the plans on the page, best first."""
    return re.findall(r'data-plan="([^"]+)"', page.get("/" + query()).text)


# ── twins ────────────────────────────────────────────────────────────────────────────────────────

TWINS: dict[str, tuple[dict[str, str], list[str]]] = {
    "plain": ({}, []),
    "network and node": (
        {"nic": "200 Gb/s", "gpus_per_node": "4"},
        ["--nic", "200 Gb/s", "--gpus-per-node", "4"],
    ),
    "some plans": ({"tp": "2,4", "mbs": "1", "top": "3"}, ["--tp", "2,4", "--mbs", "1", "--top", "3"]),
    "choices": (
        {"sharding": "zero1,zero3", "recompute": "auto,none", "order": "tp-cp-pp-dp"},
        ["--sharding", "zero1,zero3", "--recompute", "auto,none", "--order", "tp-cp-pp-dp"],
    ),
    "space and framework": (
        {"space": "full", "framework": "torchtitan"},
        ["--space", "full", "--framework", "torchtitan"],
    ),
    "objective": ({"objective": "memory"}, ["--objective", "memory"]),
    "precision": ({"precision": "fp8"}, ["--precision", "fp8"]),
    "handbook": ({"cost_model": "handbook"}, ["--cost-model", "handbook"]),
}


@pytest.mark.parametrize("name", TWINS)
def test_plan_twin_is_what_the_command_prints(
    name: str, page: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    keys, flags = TWINS[name]
    assert page.get("/plan.json" + query(**keys)).text == printed(capsys, ["plan", *FLAGS, *flags])


def test_nothing_fits_is_the_same_answer(page: TestClient, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["plan", FLAGS[0], "--gpu", "h100-sxm", "--gpus", "8", "--seq", "8192", "--gbs", "512"]
    answer = page.get("/plan.json" + query(gpus="8"))
    assert answer.status_code == 200
    assert answer.text == printed(capsys, argv, code=1)
    assert answer.json()["nothing"]["smallest_gpus"] == 16


@pytest.mark.parametrize(
    ("keys", "flags"),
    [
        ({"model": "llama-3.1-71b"}, ["plan", "llama-3.1-71b", *FLAGS[1:]]),
        ({"gpus": "65"}, ["plan", *FLAGS[:4], "65", *FLAGS[5:]]),
        ({"gbs": "7", "pp": "1"}, ["plan", *FLAGS[:-1], "7", "--pp", "1", "--mbs", "4"]),
    ],
)  # fmt: skip
def test_errors_are_the_same_objects(
    keys: dict[str, str], flags: list[str], page: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = page.get("/plan.json" + query(**keys, **({"mbs": "4"} if "pp" in keys else {})))
    assert answer.status_code == 422
    told = json.loads(printed(capsys, flags, code=2))
    # The hint names a command there, a button here; what and the nearest names are the same.
    assert answer.json()["error"].partition(";")[0] == told["error"].partition(";")[0]
    assert answer.json()["exit_code"] == told["exit_code"] == 2


def test_estimate_twin_is_what_the_command_prints(
    page: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = page.get("/estimate.json" + query(plan="tp8,cp1,dp2,pp4,mbs1,recompute=full"))
    flags = ["--tp", "8", "--pp", "4", "--dp", "2", "--recompute", "full"]
    assert answer.text == printed(capsys, ["estimate", *FLAGS, *flags])


def test_an_impossible_plan_is_refused_as_on_the_command_line(
    page: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = page.get("/estimate.json" + query(plan="tp3"))
    assert answer.json() == json.loads(printed(capsys, ["estimate", *FLAGS, "--tp", "3"], code=2))


# ── pages ────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_page(page: TestClient) -> None:
    answer = page.get("/")
    assert answer.status_code == 200
    assert '<html lang="en">' in answer.text
    assert answer.text.count("<h1>") == 1
    assert "llama-3.1-70b on 64 × h100-sxm" in answer.text
    assert answer.text.count("<svg") == 5  # scatter, memory, time, mesh, timeline
    assert best(page)["tp"] == int(re.findall(r"tp(\d+)", keys(page)[0])[0])
    for address in re.findall(r'(?:src|href|action)="([^"]*)"', answer.text):
        assert address.startswith(("/", "#", "data:,"))


def test_fields_have_labels_and_pictures_have_titles(page: TestClient) -> None:
    text = page.get("/").text
    main_part = re.sub(r"<datalist.*?</datalist>", "", text)
    for field in re.findall(r"<(?:input|select|textarea)\b[^>]*>", main_part):
        if 'type="hidden"' in field:
            continue
        name = re.findall(r'\b(?:id|name)="([^"]+)"', field)[0]
        labelled = (
            "aria-label=" in field
            or f'for="{name}"' in text
            or re.search(r"<label[^>]*>(?:<span>[^<]+</span>|[^<]+)" + re.escape(field), text)
        )
        assert labelled, field
    assert text.count('role="img"') == text.count("<svg")


def test_chinese_by_address_and_by_the_browser(page: TestClient) -> None:
    by_address = page.get("/" + query(lang="zh")).text
    by_browser = page.get("/" + query(), headers={"accept-language": "zh-CN,zh;q=0.9,en;q=0.8"}).text
    for text in (by_address, by_browser):
        assert '<html lang="zh-CN">' in text
        assert "所有可行方案：步时间与显存" in text
        assert "Where one step goes" not in text
    english = page.get("/" + query(lang="en"), headers={"accept-language": "zh-CN"}).text
    assert "Where one step goes" in english


def test_a_chosen_plan_is_shown(page: TestClient) -> None:
    third = keys(page)[2]
    text = page.get("/" + query(plan=third)).text
    rank = re.findall(r'<tr[^>]*><td class="num">(\d+)</td>', text)[2]
    assert int(rank) > 3  # the best of another mesh, under its own number
    assert re.search(rf"<h2[^>]*>Plan {rank}: ", text)
    assert re.search(rf'<tr class="chosen"><td class="num">{rank}</td>', text)
    assert f"#{rank}</text>" in text


def test_a_plan_that_is_folded_is_shown_where_it_is_chosen(page: TestClient) -> None:
    """The fourth plan is behind the first of its mesh: in the box to open, and once chosen in the table."""
    folded = page.get("/answer" + query()).text.partition('id="all-plans"')[2]
    fourth = re.findall(r'data-plan="([^"]+)"', folded)[3]
    table = page.get("/answer" + query(plan=fourth)).text.partition('id="all-plans"')[0]
    assert re.search(r'<tr class="chosen"><td class="num">4</td>', table)


def test_a_plan_that_is_gone_gives_way_to_the_best(page: TestClient) -> None:
    text = page.get("/" + query(plan="tp1,cp1,dp1,pp1,mbs77")).text
    assert re.search(r"<h2[^>]*>Plan 1: ", text)


def test_two_pins_are_compared(page: TestClient) -> None:
    first, second = keys(page)[:2]
    pinned = query() + "&" + urlencode([("pin", first), ("pin", second)])
    assert "The two pinned plans" in page.get("/" + pinned).text
    assert "The two pinned plans" in page.get("/compare" + pinned).text
    found = page.get("/compare.json" + pinned).json()
    assert [found["a"]["key"], found["b"]["key"]] == [first, second]
    for whole, parts in (("step_s", "time"), ("memory_bytes", "memory")):
        total = sum(row["difference"] for row in found[parts])
        assert total == pytest.approx(found["b"][whole] - found["a"][whole], abs=1e-6 * found["a"][whole])
    alone = page.get("/compare.json" + query() + "&" + urlencode({"pin": first}))
    assert (alone.status_code, alone.json()["exit_code"]) == (422, 2)


def test_why_not(page: TestClient) -> None:
    def verdict(why: str) -> dict[str, Any]:
        data: dict[str, Any] = page.get("/why-not.json" + query(why=why)).json()
        return data

    assert verdict("tp3")["verdict"] == "invalid"
    assert any("tp 2 or 4 would" in broken["reason"] for broken in verdict("tp3")["broken"])
    memory = verdict("tp1,pp1,cp1,recompute=none")
    assert memory["verdict"] == "memory"
    assert memory["excess_bytes"] > 0
    assert verdict(keys(page)[0])["verdict"] == "best"
    slow = verdict("tp1,pp8")
    assert slow["verdict"] == "slower"
    assert slow["slower"] > 0
    text = page.get("/why-not" + query(why="tp3")).text
    assert "tp 3 does not divide 64 heads" in text
    assert page.get("/why-not" + query(why="tp3"), headers={"x-part": "1"}).text.startswith("<div")
    assert "is no part of a plan" in page.get("/why-not" + query(why="banana")).text
    assert 'data-part="/why-not?' in page.get("/" + query(why="banana")).text


def test_why_not_twin_is_what_the_command_prints(
    page: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    for why, code in (("tp3", 1), ("tp1,pp8", 0)):
        told = printed(capsys, ["why-not", *FLAGS, "--plan", why], code=code)
        assert page.get("/why-not.json" + query(why=why)).text == told


def test_scale_twin_is_what_the_command_prints(page: TestClient, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*FLAGS[:4], "16,32,64,128,256,512", *FLAGS[5:], "--no-weak"]
    assert page.get("/scale.json" + query()).text == printed(capsys, ["scale", *flags])


def test_sliders_are_told_from_the_question(page: TestClient) -> None:
    text = page.get("/" + query(log2_nic="-3")).text
    told = re.search(r'<p class="moved">As asked, the best step took ([\d.]+) s; .* takes ([\d.]+) s', text)
    assert told
    assert float(told[2]) >= float(told[1]) - 0.01
    assert "log2_nic" not in re.findall(r'class="moved">.*?href="([^"]+)"', text)[0]
    assert 'class="moved"' not in page.get("/" + query()).text


def test_studies(page: TestClient) -> None:
    found = page.get("/studies.json" + query()).json()
    counts = [point["gpus"] for point in found["scaling"]["points"]]
    assert counts == [16, 32, 64, 128, 256, 512]
    now = next(p for p in found["scaling"]["points"] if p["gpus"] == 64)
    first = page.get("/plan.json" + query()).json()["plans"][0]
    assert {name: first[name] for name in now["plan"]} == now["plan"]
    slopes = {row["name"]: row["per_cent"] for row in found["sensitivities"]["rows"]}
    assert slopes["peak"] < -0.2
    assert found["sensitivities"]["fixed"] == pytest.approx(1 + sum(slopes.values()))
    part = page.get("/studies" + query(), headers={"x-part": "1"}).text
    assert part.startswith("<h3>")
    assert "<html" in page.get("/studies" + query()).text


def test_a_model_named_like_a_script(page: TestClient) -> None:
    evil = "<script>alert(1)</script>"
    for path in ("/", "/answer", "/estimate", "/compare", "/why-not", "/studies", "/nope"):
        text = page.get(path + query(model=evil, why=evil, plan=evil)).text
        assert "<script>alert" not in text
    shown = page.get("/" + query(model=evil)).text
    assert "&lt;script&gt;alert(1)" in shown


PATHS = (
    "/", "/answer", "/plan.json", "/estimate", "/estimate.json", "/compare.json", "/job", "/launch.zip",
    "/picture/mesh.svg", "/progress", "/nope",
)  # fmt: skip
WORDS = (
    "0", "1", "64", "1e9", "-1", "nan", "1,2", "tp8,pp2", "zero3", "none", "1f1b", "zb-v", "handbook", "fp8",
    "50 GB/s", "200 GB", "tp-cp-dp-pp", "gpt-oss-20b", "b200", "<b>", "/etc/passwd", "../..",
)  # fmt: skip
VALUES = st.one_of(st.text(max_size=20), st.sampled_from(WORDS))


@given(st.sampled_from(PATHS), st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))
@settings(max_examples=80, deadline=None)
def test_any_address_gets_an_answer(path: str, changes: dict[str, str]) -> None:
    client = TestClient(APP, base_url="http://127.0.0.1:8571", follow_redirects=False)
    question = {**QUESTION, "model": "llama-3.1-8b", "gpus": "16", "gbs": "64", **changes}
    answer = client.get(f"{path}?{urlencode(question)}")
    assert answer.status_code in (200, 404, 422), answer.text
    if answer.headers.get("content-type", "").startswith("text/html"):
        assert "<b>" not in answer.text


# ── dropped files ────────────────────────────────────────────────────────────────────────────────


def dropped(page: TestClient, text: str, name: str = "", back: str | None = None) -> str:
    """Where dropping a file leads."""
    answer = page.post(
        "/config", data={"text": text, "file_name": name, "back": query() if back is None else back}
    )
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def test_a_dropped_config_is_planned_and_taken_away(page: TestClient, tmp_path: Path) -> None:
    evil = {**CONFIG, "architectures": ["</script><script>alert(1)</script>"]}
    where = dropped(page, json.dumps(evil), "my <b>model.json")
    text = page.get(where).text
    assert "my-b-model" in text
    assert "<script>alert" not in text
    job = page.get("/job" + urlsplit(where).query.join(["?", ""]))
    assert job.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(job.content)) as archive:
        archive.extractall(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == evil


def test_the_job_of_a_dropped_config_asks_the_same(
    page: TestClient, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = dropped(page, json.dumps(CONFIG))
    asked = page.get("/plan.json" + where[1:]).json()
    job = page.get("/job" + where[1:])
    with zipfile.ZipFile(io.BytesIO(job.content)) as archive:
        archive.extractall(tmp_path)
    monkeypatch.chdir(tmp_path)
    again = json.loads(printed(capsys, ["plan", "job.yaml"]))
    assert again["plans"] == asked["plans"]
    assert again["counts"] == asked["counts"]


def test_a_dropped_cluster(page: TestClient) -> None:
    where = dropped(page, "gpu: {like: h100-sxm, hbm: 96 GiB}\ngpus: 128\n")
    values = dict(parse_qsl(urlsplit(where).query))
    assert "gpu" not in values
    assert page.get("/plan.json" + where[1:]).json()["cluster"]["gpus"] == 128


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the file is empty"),
        ("{", "the config.json is not valid JSON"),
        ('{"model_type": "nope"}', "model_type &#x27;nope&#x27; is not a known architecture"),
        (json.dumps({**CONFIG, "hidden_size": -1}), "hidden_size"),
        ("- 1\n- 2\n", "must hold a table"),
        ("gpu: [", "is not YAML"),
        ("{" + " " * 70_000 + "}", "is the most"),
        ("\x00\x01\x02", "cluster file"),
    ],
)  # fmt: skip
def test_bad_files_are_one_sentence(text: str, sentence: str, page: TestClient) -> None:
    answer = page.post("/config", data={"text": text, "back": query()})
    assert answer.status_code == 422
    assert sentence in answer.text.replace("'", "&#x27;") or sentence in answer.text


# ── downloads ────────────────────────────────────────────────────────────────────────────────────


def test_the_report_is_one_file(page: TestClient) -> None:
    answer = page.get("/report.html" + query(plan=keys(page)[1]))
    assert answer.headers["content-disposition"] == 'attachment; filename="meshplan-llama-3.1-70b-64.html"'
    assert "Plan 2: " in answer.text
    assert "<script" not in answer.text


def test_the_job_file_asks_the_same(
    page: TestClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"nic": "200 Gb/s", "log2_memory": "0.5", "tp": "4,8", "precision": "fp8"}
    answer = page.get("/job" + query(**more))
    assert answer.headers["content-disposition"] == 'attachment; filename="job.yaml"'
    path = tmp_path / "job.yaml"
    path.write_bytes(answer.content)
    asked = page.get("/plan.json" + query(**more)).json()
    again = json.loads(printed(capsys, ["plan", str(path)]))
    assert again["plans"] == asked["plans"]


def test_launch_files(page: TestClient) -> None:
    answer = page.get("/launch.zip" + query(to="torchtitan", launcher="slurm", plan="tp8,cp1,dp4,pp2,mbs1"))
    if answer.status_code == 422:
        answer = page.get("/launch.zip" + query(to="torchtitan", launcher="slurm"))
    assert answer.status_code == 200, answer.text
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        names = archive.namelist()
        assert "job.sbatch" in names
        assert all("/" not in name and ".." not in name for name in names)
    assert page.get("/launch.zip" + query(to="nope")).status_code == 422
    assert page.get("/launch.zip" + query(launcher="nope")).status_code == 422


def test_pictures_as_files(page: TestClient) -> None:
    for name in ("memory", "time", "mesh", "timeline"):
        answer = page.get(f"/picture/{name}.svg" + query())
        assert answer.headers["content-type"] == "image/svg+xml"
        assert answer.text.startswith("<svg ")
    assert page.get("/picture/nope.svg" + query()).status_code == 422


# ── long searches ────────────────────────────────────────────────────────────────────────────────


def test_a_long_search_is_waited_for_watched_and_then_at_hand() -> None:
    desk = Desk(quick=0)  # every search is long
    with TestClient(create_app(desk=desk), base_url="http://127.0.0.1:8571") as page:
        text = page.get("/" + query()).text
        job = re.findall(r'data-job="([^"]+)"', text)[0]
        assert '<noscript><meta http-equiv="refresh" content="2"></noscript>' in text
        events = [
            json.loads(e[6:])
            for e in page.get(f"/progress?job={job}").text.split("\n")
            if e.startswith("data: ")
        ]
        assert events[-1]["state"] == "done"
        assert "data-job" not in page.get("/" + query()).text
        assert page.get("/plan.json" + query()).json()["plans"]
        assert page.get("/progress?job=nope").status_code == 404


def test_a_search_that_finds_nothing_seeks_advice_beside() -> None:
    with TestClient(create_app(), base_url="http://127.0.0.1:8571") as page:
        found = page.get("/plan.json" + query(gpus="8")).json()
        assert found["nothing"]["smallest_gpus"] == 16
        assert "smallest number of GPUs that would work is 16" in page.get("/" + query(gpus="8")).text
