"""Pictures of a schedule: terminal, SVG, Chrome trace. What people see is kept as snapshots.

``MESHPLAN_WRITE_SNAPSHOTS=1 pytest tests/schedule`` writes them anew.
"""

from __future__ import annotations

import io
import json
import os
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshplan.report.screen import Screen
from meshplan.report.timeline import compare_table, critical_path_text, draw_timeline, rank_table, shares
from meshplan.report.timeline_svg import draw_svg
from meshplan.report.timeline_trace import write_trace
from meshplan.schedule.generate import SCHEDULES, make_order
from meshplan.schedule.result import Simulation
from meshplan.schedule.simulate import simulate

SNAPSHOTS = Path(__file__).parent / "snapshots"


def check_snapshot(name: str, text: str) -> None:
    path = SNAPSHOTS / name
    if os.environ.get("MESHPLAN_WRITE_SNAPSHOTS") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def run(name: str, ranks: int = 4, micro_batches: int = 8, **more: Any) -> Simulation:
    order = make_order(name, ranks=ranks, micro_batches=micro_batches)
    return simulate(order, **{"forward": 1.0, "backward_input": 1.0, "weight": 1.0, **more})


def trace_of(simulation: Simulation) -> list[dict[str, Any]]:
    out = io.StringIO()
    write_trace(simulation, out)
    found = json.loads(out.getvalue())
    assert set(found) == {"displayTimeUnit", "otherData", "traceEvents"}
    events: list[dict[str, Any]] = found["traceEvents"]
    return events


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "dualpipe"])
def test_terminal_snapshot(name: str) -> None:
    simulation = run(name, p2p=0.25)
    screen = Screen(width=80)
    text = "\n\n".join(
        [
            draw_timeline(simulation, screen),
            rank_table(simulation, screen),
            critical_path_text(simulation, screen),
        ]
    )
    check_snapshot(f"{name}.txt", text + "\n")


def test_terminal_without_colour_or_unicode() -> None:
    plain = draw_timeline(run("1f1b"), Screen(width=60, unicode=False))
    assert plain.isascii()
    assert all(len(line) <= 60 for line in plain.splitlines()[1:])
    assert "\x1b" in draw_timeline(run("1f1b"), Screen(width=60, colour=True))


def test_terminal_by_hand() -> None:
    """GPipe, 2 ranks, 2 micro-batches: 9 units of time in 27 columns, three a unit."""
    text = draw_timeline(run("gpipe", 2, 2), Screen(width=27 + 15))
    rows = [line.split("rank ")[1][2:29] for line in text.splitlines() if line.startswith("rank")]
    assert rows == ["FFFFFF" + "·" * 9 + "B" * 12, "···FFFFFF" + "B" * 12 + "·" * 6]


@pytest.mark.parametrize("name", SCHEDULES)
def test_shares_sum_to_the_busy_time(name: str) -> None:
    simulation = run(name, p2p=0.3)
    for rank in range(4):
        parts = shares(simulation, rank, 50)
        assert parts.min() >= -1e-9
        assert parts.sum(axis=1).max() <= 1 + 1e-9
        assert parts.sum() * simulation.step / 50 == pytest.approx(simulation.busy[rank])


def test_compare_snapshot() -> None:
    runs = []
    for name in ("1f1b", "interleaved", "zb-v", "dualpipe"):
        order = make_order(name, ranks=8, micro_batches=32)
        each = order.ranks / order.stages
        runs.append((name, simulate(order, forward=each, backward_input=each, weight=each)))
    check_snapshot("compare.txt", compare_table(runs, Screen(width=100)) + "\n")


@pytest.mark.parametrize("name", ["1f1b", "zb-v"])
def test_svg_snapshot(name: str) -> None:
    check_snapshot(f"{name}.svg", draw_svg(run(name)))


def svg_of(simulation: Simulation) -> tuple[ET.Element, dict[str, list[ET.Element]], str]:
    text = draw_svg(simulation)
    root = ET.fromstring(text)
    found: dict[str, list[ET.Element]] = defaultdict(list)
    for element in root.iter():
        found[element.tag.split("}")[1]].append(element)
    return root, found, text


def test_svg_has_words_for_those_who_cannot_see_it() -> None:
    root, found, _ = svg_of(run("zb-h1", 8, 32))
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-labelledby"] == "title desc"
    assert (found["title"][0].text or "").startswith("zb-h1: 8 ranks, 32 micro-batches; step 103, 6.8% idle")
    assert "8 activations are alive" in (found["desc"][0].text or "")


def test_svg_readable_at_8_by_32() -> None:
    """Every action is a box at least 12 pixels wide, and carries its micro-batch's number."""
    root, found, text = svg_of(run("zb-h1", 8, 32))
    assert float(root.attrib["width"]) <= 3300
    boxes = [r for r in found["rect"] if 12 <= float(r.attrib["width"]) < 100]
    assert len(boxes) >= 3 * 8 * 32
    numbers = [t.text for t in found["text"] if t.attrib.get("class") == "n"]
    assert len(numbers) == 3 * 8 * 32
    assert len(text) < 500_000


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "gpipe"])
def test_svg_readable_at_64_by_512(name: str) -> None:
    """A row a rank with its label in an image one screen wide, small enough to open at once."""
    root, found, text = svg_of(run(name, 64, 512))
    assert float(root.attrib["width"]) <= 1600
    assert float(root.attrib["height"]) <= 1000
    labels = {t.text for t in found["text"] if t.attrib.get("class") == "r"}
    assert {f"rank {r}" for r in range(64)} <= labels
    assert len(text) < 3_000_000


def test_svg_boxes_are_where_the_work_is() -> None:
    simulation = run("1f1b", 2, 2)
    root, found, _ = svg_of(simulation)
    scale = (float(root.attrib["width"]) - 130) / simulation.step
    xs = sorted(float(t.attrib["x"]) for t in found["text"] if t.attrib.get("class") == "n")
    middles = sorted((70 + scale * (simulation.start + simulation.end) / 2).tolist())
    assert xs == pytest.approx(middles, abs=0.01)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(
    "more", [{}, {"p2p": 0.3}, {"p2p": 0.3, "overlap_p2p": False, "tail": 2.0}, {"pair_share": 0.8}]
)
def test_trace_is_valid_and_sums_to_the_step(name: str, more: dict[str, Any]) -> None:
    """The Trace Event Format's required fields; slices of a rank fill its step without overlap."""
    simulation = run(name, **more)
    events = trace_of(simulation)
    slices: dict[int, list[dict[str, Any]]] = defaultdict(list)
    required = {
        "X": {"ts", "dur"},
        "M": {"args"},
        "C": {"ts", "args"},
        "s": {"ts", "id", "cat"},
        "f": {"ts", "id", "cat", "bp"},
    }
    for event in events:
        assert {"name", "ph", "pid", "tid"} | required[event["ph"]] <= set(event)
        if event["ph"] == "X":
            slices[event["pid"]].append(event)
    assert sorted(slices) == list(range(4))
    for row in slices.values():
        assert sum(e["dur"] for e in row) == pytest.approx(simulation.step * 1e6)
        ends = np.cumsum([e["dur"] for e in row])
        assert [e["ts"] for e in row] == pytest.approx([0.0, *ends[:-1]], abs=1e-3)
    busy = [sum(e["dur"] for e in slices[r] if e["cat"] != "bubble") for r in range(4)]
    assert busy == pytest.approx(simulation.busy * 1e6)


def test_trace_flows_join_slices() -> None:
    """Every arrow starts inside the slice that sends and ends where the one that needs it starts."""
    simulation = run("zb-v", p2p=0.3)
    events = trace_of(simulation)
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    slices = [e for e in events if e["ph"] == "X"]
    # 7 boundaries of 8 stages, the turn on rank 3 costs no transfer: 6 forward and 6 backward a micro-batch
    assert len(starts) == len(ends) == 2 * 6 * 8
    for number, start in starts.items():
        end = ends[number]
        assert start["pid"] != end["pid"]
        assert end["ts"] >= start["ts"]
        sender = [
            s for s in slices if s["pid"] == start["pid"] and s["ts"] < start["ts"] < s["ts"] + s["dur"]
        ]
        needer = [s for s in slices if s["pid"] == end["pid"] and s["ts"] == end["ts"]]
        assert len(sender) == len(needer) == 1
        assert sender[0]["args"]["micro_batch"] == needer[0]["args"]["micro_batch"]
        assert abs(sender[0]["args"]["stage"] - needer[0]["args"]["stage"]) == 1


def test_trace_counts_activations() -> None:
    events = trace_of(run("1f1b"))
    alive = [e["args"]["alive"] for e in events if e["ph"] == "C" and e["pid"] == 0]
    assert max(alive) == 4
    assert alive[-1] == 0


def test_trace_names_an_overlapped_pair() -> None:
    names = [e["name"] for e in trace_of(run("dualpipe-v", 2, 8, pair_share=0.8)) if e["ph"] == "X"]
    assert any(" + B" in name for name in names)
