"""The report: one file that needs nothing else, complete, small, safe; and the commands that make it."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from meshplan.cli import main
from meshplan.cluster.presets import cluster_of
from meshplan.cost.models import cost_model_named
from meshplan.model.hf import model_from_config
from meshplan.model.load import load_model
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
from meshplan.report.gather import report_data
from meshplan.report.html import report_html, report_pictures
from meshplan.report.words import words_in
from meshplan.search.band import ranking_band
from meshplan.search.ranking import Ranking
from meshplan.search.search import search

QUESTION = ["llama-3.1-70b", "--gpu", "h100-sxm", "--gpus", "64", "--seq", "8192", "--gbs", "512"]
MEGABYTE = 1_000_000
CONFIG = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True,
}  # fmt: skip


def ranking(model: str = "llama-3.1-70b", gpus: int = 64, seq: int = 8192, gbs: int = 512) -> Ranking:
    return search(load_model(model), cluster_of("h100-sxm", gpus), Workload(seq=seq, gbs=gbs))


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return report_data(ranking())


@pytest.fixture(scope="module")
def text(data: dict[str, Any]) -> str:
    return report_html(data)


class Reader(HTMLParser):
    """Whether tags are balanced, and every address and tag met."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href", "action", "data")]
        if tag not in ("meta", "link", "br", "img", "input", "hr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag in self.open[-1:]:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


def test_needs_nothing_else(text: str) -> None:
    reader = read(text)
    assert reader.addresses == []
    assert not {"script", "iframe", "object", "embed", "link", "img"} & set(reader.tags)
    assert "@import" not in text
    assert "url(" not in text
    assert re.search(r'http-equiv="Content-Security-Policy" content="default-src &#x27;none&#x27;', text)


def test_has_every_section(text: str) -> None:
    heads = re.findall(r"<h[23]>(.*?)</h[23]>", text)
    for title in (
        "The plans, best first", "Memory of a GPU by pipeline rank", "Where one step goes", "Rank mesh",
        "Pipeline timeline", "Every plan that fits: step time against memory",
        "The best plan as the GPUs grow, same batch",
        "What the step waits for",
        "Ask the same again", "What the numbers rest on",
    ):  # fmt: skip
        assert title in heads
    assert "meshplan plan llama-3.1-70b --gpu h100-sxm --gpus 64 --seq 8192 --gbs 512" in text
    assert "median error of this cost model on" in text
    assert "aiconfigurator" in text  # the source of a curve


def test_is_small_and_made_for_phones_and_paper(text: str) -> None:
    assert len(text.encode()) < MEGABYTE / 4
    assert '<meta name="viewport" content="width=device-width' in text
    assert "@media print" in text
    assert "prefers-color-scheme:dark" in text


def test_tells_the_same_numbers_as_json(text: str, data: dict[str, Any]) -> None:
    best = data["ranking"]["plans"][0]
    assert f'<td class="num keep">{best["step_s"]:.2f} s</td>' in text
    assert f"{best['mfu']:.1%}" in text
    assert best["name"] in text


def test_chinese() -> None:
    data = report_data(ranking(), studies=False)
    text = report_html(data, language="zh")
    assert '<html lang="zh-CN">' in text
    assert "各流水线级的单卡显存" in text
    assert "Where one step goes" not in text


def test_the_largest_questions_stay_under_a_megabyte() -> None:
    found = ranking("llama-3.1-405b", gpus=16384, gbs=4096)
    assert len(found)
    text = report_html(report_data(found, studies=False))
    assert len(text.encode()) < MEGABYTE
    read(text)


def test_a_mixture_of_experts_shows_both_foldings() -> None:
    found = ranking("mixtral-8x7b", gpus=64, seq=4096, gbs=256)
    data = report_data(found, studies=False)
    plan = data["chosen"]
    text = report_html(data)
    assert ("in MoE:" in text) == (plan["ep"] * plan["etp"] > 1)
    read(text)


def test_nothing_fits() -> None:
    found = ranking(gpus=8)
    assert not len(found)
    data = report_data(found)
    text = report_html(data)
    assert "No plan: memory" in text
    assert "smallest number of GPUs that would work is 16" in text
    assert report_pictures(data) == {}
    read(text)


def test_handbook_tells_the_fullest_rank_only() -> None:
    model = cost_model_named("handbook")
    found = search(
        load_model("llama-3.1-70b"), cluster_of("h100-sxm", 64), Workload(seq=8192, gbs=512), cost_model=model
    )
    data = report_data(found, cost_model=model, studies=False)
    assert data["chosen"]["stages_complete"] is False
    assert "This cost model prices the fullest rank only." in report_html(data)
    assert "--cost-model handbook" in data["command"]


def test_a_model_named_like_markup_is_just_text() -> None:
    evil = "</title><script>alert(1)</script>"
    model = model_from_config(CONFIG, name=evil)
    found = search(model, cluster_of("h100-sxm", 8), Workload(seq=4096, gbs=64))
    text = report_html(report_data(found, studies=False))
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)" in text
    read(text)


def test_data_is_plain_json(data: dict[str, Any]) -> None:
    assert json.loads(json.dumps(data, allow_nan=False)) == data


# ── the commands ─────────────────────────────────────────────────────────────────────────────────


def test_plan_writes_report_and_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, folder = tmp_path / "report.html", tmp_path / "pictures"
    assert main(["plan", *QUESTION, "--html", str(out), "--svg", str(folder), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["plans"]
    assert f"wrote {out}" in said.err
    read(out.read_text(encoding="utf-8"))
    names = {"memory", "time", "mesh", "timeline", "pareto", "scaling", "shares", "sensitivity"}
    assert {file.stem for file in folder.iterdir()} == names
    assert "<style>" in (folder / "mesh.svg").read_text(encoding="utf-8")
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_else_was_asked_stands_in_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], language: str
) -> None:
    """The same command with ``--html`` and with ``--json``, and a report of what it saved: 15 T tokens in
    steps of 512 · 8,192 are 3,576,279 steps."""
    ask = ["plan", *QUESTION, "--what-if", "nic=2x", "--tokens", "15T", "--explain-steps"]
    ask += ["--precision", "bf16,fp8"]
    html, saved = tmp_path / "a.html", tmp_path / "a.json"
    assert main([*ask, "--html", str(html), "--language", language]) == 0
    capsys.readouterr()
    assert main([*ask, "--json"]) == 0
    saved.write_text(capsys.readouterr().out, encoding="utf-8")
    again = tmp_path / "b.html"
    assert main(["report", str(saved), "--out", str(again), "--language", language]) == 0
    data = json.loads(saved.read_text(encoding="utf-8"))
    texts = words_in(language)
    for file in (html, again):
        text = re.sub(r"<[^>]+>", " ", file.read_text(encoding="utf-8"))
        for part in ("variants", "what_if", "run", "steps"):
            assert texts(f"asked.{part}") in text
        assert texts("asked.change", name="nic", old="50 GB/s", new="100 GB/s") in text
        assert f"{-(-15 * 10**12 // (512 * 8192)):,}" in text
        for row in (data["what_if"]["before"], data["what_if"]["after"]):
            assert f"{row['tokens_per_s_per_gpu']:,.0f}" in text
        assert f"{data['run']['gpu_hours'] / 1e6:.2f} M" in text


def test_report_of_a_saved_plan_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, out = tmp_path / "saved.json", tmp_path / "report.html"
    assert main(["plan", *QUESTION, "--json"]) == 0
    saved.write_text(capsys.readouterr().out, encoding="utf-8")
    assert main(["report", str(saved), "--out", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    assert "What the step waits for" in text
    assert "Only what the file holds is shown" not in text


OWN_CLUSTER = """
name: our-h100
gpu: {like: h100-sxm, hbm: 96 GiB, peak_flops: {bf16: 900 TFLOP/s}}
gpus: 64
memory_fraction: 0.9
tiers:
  - {name: NVLink, span: 8, bandwidth: 450 GB/s}
  - {name: pod, span: 32, bandwidth: 400 Gb/s}
  - {name: spine, bandwidth: 400 Gb/s, oversubscription: 4}
"""
SMALLER = ["--gpu", "h100-sxm", "--gpus", "16", "--seq", "4096", "--gbs", "64"]
ASKED = {
    "degrees": ["llama-3.1-70b", *QUESTION[1:], "--tp", "8"],
    "lists": ["llama-3.1-8b", *SMALLER, "--tp", "2,1", "--pp", "2", "--recompute", "auto,norm+mlp,full,3"],
    "every choice": [
        "llama-3.1-8b", *SMALLER, "--space", "full", "--sp", "off", "--tp", "2", "--cp-kind", "all-gather",
        "--layout", "even", "--schedule", "zb-h1,interleaved", "--replicas", "1,2", "--order", "tp-cp-pp-dp",
    ],
    "front": ["llama-3.1-8b", *SMALLER, "--pareto"],
    "by time, closed form": ["llama-3.1-8b", *SMALLER, "--no-ties", "--fidelity", "estimate"],
    "textbook": ["llama-3.1-8b", *SMALLER, "--cost-model", "handbook", "--tp", "2"],
    "framework": ["llama-3.1-8b", *SMALLER, "--framework", "torchtitan", "--objective", "memory"],
    "cluster": ["llama-3.1-70b", "--cluster", "{folder}/own.yaml", "--seq", "8192", "--gbs", "512"],
    "model and stack": ["{folder}/config.json", *SMALLER, "--stack", "{folder}/own.toml", "--vp", "1"],
    "nothing fits": ["llama-3.1-70b", *SMALLER[:3], "8", *SMALLER[4:], "--tp", "8"],
}  # fmt: skip


@pytest.mark.parametrize("name", ASKED)
def test_a_saved_answer_holds_the_question(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its report is that of the same command with ``--html``, and what it says was asked is a job file that
    asks it again."""
    (tmp_path / "own.yaml").write_text(OWN_CLUSTER, encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    stack = resources.files("meshplan.cost") / "data" / "stacks" / "deepspeed.toml"
    (tmp_path / "own.toml").write_text(stack.read_text(encoding="utf-8"), encoding="utf-8")
    ask = [word.replace("{folder}", str(tmp_path)) for word in ASKED[name]]
    saved, out, html = tmp_path / "saved.json", tmp_path / "report.html", tmp_path / "direct.html"
    code = main(["plan", *ask, "--json", "--html", str(html)])
    assert code == (1 if name == "nothing fits" else 0)
    saved.write_text(capsys.readouterr().out, encoding="utf-8")
    assert main(["report", str(saved), "--out", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    assert "Only what the file holds is shown" not in text
    assert text.count("<svg") == html.read_text(encoding="utf-8").count("<svg")
    whole = json.loads(saved.read_text(encoding="utf-8"))
    if name == "nothing fits":
        assert whole["nothing"]["reason"].partition(" (")[0] in text
    for row in whole["plans"][:3]:
        assert f"{row['step_s']:.2f} s" in text or f"{1e3 * row['step_s']:.1f} ms" in text
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps(whole["asked"]), encoding="utf-8")
    more = [flag for flag in ("--pareto", "--no-ties") if flag in ask]
    more += ["--fidelity", "estimate"] if "estimate" in ask else []
    capsys.readouterr()
    assert main(["plan", str(job), "--json", *more]) == code
    again = json.loads(capsys.readouterr().out)
    assert (again["plans"], again["counts"]) == (whole["plans"], whole["counts"])


def test_a_report_of_what_is_piped_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["plan", "llama-3.1-8b", *SMALLER, "--json"]) == 0
    saved = capsys.readouterr().out
    for text, code in ((saved, 0), ("", 2)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        out = tmp_path / f"{code}.html"
        assert main(["report", "-", "--out", str(out)]) == code
        assert out.exists() is (code == 0)
    assert "standard input is empty" in capsys.readouterr().err
    assert main(["report", "--outt", "x"]) == 2
    assert "unknown option --outt; did you mean --out?" in capsys.readouterr().err


def test_report_says_what_a_saved_plan_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, out = tmp_path / "saved.json", tmp_path / "report.html"
    assert main(["plan", *QUESTION, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    data["plans"][0]["step_s"] *= 1.01  # as another version might have had it
    saved.write_text(json.dumps(data), encoding="utf-8")
    assert main(["report", str(saved), "--out", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    assert "Only what the file holds is shown: asked again, the question gives other numbers" in text
    assert "Where one step goes" in text
    read(text)


def test_report_of_a_saved_estimate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, out = tmp_path / "saved.json", tmp_path / "report.html"
    assert main(["estimate", *QUESTION, "--tp", "8", "--pp", "4", "--json"]) == 0
    saved.write_text(capsys.readouterr().out, encoding="utf-8")
    assert main(["report", str(saved), "--out", str(out), "--language", "zh"]) == 0
    text = out.read_text(encoding="utf-8")
    assert "tp8 cp1 dp2 pp4 mbs1" in text
    assert "各流水线级的单卡显存" in text


def test_report_json_is_what_report_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, again = tmp_path / "saved.json", tmp_path / "again.json"
    assert main(["plan", *QUESTION, "--top", "2", "--json"]) == 0
    saved.write_text(capsys.readouterr().out, encoding="utf-8")
    assert main(["report", str(saved), "--json"]) == 0
    first = capsys.readouterr().out
    again.write_text(first, encoding="utf-8")
    assert main(["report", str(again), "--json"]) == 0
    assert capsys.readouterr().out == first


BAD = {
    "empty": "",
    "no json": "meshplan",
    "a list": "[]",
    "not a number": '{"schema_version": 1, "plans": [], "counts": {}, "x": NaN}',
    "another version": '{"schema_version": 99, "plans": [], "counts": {}}',
    "nothing we print": '{"schema_version": 1, "hello": 2}',
    "a report in name only": '{"schema_version": 1, "kind": "report"}',
    "plans of nothing": '{"schema_version": 1, "plans": [{}], "counts": {}, "closest_miss": null}',
    "strings for numbers": '{"schema_version": 1, "kind": "report", "ranking": {"plans": [{"step_s": "x"}]}}',
    "too deep": "[" * 100_000,
}


@pytest.mark.parametrize("name", BAD)
def test_bad_saved_answers_are_one_sentence(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, out = tmp_path / "saved.json", tmp_path / "out.html"
    saved.write_text(BAD[name], encoding="utf-8")
    assert main(["report", str(saved), "--out", str(out)]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ([], "nothing to make: give --out report.html, --svg FOLDER or --json"),
        (["--out", "{folder}"], "it is a folder"),
        (["--out", "{folder}/no/such/report.html"], "no such file or directory"),
        (["--out", "x.html", "--language", "fr"], "--language 'fr' is not one of en, zh"),
    ],
)
def test_bad_calls(
    more: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "saved.json"
    assert main(["plan", *QUESTION, "--json"]) == 0
    saved.write_text(capsys.readouterr().out, encoding="utf-8")
    assert main(["report", str(saved), *(word.format(folder=tmp_path) for word in more)]) == 2
    assert sentence in capsys.readouterr().err


def small_ranking() -> Ranking:
    """As ``meshplan plan`` asks."""
    model, model_costs = load_model("llama-3.1-70b"), cost_model_named("full")
    return search(
        model,
        cluster_of("h100-sxm", 64),
        Workload(seq=8192, gbs=512),
        space=Space.of("small", model),
        cost_model=model_costs,
        band=ranking_band("full", model),
    )


@pytest.fixture(scope="module")
def small() -> Ranking:
    return small_ranking()


def rows_of(table: str) -> list[int]:
    """The ranks of a table's rows, in order."""
    return [int(n.replace(",", "")) for n in re.findall(r'<tr[^>]*><td class="num">([\d,]+)</td>', table)]


def test_the_table_shows_the_best_of_each_mesh_and_all_of_the_first_folded(small: Ranking) -> None:
    data = report_data(small, studies=False)
    text = report_html(data)
    table, _, rest = text.partition('<details id="all-plans">')
    shown = rows_of(table)
    meshes = [(p.tp, p.cp, p.pp, p.dp) for p in (small.costs.plans[rank - 1] for rank in shown)]
    first = {}
    for i, plan in enumerate(small):
        first.setdefault((plan.tp, plan.cp, plan.pp, plan.dp), i + 1)
    fastest = int(small.costs.step_s.argmin()) + 1
    assert len(shown) == 10
    assert all(first[mesh] == rank for mesh, rank in zip(meshes, shown, strict=True) if rank != fastest)
    assert "the best plan of each mesh" in table.lower()
    assert "The first 25 plans" in rest
    assert rows_of(rest.partition("</table>")[0]) == list(range(1, 26))


def test_a_chosen_plan_is_always_in_the_table(small: Ranking) -> None:
    """Row 6 is folded behind the first of its mesh, unless it is the one that was asked about."""
    usual = rows_of(report_html(report_data(small, studies=False)).partition("<details")[0])
    assert 6 not in usual
    chosen = report_html(report_data(small, studies=False, chosen=5)).partition("<details")[0]
    assert rows_of(chosen) == sorted([*usual, 6])
    assert re.search(r'<tr class="chosen"><td class="num">6</td>', chosen)


def test_the_scaling_curve_goes_through_the_plan_that_stands_first(small: Ranking) -> None:
    data = report_data(small)
    own = next(p for p in data["scaling"]["points"] if p["gpus"] == 64)
    best = data["ranking"]["plans"][0]
    assert {name: own["plan"][name] for name in ("tp", "pp", "dp", "vp", "step_s")} == {
        name: best[name] for name in ("tp", "pp", "dp", "vp", "step_s")
    }
    assert best["step_s"] > float(small.costs.step_s.min())  # the simplest of those tied, not the fastest
    assert data["chosen"]["name"] in report_html(data).partition("The best plan as the GPUs grow")[2]


def test_scale_says_what_plan_says(capsys: pytest.CaptureFixture[str]) -> None:
    """The same question on each number of GPUs, asked of both commands."""
    rest = [word for word in QUESTION if word not in ("--gpus", "64")]
    assert main(["scale", *rest, "--gpus", "64,256", "--no-weak", "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    for point in points:
        assert main(["plan", *rest, "--gpus", str(point["gpus"]), "--top", "10", "--json"]) == 0
        best = json.loads(capsys.readouterr().out)["plans"][0]
        assert all(point["plan"][name] == value for name, value in best.items() if name in point["plan"])


def test_plan_writes_a_report_in_chinese(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = [*QUESTION[:3], "--gpus", "16", *QUESTION[5:], "--space", "plain"]
    assert main(["plan", *small, "--html", str(tmp_path / "r.html"), "--language", "zh"]) == 0
    capsys.readouterr()
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert '<html lang="zh-CN">' in text
    assert "各流水线级的单卡显存" in text
