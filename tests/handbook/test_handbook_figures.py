"""The textbook model's published figures, digit by digit."""

from __future__ import annotations

import json
import re

import pytest

from meshplan.cli import main
from meshplan.cli.handbook import rank
from meshplan.cost.scenarios import SCENARIOS
from meshplan.search.ranking import Ranking

# As printed in the published chapter: fitting plans of each scenario.
FITTING = {"A": 24, "B": 23, "C": 16, "D": 28, "E": 28}

# scenario, rank, TP, CP, PP, DP, MFU, GiB, recomputed of the stage's layers, shares of the step in per cent
FIGURES = """
A 1 4 2 2 4   53.7 66 -     compute 89 imbalance 1 tp 8 bubble 1
A 2 4 2 4 2   52.2 50 -     compute 87 imbalance 4 tp 8 bubble 1
A 3 4 2 8 1   49.6 42 -     compute 83 imbalance 8 tp 8 bubble 1
A 5 8 1 1 8   49.3 66 -     compute 82 tp 18
A 9 8 1 4 2   47.1 42 -     compute 78 imbalance 3 tp 17 bubble 1
B 1 8 4 2 1   44.4 66 24/40 compute 74 recompute 15 imbalance 1 tp 8 bubble 3
B 2 4 8 2 1   44.2 66 32/40 compute 74 recompute 19 tp 3 bubble 3
B 3 8 4 1 2   43.8 66 64/80 compute 73 recompute 19 tp 8
B 6 8 1 1 8   41.8 65 80/80 compute 70 recompute 23 tp 7
C 1 1 2 1 4   59.9 58 -     compute 100
C 2 2 1 1 4   56.9 43 -     compute 95 tp 5
C 3 2 2 1 2   56.9 35 -     compute 95 tp 5
C 4 1 1 1 8   55.0 66 9/32  compute 92 recompute 8
D 1 8 1 1 128 47.6 55 -     compute 79 tp 17 dp 4
D 2 4 2 2 64  46.5 55 -     compute 77 imbalance 1 tp 7 bubble 11 dp 3
D 3 4 2 4 32  43.7 38 -     compute 73 imbalance 3 tp 7 bubble 16 dp 2
E 1 4 2 2 64  52.0 55 -     compute 87 imbalance 1 tp 8 bubble 3 dp 1
E 2 4 2 4 32  50.2 38 -     compute 84 imbalance 4 tp 8 bubble 4
E 3 8 1 1 128 48.9 55 -     compute 82 tp 18 dp 1
"""
ROWS = [line.split() for line in FIGURES.strip().splitlines()]


@pytest.fixture(scope="module")
def rankings() -> dict[str, Ranking]:
    return {scenario.id: rank(scenario) for scenario in SCENARIOS}


@pytest.mark.parametrize(("scenario", "count"), FITTING.items())
def test_as_many_plans_fit(rankings: dict[str, Ranking], scenario: str, count: int) -> None:
    assert len(rankings[scenario]) == rankings[scenario].counts.feasible == count


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}{row[1]}")
def test_figure(rankings: dict[str, Ranking], row: list[str]) -> None:
    scenario, place, tp, cp, pp, dp, mfu, gib, recomputed, *shares = row
    costs, i = rankings[scenario].costs, int(place) - 1
    plan = costs.plans[i]
    assert (plan.tp, plan.cp, plan.pp, plan.dp) == (int(tp), int(cp), int(pp), int(dp))
    assert f"{100 * costs.mfu[i]:.1f}" == mfu
    assert f"{costs.memory_bytes[i] / 2**30:.0f}" == gib
    layers = len(rankings[scenario].model.layers) // plan.pp
    assert (f"{plan.recompute_layers}/{layers}" if plan.recompute_layers else "-") == recomputed
    printed = dict(zip(shares[::2], map(int, shares[1::2]), strict=True))
    ours = {part: 100 * float(v[i] / costs.step_s[i]) for part, v in costs.time.items()}
    # Shares under half a per cent are left out, the others rounded to whole per cents.
    assert {part: round(share) for part, share in ours.items() if share >= 0.5} == printed


def test_the_figures_are_those_of_the_shared_file(shared_handbook: str) -> None:
    tables = re.findall(
        r"^\| ([A-E]) " + r"\| (\d+) " * 5 + r"\| ([\d.]+)% \| (\d+) \| (\S*) ?\| (.*) \|$",
        shared_handbook,
        re.MULTILINE,
    )
    theirs = [[*row[:8], row[8] or "-", *row[9].lower().split()] for row in tables]
    assert theirs == ROWS


def test_command_prints_every_scenario_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["handbook", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [scenario["id"] for scenario in data] == list("ABCDE")
    for scenario in data:
        assert scenario["fitting"] == len(scenario["plans"]) == FITTING[scenario["id"]]
        assert [p["rank"] for p in scenario["plans"]] == list(range(1, scenario["fitting"] + 1))
        mfus = [p["mfu"] for p in scenario["plans"]]
        assert mfus == sorted(mfus, reverse=True)
        for plan in scenario["plans"]:
            assert set(plan) == {
                "rank", "tp", "cp", "pp", "dp", "mfu", "step_s", "memory_bytes", "recomputed_layers", "time",
            }  # fmt: skip
            assert sum(plan["time"].values()) == pytest.approx(plan["step_s"], rel=1e-12)


def test_command_prints_a_table_for_each_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["handbook", "--top", "1"]) == 0
    out = capsys.readouterr().out
    for scenario, best in {"A": "53.7%", "B": "44.4%", "C": "59.9%", "D": "47.6%", "E": "52.0%"}.items():
        block = out[out.index(f"{scenario}: ") :]
        assert f"{FITTING[scenario]} plans fit" in block.splitlines()[0]
        assert best in block.splitlines()[2]
