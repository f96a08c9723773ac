"""No English is left in Chinese pages and reports but for names, units and terms of the field."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlencode

import pytest

from meshplan.cli import main
from meshplan.cluster.presets import gpu_names
from meshplan.cost.full.stack import stack_names
from meshplan.export.launchers import LAUNCHERS
from meshplan.export.targets import TARGETS
from meshplan.model.presets import preset_names
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.rules import REGISTRY
from meshplan.plan.rules.registry import FRAMEWORKS
from meshplan.report.words import all_texts

QUESTION = ["--gpu", "h100-sxm", "--gpus", "16", "--seq", "8192", "--gbs", "64"]
TERMS = {
    "tp", "sp", "cp", "pp", "vp", "dp", "ep", "etp", "edp", "mbs", "gbs", "seq", "nic", "GPU", "MFU", "HFU",
    "FLOP", "MLP", "MoE", "KV", "LM", "CUDA", "NCCL", "NVLink", "PCIe", "xGMI", "NVIDIA", "AMD", "Instinct",
    "GeForce", "SXM", "RTX", "GB", "TB", "GiB", "MiB", "KiB", "kB", "MWh", "ms", "bf", "fp", "re", "HTML",
    "JSON", "SVG", "job", "yaml", "config", "json", "meshplan", "plan", "estimate", "why", "all-gather",
    "all-reduce", "all-to-all", "reduce-scatter", "dgrad", "wgrad", "logits", "uneven", "on", "mesh",
    "Hugging", "Face", "English", "any", "auto", "SMs", "no-effect", "re-all",
}  # fmt: skip
"""Units, degrees and what people in the field say in English; flags and values of ours."""
WORD = re.compile(r"(?<![\w./-])[A-Za-z][A-Za-z-]+(?![\w./])")
ORDER = re.compile(r"\b(?:tp|cp|ep|etp|dp|pp)(?:-(?:tp|cp|ep|etp|dp|pp))+\b")
SCALAR = re.compile(r"的 [a-z_]+ = ")
"""A number of a software stack stands under its name in the stack's file."""
VALUES = {
    "none", "all", "auto", "full", "on", "off", "order", "recompute", "top", "memory", "time", "timeline",
}  # fmt: skip
"""What a refused field is called and could hold."""
BESIDE_ITS_NAME = re.compile(r"（[a-z_]+）")
"""What a field or a value is called on the command line stands behind its Chinese name."""


def names() -> frozenset[str]:
    """Words in names of models, parts, frameworks, rules, schedules."""
    rules = set(REGISTRY)
    kinds = {kind.label for k in (Schedule, Sharding, CpKind) for kind in k}
    modules = {m.name.lower().replace("_", "-") for m in Recompute if m.name}
    known = {
        *preset_names(), *gpu_names(), *stack_names(), *FRAMEWORKS, *TARGETS, *LAUNCHERS, *rules, *kinds,
        *modules,
    }  # fmt: skip
    return frozenset({*known, *(word for name in known for word in WORD.findall(name))})


class Reader(HTMLParser):
    """All that people see or hear, but for commands and where numbers come from (see test_cited.py)."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.hidden = 0
        self.evidence = False
        self.cell = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.hidden += tag in ("style", "script", "pre")
        if tag == "table":
            self.evidence = given.get("class") == "stack"
        self.cell = 0 if tag == "tr" else self.cell + (tag == "td")
        seen = ("aria-label", "title", "alt", "data-note", "data-best", "data-said")
        self.texts += [given[name] or "" for name in seen if name in given]

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("style", "script", "pre")
        if tag == "table":
            self.evidence = False

    def handle_data(self, data: str) -> None:
        if not self.hidden and not (self.evidence and self.cell == 4):
            self.texts.append(data)


def english(html: str) -> dict[str, str]:
    """Words that are none of the terms and names → where one stands."""
    reader = Reader()
    reader.feed(html)
    allowed = TERMS | names()
    found: dict[str, str] = {}
    for text in reader.texts:
        plain = re.sub(r"'[^']*'|https?://\S+", "", text)
        for named in (BESIDE_ITS_NAME, ORDER, SCALAR):
            plain = named.sub(" ", plain)
        for word in WORD.findall(plain):
            if word not in allowed:
                found.setdefault(word, text.strip())
    return found


def test_the_reader_finds_english() -> None:
    """The guard itself: English sentences, titles of pictures and attributes are met; names are not."""
    html = (
        '<p>memory <b>does</b></p><svg><title>One step</title></svg><i title="network">tp 8 zero-bubble</i>'
    )
    assert set(english(html)) == {"memory", "does", "One", "step", "network"}
    assert english("<pre>what to type</pre><style>body</style><p>显存 80 GiB</p>") == {}


@pytest.mark.parametrize(
    "more",
    [
        [],
        [
            "--what-if",
            "nic=2x,gbs=128",
            "--sensitivities",
            "--explain-steps",
            "--tokens",
            "1T",
            "--price",
            "2",
        ],
        ["--objective", "memory"],
        ["--cost-model", "handbook"],
        ["--framework", "megatron", "--offload", "optimizer"],
        ["--precision", "bf16,fp8"],
    ],
    ids=lambda more: " ".join(more[:1]) or "plain",
)
def test_a_report(more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.html"
    assert main(["plan", "llama-3.1-8b", *QUESTION, *more, "--html", str(file), "--language", "zh"]) == 0
    capsys.readouterr()
    assert english(file.read_text(encoding="utf-8")) == {}


@pytest.mark.parametrize("model", ["llama-3.1-405b", "mixtral-8x7b"])
def test_a_report_of_a_saved_answer(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where nothing fits, why not; with experts, their words."""
    assert main(["plan", model, *QUESTION, "--json"]) in (0, 1)
    (tmp_path / "k.json").write_text(capsys.readouterr().out, encoding="utf-8")
    file = tmp_path / "r.html"
    assert main(["report", str(tmp_path / "k.json"), "--out", str(file), "--language", "zh"]) == 0
    capsys.readouterr()
    assert english(file.read_text(encoding="utf-8")) == {}


PAGES = (
    ("/", {"framework": "torchtitan", "offload": "optimizer"}, 200),
    ("/", {}, 200), ("/", {"log2_nic": "1"}, 200), ("/", {"space": "full", "framework": "megatron"}, 200),
    ("/", {"gpu": "mi300x"}, 200), ("/", {"cost_model": "handbook"}, 200), ("/", {"tp": "3"}, 200),
    ("/", {"gpus": "8", "model": "llama-3.1-405b", "tp": "8"}, 200), ("/", {"gpus": "12"}, 422),
    ("/", {"nic": "400"}, 422), ("/", {"nic": "4 parsecs"}, 422), ("/", {"memory": "1 kB"}, 422),
    ("/", {"order": "tp-cp"}, 422), ("/", {"recompute": "some"}, 422), ("/", {"sp": "maybe"}, 422),
    ("/", {"log2_nic": "77"}, 422), ("/", {"offload_fraction": "7", "offload": "optimizer"}, 422),
    ("/", {"cost_model": "handbook", "precision": "fp8"}, 422), ("/", {"top": "9999"}, 422),
    ("/why-not", {"why": "tp3"}, 200), ("/why-not", {"why": "tp8,pp1"}, 200),
    ("/why-not", {"why": "layout16.16,pp2"}, 200), ("/why-not", {"why": "recompute=full"}, 200),
    ("/why-not", {"why": "tp1 pp1", "model": "llama-3.1-70b"}, 200), ("/why-not", {"why": "nonsense"}, 422),
    ("/why-not", {"why": "tp8", "objective": "memory"}, 200), ("/why-not", {}, 422), ("/studies", {}, 200),
    ("/estimate", {"plan": "tp2,dp8,mbs1"}, 200), ("/estimate", {"plan": "tp2,tp4"}, 422),
    ("/estimate", {"plan": "tp3"}, 422), ("/estimate", {}, 422), ("/compare", {}, 422), ("/nowhere", {}, 404),
    ("/launch.zip", {"to": "nobody"}, 422), ("/picture/none.svg", {}, 422),
)  # fmt: skip


@pytest.mark.parametrize(("path", "more", "status"), PAGES)
def test_a_page(path: str, more: dict[str, str], status: int, page: object) -> None:
    asked = {
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "gpus": "16",
        "seq": "8192",
        "gbs": "64",
        "lang": "zh",
    }
    answer = page.get(f"{path}?{urlencode({**asked, **more})}")  # type: ignore[attr-defined]
    assert answer.status_code == status, answer.text[:300]
    assert english(answer.text).keys() <= (VALUES if status == 422 else set())


DROPPED = (
    '{"model_type":', '{"a": 1, "a": 2}', '{"model_type": "t5"}', '{"model_type": "llama"}', "gpu: h100-sxm",
    '{"model_type": "llama", "hidden_size": "x"}', "gpu: h100-sxm\ngpus: x", "gpu: h100-sxm\ngpus: '8'",
    "gpu: h100-sxm\ngpus: 8\nzz: 1", "gpu: h100-sxm\ngpus: 8\ngpus: 9", "gpu: h100-sxm\ngpus: 8\ntiers: []",
    "gpu: h100-sxm\ngpus: 8\nnic: 400", "gpu: {hbm: 80 GB}\ngpus: 8", "gpu: &a h\ngpus: *a", "hello", "",
)  # fmt: skip


@pytest.mark.parametrize("text", DROPPED)
def test_a_dropped_file(text: str, page: object) -> None:
    """The page posts to where its form says, which carries the language; keys and values are quoted."""
    asked = {
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "gpus": "8",
        "seq": "8192",
        "gbs": "64",
        "lang": "zh",
    }
    shown = page.get(f"/?{urlencode(asked)}").text  # type: ignore[attr-defined]
    where = re.search(r'<form[^>]*id="drop"[^>]*>', shown)
    assert where is not None
    action = re.search(r'action="([^"]+)"', where[0])
    assert action is not None
    answer = page.post(  # type: ignore[attr-defined]
        action[1], data={"text": text, "file_name": "f", "back": urlencode(asked)}
    )
    assert answer.status_code == 422
    assert english(re.sub(r"：已知：[^；<]*", "", answer.text)).keys() <= {
        "gpu", "gpus", "tiers", "YAML", "TOML", "hbm", "like", "h", "model", "type", "hidden", "size", "name",
    }, answer.text  # fmt: skip


def test_two_plans_beside_each_other(page: object) -> None:
    pins = [("pin", "tp1,dp16,mbs1,zero3"), ("pin", "tp4,cp1,dp2,pp2,mbs1")]
    asked = [("model", "llama-3.1-8b"), ("gpu", "h100-sxm"), ("gpus", "16"), ("seq", "8192"), ("gbs", "64")]
    answer = page.get(f"/compare?{urlencode([*asked, *pins, ('lang', 'zh')])}")  # type: ignore[attr-defined]
    assert answer.status_code == 200, answer.text[:300]
    assert english(answer.text) == {}


@pytest.fixture(scope="module")
def page() -> object:
    pytest.importorskip("starlette", reason="NOT CHECKED: the page (pip install -e '.[test]')")
    from starlette.testclient import TestClient

    from meshplan.web.app import create_app

    return TestClient(create_app(), base_url="http://127.0.0.1:8571", follow_redirects=False)


def test_every_text_of_ours_is_free_of_english() -> None:
    """The texts themselves, whether a page above shows them or not."""
    left = {
        key: words
        for key, texts in all_texts().items()
        if (words := english(f"<p>{re.sub(r'{.*?}', ' ', texts['zh'])}</p>"))
    }
    assert left == {}
