"""What notebooks show: rankings and estimates draw themselves, without weighing on those who do not ask."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET

import meshplan
from meshplan.cost.full.explain import explain
from meshplan.cost.full.model import FullModel

MODEL = meshplan.load_model("llama-3.1-8b")
CLUSTER = meshplan.cluster_of("h100-sxm", 8)
WORKLOAD = meshplan.Workload(seq=4096, gbs=64)


def test_a_ranking_shows_its_table_and_pictures() -> None:
    ranking = meshplan.search(MODEL, CLUSTER, WORKLOAD)
    html = ranking._repr_html_()
    ET.fromstring(html)
    assert html.count("<svg") == 2
    assert "llama-3.1-8b on 8 × h100-sxm" in html
    assert 'body[data-jp-theme-light="false"]' in html.replace("&quot;", '"')


def test_an_empty_ranking_says_why() -> None:
    ranking = meshplan.search(meshplan.load_model("llama-3.1-405b"), CLUSTER, WORKLOAD)
    html = ranking._repr_html_()
    ET.fromstring(html)
    assert "<svg" not in html
    assert "No plan: memory" in html


def test_an_estimate_shows_memory_and_time() -> None:
    found = explain(FullModel.of(), MODEL, CLUSTER, WORKLOAD, meshplan.Plan(tp=2, dp=4))
    html = found._repr_html_()
    ET.fromstring(html)
    assert html.count("<svg") == 2


def test_pictures_are_imported_only_when_drawn() -> None:
    code = (
        "import sys, meshplan as m; r = m.search(m.load_model('llama-3.1-8b'), m.cluster_of('h100-sxm', 8),"
        " m.Workload(seq=4096, gbs=64)); before = 'meshplan.report.svg' in sys.modules; r._repr_html_();"
        " print(before, 'meshplan.report.svg' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
