"""Why not this plan: the verdict, and fixes that are asked again from the start."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from meshplan.cli import main
from meshplan.cluster.presets import cluster_of
from meshplan.cost.models import cost_model_named
from meshplan.model.load import load_model
from meshplan.plan.kinds import Sharding
from meshplan.plan.plans import Plan
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
from meshplan.report.plan_names import plan_names
from meshplan.search.reasons import Case, answer
from meshplan.search.reasons_not import why_not, with_changes

RUN = ["llama-3.1-70b", "--gpu", "h100-sxm", "--gpus", "64", "--seq", "8192", "--gbs", "512"]


def case(
    model: str = "llama-3.1-70b", gpu: str = "h100-sxm", gpus: int = 64, seq: int = 8192, gbs: int = 512,
    cost_model: str = "full",
) -> Case:  # fmt: skip
    return Case(
        model=load_model(model), cluster=cluster_of(gpu, gpus), workload=Workload(seq=seq, gbs=gbs),
        space=Space(), cost_model=cost_model_named(cost_model), ties=False,
    )  # fmt: skip


WISHES: list[dict[str, Any]] = [
    {"tp": 1, "pp": 8}, {"tp": 8, "pp": 1}, {"tp": 3, "pp": 7}, {"pp": 9}, {"tp": 1, "cp": 1, "pp": 1},
    {"tp": 16}, {"mbs": 3}, {"dp": 64}, {"dp": 5}, {"tp": 2, "cp": 16, "pp": 2, "mbs": 2}, {"cp": 64},
    {"tp": 1, "pp": 1, "cp": 1, "recompute_layers": 0},
]  # fmt: skip


@pytest.mark.parametrize("cost_model", ["handbook", "full"])
@pytest.mark.parametrize("wish", WISHES, ids=str)
def test_every_fix_works_when_asked_again(wish: dict[str, Any], cost_model: str) -> None:
    asked = case(cost_model=cost_model)
    found = why_not(asked, wish)
    assert found.verdict in ("invalid", "memory", "slower", "best")
    assert (found.verdict == "invalid") == bool(found.answer.broken)
    for fix in found.fixes:
        again = answer(*with_changes(asked, wish, fix))
        assert again.fits, fix.changes
        assert again.costs is not None
        assert float(again.costs.step_s[0]) == pytest.approx(float(fix.costs.step_s[0]), rel=1e-9)
        if found.verdict == "slower":
            assert found.answer.costs is not None
            assert float(fix.costs.step_s[0]) < float(found.answer.costs.step_s[0])
    if found.verdict in ("invalid", "memory"):
        assert found.fixes


def test_no_smaller_change_works() -> None:
    """Brute force: LLaMA 2 7B on eight A100 of 40 GB with tp 1 and pp 1 needs gradients sharded, which keeps
    both, or one of them doubled."""
    asked = case("llama-2-7b", "a100-40gb", 8, 64, 8)
    wish = {"tp": 1, "pp": 1}
    found = why_not(asked, wish)
    assert found.verdict == "memory"
    first = found.fixes[0].changes
    assert [(c.name, c.new) for c in first] == [("sharding", Sharding.ZERO2)]
    assert answer(asked, {**wish, "sharding": Sharding.ZERO2}).fits
    near = [fix for fix in found.fixes if fix.kind != "fastest" and fix.changes[0].name in wish]
    changes = near[0].changes
    assert (changes[0].old, changes[0].new) == (1, 2)
    assert not answer(asked, wish).fits
    works = [name for name in wish if answer(asked, {**wish, name: 2}).fits]
    assert changes[0].name in works


def things_changed(plan: Plan, other: Plan) -> int:
    """Fields in which two plans differ, those aside that follow from others or that the search finds."""
    follow = ("dp", "layout", "recompute_layers", *(("schedule",) if plan.vp != other.vp else ()))
    names = [name for name in Plan.__slots__ if name not in follow]
    return sum(getattr(plan, name) != getattr(other, name) for name in names)


@pytest.mark.parametrize("wish", [{"tp": 1, "pp": 8}, {"tp": 3, "pp": 7}, {"tp": 1, "cp": 2}], ids=str)
def test_the_simplest_fix_comes_first_and_then_the_fastest(wish: dict[str, int]) -> None:
    """Brute force over every plan of the space that works without one of the fields, or without both."""
    asked = case(cost_model="handbook")
    found = why_not(asked, wish)
    first, others = found.fixes[0], found.fixes[1:]
    assert first.kind == "simplest"
    limit = math.inf if found.verdict == "invalid" else float(found.answer.costs.step_s[0]) * 0.999  # type: ignore[union-attr]
    everything = asked.search(keep=100_000).costs
    plans = [p for p, s in zip(everything.plans, everything.step_s, strict=True) if s <= limit]
    steps = everything.step_s[everything.step_s <= limit]
    for count in (1, 2):
        near = [
            (things_changed(found.answer.plan, plan), float(step))
            for plan, step in zip(plans, steps, strict=True)
            if sum(getattr(plan, name) != value for name, value in wish.items()) <= count
        ]
        if near:
            break
    assert things_changed(found.answer.plan, first.costs.plans[0]) == min(near)[0] == len(first.changes)
    least = min(step for _, step in near)
    fastest = next((fix for fix in others if fix.kind == "fastest"), first)
    assert float(fastest.costs.step_s[0]) == pytest.approx(least, rel=1e-9)


def test_the_memory_that_would_do_is_the_least() -> None:
    asked = case("llama-2-7b", "a100-40gb", 8, 64, 8)
    wish = {"tp": 1, "pp": 1}
    fix = next(f for f in why_not(asked, wish).fixes if f.changes[0].name == "memory")
    need = float(fix.changes[0].new)
    gpu = asked.cluster.gpu

    def with_memory(board: float) -> Case:
        usable = board * gpu.usable_hbm_bytes / gpu.hbm_bytes
        return asked.on(replace(asked.cluster, gpu=replace(gpu, usable_hbm_bytes=usable, hbm_bytes=board)))

    assert answer(with_memory(need * 1.0001), wish).fits
    assert not answer(with_memory(need * 0.999), wish).fits


def test_memory_is_named_as_what_if_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    """The board's memory that ``why-not`` asks for, typed back: with it the plan fits, not with less."""
    plan = ["--tp", "1", "--pp", "1", "--cp", "1", "--mbs", "1", "--sharding", "zero1"]
    assert main(["why-not", *RUN, *plan]) == 1
    text = " ".join(capsys.readouterr().out.split())
    told = re.search(r"memory of a GPU ([\d.]+) GiB instead of 80.0 GiB \(([\d.]+) GiB usable instead", text)
    assert told is not None
    board, usable = map(float, told.groups())
    assert f"does not fit: {usable} GiB a GPU" in text
    for less, fits in ((0.0, True), (1.0, False)):
        change = f"memory={board - less:.1f}GiB"
        main(["plan", *RUN, *plan, "--no-ties", "--what-if", change, "--json"])
        after = json.loads(capsys.readouterr().out)["what_if"]["after"]
        assert (after is not None) is fits


def test_host_memory_is_offered_where_it_helps() -> None:
    """LLaMA 2 7B on eight A100 of 40 GB, cut in two and not sharded: 3.37 B parameters of 18 bytes are
    61 GB, and 20 GB without the 12 of the optimizer."""
    asked = case("llama-2-7b", "a100-40gb", 8, 1024, 8)
    wish = {"tp": 2, "pp": 1, "sharding": Sharding.DDP}
    found = why_not(asked, wish)
    assert found.verdict == "memory"
    fix = next(f for f in found.fixes if f.changes[0].name == "offload")
    changed, same = with_changes(asked, wish, fix)
    assert changed.workload.offload == "optimizer"
    assert answer(changed, same).fits


@pytest.mark.parametrize("objective", ["step", "memory"])
def test_no_plan_is_offered_twice_and_the_fastest_is_the_fastest(objective: Any) -> None:
    """``tp 8, pp 4, mbs 4``: freeing each of the three leads to the same plan with vp 10."""
    asked = replace(case(), space=Space.of("small", load_model("llama-3.1-70b")), simulate=True)
    wishes: list[dict[str, Any]] = [{"tp": 8, "pp": 4, "mbs": 4}, {"tp": 3, "pp": 7}]
    for wish in wishes:
        found = why_not(replace(asked, objective=objective), wish)
        plans = [fix for fix in found.fixes if fix.changes[0].name not in ("memory", "seq", "gbs", "gpus")]
        names = [plan_names(fix.costs.plans, asked.space.order)[0] for fix in plans]
        assert len(set(names)) == len(names)
        for fix in plans:
            if fix.kind == "fastest":
                assert min(float(other.costs.step_s[0]) for other in plans) == float(fix.costs.step_s[0])


def test_sharded_parameters_are_offered() -> None:
    """NVIDIA/Megatron-LM#2762: Qwen3-30B-A3B runs out of memory on one node, and not when fully sharded."""
    wish = {"tp": 1, "pp": 1, "ep": 1, "etp": 1, "cp": 1}
    found = why_not(case("qwen3-30b-a3b", "h100-sxm", 8, 4096, 64), wish)
    assert found.verdict == "memory"
    offered = {c.new for fix in found.fixes for c in fix.changes if c.name == "sharding"}
    assert Sharding.ZERO3 in offered


def test_rank_counts_the_faster_plans() -> None:
    asked = case(cost_model="handbook")
    found = why_not(asked, {"tp": 8, "cp": 1, "pp": 1, "mbs": 1})
    steps = asked.search(keep=100_000).costs.step_s
    assert found.answer.costs is not None
    own = float(found.answer.costs.step_s[0])
    assert found.rank == 1 + int((steps < own * (1 - 1e-9)).sum())
    assert found.slower == pytest.approx(own / float(steps[0]) - 1)


def test_the_best_plan_has_nothing_against_it() -> None:
    asked = case(cost_model="handbook")
    best = asked.search().best
    assert best is not None
    found = why_not(asked, {"tp": best.tp, "cp": best.cp, "pp": best.pp, "mbs": best.mbs})
    assert (found.verdict, found.rank, found.fixes) == ("best", 1, ())


# ── the command ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--tp", "1", "--pp", "8"], 0, "it fits, and is slower"),
        (["--tp", "1", "--pp", "1", "--cp", "1", "--space", "plain"], 1, "does not fit"),
        (["--tp", "3"], 1, "not valid: no such plan can run"),
        (["--plan", "tp8,pp1,ring"], 0, "it fits"),
        (["--tp", "8", "--plan", "no-sp"], 0, "it fits"),
    ],
)
def test_text(capsys: pytest.CaptureFixture[str], flags: list[str], code: int, words: str) -> None:
    assert main(["why-not", *RUN, *flags]) == code
    text = capsys.readouterr().out
    assert words in text
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why-not", *RUN, "--tp", "3", "--pp", "7", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["verdict"] == "invalid"
    assert {row["rule"] for row in data["broken"]} >= {"gpus-product", "tp-divides-heads"}
    assert [(c["name"], c["new"]) for c in data["fixes"][0]["changes"]] == [("tp", 4), ("pp", 8)]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], "no plan in question"),
        (["--tp", "1,2"], "one value"),
        (["--plan", "nothing"], "--plan"),
        (["--tp", "0"], "--tp must be from 1 to"),
    ],
)
def test_no_plan_in_question(capsys: pytest.CaptureFixture[str], flags: list[str], expected: str) -> None:
    assert main(["why-not", *RUN, *flags]) == 2
    assert expected in capsys.readouterr().err
