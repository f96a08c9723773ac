"""Every picture: drawn to scale from its data, safe to put into a page, and kept as a snapshot.

``MESHPLAN_WRITE_SNAPSHOTS=1 pytest tests/report`` writes the snapshots anew.
"""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.plan.mesh import Mesh
from meshplan.report.chart_memory import GIB, memory_chart
from meshplan.report.chart_mesh import MOST_COLUMNS, folded, mesh_chart
from meshplan.report.chart_pareto import pareto_chart, pareto_front
from meshplan.report.chart_scaling import scaling_chart
from meshplan.report.chart_sensitivity import sensitivity_chart
from meshplan.report.chart_shares import SHARES, shares_chart
from meshplan.report.chart_timeline import ACROSS, timeline_chart
from meshplan.report.chart_waterfall import waterfall_chart
from meshplan.report.svg import standalone
from meshplan.report.timeline_svg import is_folded
from meshplan.report.words import words_in
from meshplan.schedule.generate import make_order
from meshplan.schedule.simulate import simulate

SNAPSHOTS = Path(__file__).parent / "snapshots"
SVG = "{http://www.w3.org/2000/svg}"
EN, ZH = words_in("en"), words_in("zh")


def stage(
    first: int, ranks: int, *, embedding: bool = False, head: bool = False, **gib: float
) -> dict[str, Any]:
    memory = {name.replace("_", " "): size * GIB for name, size in gib.items()}
    return {"first_rank": first, "ranks": ranks, "embedding": embedding, "head": head, "memory": memory}


STAGES = [
    stage(
        0, 1, embedding=True, weights=9, gradients=18, optimizer=13.5, activations=42, loss_and_workspace=0
    ),
    stage(1, 6, weights=8, gradients=16, optimizer=12, activations=31, loss_and_workspace=0.5),
    stage(7, 1, head=True, weights=9, gradients=18, optimizer=13.5, activations=10, loss_and_workspace=2),
]
LIMIT = 79 * GIB
TIME = {
    "matmul": 40.0, "attention": 6.0, "recompute": 3.0, "tp": 4.0, "pp": 0.5, "bubble": 1.0, "imbalance": 2.0,
    "optimizer": 0.0004, "cp": 0.0,
}  # fmt: skip
HIDDEN = {"dp": 1.5, "cp": 2.5, "tp": 0.0}
POINTS = [
    {"gpus": 16, "plan": None, "tokens_per_s": None},
    {"gpus": 32, "plan": {"mfu": 0.50}, "tokens_per_s": 35_000.0},
    {"gpus": 64, "plan": {"mfu": 0.48}, "tokens_per_s": 69_000.0},
]
SLOPES = {
    "rows": [
        {"name": "peak", "per_cent": -0.80},
        {"name": "hbm_bandwidth", "per_cent": -0.05},
        {"name": "network", "per_cent": -0.001},
    ],
    "fixed": 0.149,
    "tenth_more_memory": -0.021,
}
STEP = [10.0, 10.2, 12.0, 15.0, 80.0]
MEMORY = [60 * GIB, 50 * GIB, 55 * GIB, 30 * GIB, 20 * GIB]


def mesh(**sizes: int) -> Mesh:
    return Mesh.of(sizes)


SHARED: list[dict[str, Any]] = [
    {"gpus": 32, "plan": None, "shares": {}},
    {
        "gpus": 64,
        "plan": {"mfu": 0.52},
        "shares": {
            "useful": 0.52,
            "kernels": 0.36,
            "tp": 0.06,
            "pipeline": 0.03,
            "dp": 0.029,
            "imbalance": 0.001,
        },
    },
    {
        "gpus": 128,
        "plan": {"mfu": 0.5},
        "shares": {
            "useful": 0.5,
            "kernels": 0.3,
            "recompute": 0.1,
            "once a step": 0.06,
            "something new": 0.04,
        },
    },
]


def pictures() -> Mapping[str, str]:
    order = make_order("1f1b", ranks=4, micro_batches=8)
    return {
        "memory": memory_chart(STAGES, LIMIT, EN),
        "memory-zh": memory_chart(STAGES, LIMIT, ZH),
        "time": waterfall_chart(TIME, HIDDEN, EN),
        "mesh-16": mesh_chart(mesh(tp=2, cp=2, dp=2, pp=2), 8, EN),
        "mesh-moe-1024": mesh_chart(mesh(tp=2, dp=64, pp=8, ep=32, etp=1), 8, EN),
        "pareto": pareto_chart(STEP, MEMORY, LIMIT, EN, chosen=1, band=0.05, more=7),
        "scaling": scaling_chart(POINTS, 64, EN),
        "sensitivity": sensitivity_chart(SLOPES, EN),
        "shares": shares_chart(SHARED, 64, EN),
        "shares-zh": shares_chart(SHARED, 64, ZH),
        "timeline": timeline_chart(simulate(order, forward=1.0, backward_input=1.0, weight=1.0), EN),
    }


@pytest.mark.parametrize("name", list(pictures()))
def test_snapshot(name: str) -> None:
    text = standalone(pictures()[name])
    path = SNAPSHOTS / f"{name}.svg"
    if os.environ.get("MESHPLAN_WRITE_SNAPSHOTS") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_shares_fill_their_bars_and_are_named() -> None:
    root = ET.fromstring(shares_chart(SHARED, 64, EN))
    rows: dict[str, float] = {}
    for rect in root.iter(f"{SVG}rect"):
        if rect.find(f"{SVG}title") is not None:  # the swatches of the legend have none
            rows[rect.get("y", "")] = rows.get(rect.get("y", ""), 0.0) + float(rect.get("width", "0")) + 0.8
    assert len(rows) == 2
    for width in rows.values():  # the chart's 480 units less its margins of 62 and 8
        assert width == pytest.approx(410, abs=1)
    words = [text.text or "" for text in root.iter(f"{SVG}text")]
    assert "something new" in words
    assert "slowest stage" not in words  # a thousandth is drawn and not named
    assert "✗ no plan is possible" in words
    assert len({letter for letter, _ in SHARES.values()}) == len(SHARES)


@pytest.mark.parametrize("name", list(pictures()))
def test_a_picture_tells_screen_readers_what_it_is(name: str) -> None:
    root = ET.fromstring(pictures()[name])
    title, desc = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert desc is not None
    assert title.text
    assert len(desc.text or "") > 20
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == f"{title.get('id')} {desc.get('id')}"


@pytest.mark.parametrize("name", list(pictures()))
def test_a_picture_can_stand_under_a_strict_policy(name: str) -> None:
    """No style, script, handler or address of its own: only classes that the page defines."""
    text = pictures()[name]
    assert not re.search(r"<style|<script|\sstyle=|\son\w+=|href=|url\(|@import", text)
    assert text.replace("http://www.w3.org/2000/svg", "").find("://") < 0


def test_two_pictures_of_a_kind_have_different_ids() -> None:
    a, b = memory_chart(STAGES, LIMIT, EN), memory_chart(STAGES[:2], LIMIT, EN)
    ids = [re.findall(r' id="([^"]+)"', text) for text in (a, b)]
    assert set(ids[0]).isdisjoint(ids[1])


def boxes(picture: str, fill: str = "") -> list[tuple[float, float, float, float]]:
    root = ET.fromstring(picture)
    return [
        (float(r.attrib["x"]), float(r.attrib["y"]), float(r.attrib["width"]), float(r.attrib["height"]))
        for r in root.iter(f"{SVG}rect")
        if not fill or fill in r.attrib["class"].split()
    ]


def test_memory_bars_are_to_scale() -> None:
    """Optimizer (c4) of both ends is 13.5 GiB, of the middle 12; the limit's line stands at 79."""
    picture = memory_chart(STAGES, LIMIT, EN)
    widths = [w + 0.8 for _, _, w, h in boxes(picture, "c4") if h == 24]
    assert widths[0] == pytest.approx(widths[2], abs=0.02)
    assert widths[1] / widths[0] == pytest.approx(12 / 13.5, rel=1e-3)
    cut = next(p for p in ET.fromstring(picture).iter(f"{SVG}path") if p.get("class") == "cut")
    at = float(re.findall(r"M([\d.]+)", cut.attrib["d"])[0])
    left = min(x for x, _, _, h in boxes(picture, "c1") if h == 24)
    assert (at - left) / widths[0] == pytest.approx(79 / 13.5, rel=1e-2)


def test_memory_says_which_rank_is_over_the_limit() -> None:
    text = memory_chart(STAGES, LIMIT, EN)
    assert "82.5 ✗" in text
    assert text.count("✗") == 1
    assert "The fullest is rank 0 (embedding): 82.5 GiB of a limit of 79.0 GiB" in text


def test_memory_of_many_kinds_shows_the_fullest() -> None:
    many = [stage(i, 1, weights=1 + i % 7, activations=30 + i) for i in range(40)]
    text = memory_chart(many, LIMIT, EN)
    assert "rank 39" in text
    assert "rank 0<" not in text
    assert "not drawn: 28 kinds of rank that hold less" in text


def test_waterfall_bars_start_where_the_last_one_ended() -> None:
    picture = waterfall_chart(TIME, HIDDEN, EN)
    rows = [b for b in boxes(picture) if b[3] == 17 and b[1] < 250]
    exposed, whole = rows[:-1], rows[-1]
    for (x, _, width, _), (after, *_) in pairwise(exposed):
        assert after == pytest.approx(x + width, abs=0.9)  # a hair is drawn 0.8 wide
    assert whole[2] == pytest.approx(exposed[-1][0] + exposed[-1][2] - exposed[0][0], abs=1.0)
    assert exposed[0][2] / whole[2] == pytest.approx(40 / sum(TIME.values()), rel=1e-3)


def test_waterfall_shows_hidden_time_apart_and_small_parts_together() -> None:
    picture = waterfall_chart(TIME, HIDDEN, EN)
    hollow = [b for b in boxes(picture) if b[1] > 230 and b[3] == 17]
    assert [round(b[2] / hollow[0][2], 3) for b in hollow] == [1, 0.6]  # cp 2.5 s, dp 1.5 s
    assert "smaller parts" in picture
    assert "optimizer" not in picture


def test_mesh_draws_every_rank_and_node_of_a_small_mesh() -> None:
    picture = mesh_chart(mesh(tp=2, cp=2, dp=2, pp=2), 8, EN)
    assert len(boxes(picture, "node")) == 2
    texts = [t.text for t in ET.fromstring(picture).iter(f"{SVG}text")]
    assert [t for t in texts if t and t.isdigit()].count("15") == 1
    assert "tp 2: 8 groups, each inside one node" in texts
    assert "pp 2: 8 groups, each across nodes" in texts


def test_mesh_of_thousands_of_ranks_folds() -> None:
    picture = mesh_chart(mesh(tp=8, dp=128, pp=16), 8, EN)
    assert len(picture) < 40_000
    texts = [t.text or "" for t in ET.fromstring(picture).iter(f"{SVG}text")]
    assert {"0", "7", "16383", "node 0", "node 2047"} <= set(texts)
    drawn = sum(1 for t in ET.fromstring(picture).iter(f"{SVG}text") if "tiny" in (t.get("class") or ""))
    assert f"{16384 - drawn:,} ranks between those drawn are left out" in texts


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_folding_keeps_the_first_and_the_last_place(sizes: list[int]) -> None:
    axes = folded(sizes)
    for size, axis in zip(sizes, axes, strict=True):
        assert axis[0] == 0
        assert len(axis) == 1 or axis[-1] == size - 1
        assert len(set(axis.tolist())) == len(axis)
    assert np.prod([len(axis) for axis in axes]) <= MOST_COLUMNS
    if np.prod(sizes, dtype=float) <= MOST_COLUMNS:
        assert [len(axis) for axis in axes] == sizes


@given(
    st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100)), min_size=1, max_size=40),
)
def test_front_is_what_no_plan_beats(points: list[tuple[float, float]]) -> None:
    step, memory = (np.array(column) for column in zip(*points, strict=True))
    front = pareto_front(step, memory)
    beaten = {
        i
        for i in range(len(points))
        if any(
            step[j] <= step[i] and memory[j] <= memory[i] and (step[j] < step[i] or memory[j] < memory[i])
            for j in range(len(points))
        )
    }
    assert not beaten.intersection(front)
    assert {(step[i], memory[i]) for i in range(len(points)) if i not in beaten} == {
        (step[i], memory[i]) for i in front
    }


def test_pareto_counts_what_it_does_not_draw() -> None:
    text = pareto_chart(STEP, MEMORY, LIMIT, EN, band=0.05, more=7)
    assert "not drawn: 1 plan slower than 4× the best" in text
    assert "7 more plans that fit" in text
    assert "2 plans are within 5.0% of the best" in text


def test_pareto_of_thousands_stays_small() -> None:
    rng = np.random.default_rng(0)
    step = np.sort(rng.uniform(10, 30, 4000)).tolist()
    assert len(pareto_chart(step, (rng.uniform(20, 79, 4000) * GIB).tolist(), LIMIT, EN)) < 60_000


def test_timeline_of_64_ranks_stays_small() -> None:
    order = make_order("1f1b", ranks=64, micro_batches=512)
    text = timeline_chart(simulate(order, forward=1.0, backward_input=1.0, weight=1.0), EN)
    assert len(text) < 400_000


def test_names_from_people_are_escaped() -> None:
    evil = '<script>alert(1)</script>"&'
    picture = memory_chart([{**STAGES[0], "memory": {evil: GIB, "weights": GIB}}], LIMIT, EN)
    assert "<script" not in picture
    assert ET.fromstring(picture) is not None


def test_timeline_of_many_micro_batches_is_drawn_large_at_both_ends() -> None:
    """256 micro-batches on two ranks: the first forward and the last backward passes, each wide enough to
    see, in a picture of the usual width; what idles at the right is said of the whole step."""
    run = simulate(
        make_order("1f1b", ranks=2, micro_batches=256, vp=None), forward=1.0, backward_input=2.0, weight=0.0
    )
    picture = timeline_chart(run, words_in("en"))
    assert is_folded(run, ACROSS)
    numbers = [int(n) for n in re.findall(r'<text[^>]*class="tiny mid dark"[^>]*>(\d+)<', picture)]
    assert {0, 1, 255} <= set(numbers)
    assert not {100, 128, 150} & set(numbers)
    assert f"{run.idle[0] / run.step:.1%}" in picture
    width, _ = map(float, picture.partition('viewBox="0 0 ')[2].partition('"')[0].split())
    assert width == ACROSS
    widest = max(float(x) + float(w) for x, w in re.findall(r"M([\d.]+) [\d.]+h([\d.]+)", picture))
    assert widest <= ACROSS


def test_timeline_of_few_micro_batches_is_whole() -> None:
    run = simulate(
        make_order("1f1b", ranks=4, micro_batches=8, vp=None), forward=1.0, backward_input=2.0, weight=0.0
    )
    assert not is_folded(run, ACROSS)
