"""The expert's walk through the textbook's first scenario, and others."""

from __future__ import annotations

import json

import pytest

from meshplan.cli import main
from meshplan.cluster.presets import cluster_of
from meshplan.cost.models import cost_model_named
from meshplan.cost.scenarios import SCENARIOS
from meshplan.model.load import load_model
from meshplan.plan.rules import HANDBOOK_RULES
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
from meshplan.search.reasons import Case
from meshplan.search.reasons_walk import walk


def textbook(index: int = 0) -> Case:
    scenario = SCENARIOS[index]
    return Case(
        model=scenario.model, cluster=scenario.cluster, workload=scenario.workload,
        space=Space.handbook(), cost_model=scenario.cost_model, rules=HANDBOOK_RULES,
    )  # fmt: skip


def test_70b_on_64_gpus_by_hand() -> None:
    """States are 4ψ/(tp·pp) + 12ψ/(tp·pp·dp·cp) for ψ = 70.6e9 and a limit of 72e9 bytes: 295.6, 154.4, 83.8
    and 48.5 GB for tp 1, 2, 4 and 8. With tp 8 the activations are 34·80·8192·8192/8 = 22.8 GB: 71.3 GB fit.
    That is the textbook's fifth plan (49.3 % MFU); its best one is tp 4, cp 2, pp 2."""
    found = walk(textbook())
    states, activations, data, *_ = found.steps
    psi = 70.6e9
    for row, tp in zip(states.tried, (1, 2, 4, 8), strict=True):
        assert row.plan.tp == tp
        assert row.states_bytes == pytest.approx(4 * psi / tp + 12 * psi / tp / (64 / tp), rel=1e-9)
        assert row.enough == (tp == 8)
    first = activations.tried[0]
    assert first.memory_bytes == pytest.approx(first.states_bytes + 34 * 80 * 8192 * 8192 / 8, rel=1e-9)
    assert dict(data.facts) == {"dp": 8, "gbs": 512, "mbs": 1, "micro_batches": 64}
    assert found.end is not None
    assert float(found.end.mfu[0]) == pytest.approx(0.493, abs=0.0005)
    assert found.comparison is not None
    assert found.comparison.slower == pytest.approx(53.7 / 49.3 - 1, abs=0.002)
    by_name = {d.name: d for d in found.disagreements}
    assert set(by_name) == {"tp", "cp", "pp"}
    assert by_name["tp"].alone is not None
    assert not by_name["tp"].alone.enough  # 83.8 GB of states


def test_8b_on_8_gpus_needs_no_tensor_parallelism() -> None:
    found = walk(textbook(2))
    assert found.end is not None
    plan = found.end.plans[0]
    assert (plan.tp, plan.pp) == (1, 1)
    assert bool(found.end.fits[0])


@pytest.mark.parametrize(
    ("model", "gpu", "gpus", "seq", "gbs"),
    [
        ("llama-3.1-405b", "h100-sxm", 16384, 8192, 2048),
        ("deepseek-v3", "h800", 2048, 4096, 16384),
        ("qwen3-30b-a3b", "h100-sxm", 16, 4096, 512),
        ("llama-3.1-8b", "rtx-4090", 8, 4096, 64),
    ],
)
def test_the_walk_ends_at_a_plan_that_fits(model: str, gpu: str, gpus: int, seq: int, gbs: int) -> None:
    case = Case(
        model=load_model(model), cluster=cluster_of(gpu, gpus), workload=Workload(seq=seq, gbs=gbs),
        space=Space(), cost_model=cost_model_named("full"),
    )  # fmt: skip
    found = walk(case)
    assert found.end is not None
    assert bool(found.end.fits[0])
    plan = found.end.plans[0]
    assert plan.gpus == gpus
    assert gbs % (plan.dp * plan.mbs) == 0
    if found.comparison is not None:
        assert found.comparison.slower >= -1e-9  # the search tries all that the walk tries


def test_on_the_command_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    argv = ["plan", "llama-3.1-70b", "--gpu", "h100-sxm", "--gpus", "64", "--seq", "8192", "--gbs", "512",
            "--top", "1", "--explain-steps"]  # fmt: skip
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for words in ("1. fit the model's states", "2. fit the activations", "3. give the rest to data",
                  "4. tune the pipeline", "5. measure", "The walk ends at", "The search"):  # fmt: skip
        assert words in text
    assert main([*argv, "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert [s["name"] for s in steps["steps"]] == ["states", "activations", "data", "pipeline", "measure"]
