"""What if: the same as asking the changed question from the start."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from meshplan.cli import main
from meshplan.cluster.presets import cluster_of
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.stack import load_stack
from meshplan.cost.handbook import Handbook
from meshplan.cost.models import cost_model_named
from meshplan.errors import InputError
from meshplan.model.load import load_model
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
from meshplan.search.reasons import Case
from meshplan.search.search import search
from meshplan.search.what_if import what_if

MODEL = load_model("llama-3.1-70b")
RUN = ["llama-3.1-70b", "--gpu", "h100-sxm", "--gpus", "64", "--seq", "8192", "--gbs", "512"]


def case(cost_model: str = "handbook") -> Case:
    return Case(
        model=MODEL, cluster=cluster_of("h100-sxm", 64), workload=Workload(seq=8192, gbs=512), space=Space(),
        cost_model=cost_model_named(cost_model), ties=False,
    )  # fmt: skip


def best(cluster, workload, cost_model) -> float:
    found = search(MODEL, cluster, workload, cost_model=cost_model, advise=False, fidelity="estimate")
    return float(found.costs.step_s[0])


H100, BATCH = cluster_of("h100-sxm", 64), Workload(seq=8192, gbs=512)
FULL = FullModel.of()
QUESTIONS = [
    ("handbook", "nic=2x", cluster_of("h100-sxm", 64, nic=100e9), BATCH, Handbook()),
    ("handbook", "nic=200 Gb/s", cluster_of("h100-sxm", 64, nic=25e9), BATCH, Handbook()),
    ("handbook", "gbs=2048", H100, Workload(seq=8192, gbs=2048), Handbook()),
    ("handbook", "gbs=+100%", H100, Workload(seq=8192, gbs=1024), Handbook()),
    ("handbook", "seq=16384,gbs=256", H100, Workload(seq=16384, gbs=256), Handbook()),
    ("handbook", "gpus=128", cluster_of("h100-sxm", 128), BATCH, Handbook()),
    ("handbook", "overlap_dp=off", H100, BATCH, Handbook(dp_hidden=0.0)),
    ("handbook", "overlap_pp=100%", H100, BATCH, Handbook(pp_hidden=1.0)),
    ("handbook", "matmul=0.5", H100, BATCH, Handbook(matmul_efficiency=0.5)),
    ("handbook", "gpus_per_node=4", cluster_of("h100-sxm", 64, gpus_per_node=4), BATCH, Handbook()),
    ("full", "gpu=h200", cluster_of("h200", 64), BATCH, FULL),
    ("full", "stack=llama-3", H100, BATCH, FullModel.of("llama-3")),
    (
        "full", "overlap_tp=off", H100, BATCH,
        FullModel(stack=replace(load_stack("megatron-core-2025"), tp_exposed=1.0)),
    ),
    ("full", "precision=fp8", H100, replace(BATCH, precision="fp8"), FULL),
]  # fmt: skip


@pytest.mark.parametrize(("cost_model", "change", "cluster", "workload", "model"), QUESTIONS)
def test_the_same_as_asking_the_changed_question(cost_model, change, cluster, workload, model) -> None:
    found = what_if(case(cost_model), change)
    assert float(found.after.costs.step_s[0]) == pytest.approx(best(cluster, workload, model), rel=1e-9)
    assert float(found.before.costs.step_s[0]) == pytest.approx(
        best(H100, BATCH, cost_model_named(cost_model)), rel=1e-12
    )


def test_gradient_sync_without_overlap_by_hand() -> None:
    """The textbook hides 80 % of gradient sync: without overlap it takes five times as long."""
    found = what_if(case(), "overlap_dp=off")
    assert found.old_then is not None
    before, then = found.before.costs, found.old_then
    dp = float(before.time["dp"][0])
    assert float(then.time["dp"][0]) == pytest.approx(5 * dp)
    assert float(then.step_s[0] - before.step_s[0]) == pytest.approx(4 * dp)


def test_more_memory_needs_no_more_time() -> None:
    found = what_if(case("full"), "memory=141GB")
    assert found.old_then is not None
    after, old = float(found.after.costs.step_s[0]), float(found.old_then.step_s[0])
    assert after <= old <= float(found.before.costs.step_s[0])
    assert found.after.costs.memory_limit_bytes == pytest.approx(
        found.before.costs.memory_limit_bytes * 141e9 / (80 * 2**30)
    )


def test_imbalance_of_experts_makes_the_step_longer() -> None:
    """NVIDIA-NeMo/Megatron-Bridge#947: with real routing 14.4 become 15.9 s; benchmarks force balance."""
    moe = Case(
        model=load_model("qwen3-30b-a3b"), cluster=cluster_of("h100-sxm", 16),
        workload=Workload(seq=4096, gbs=512), space=Space(tp=(1,), cp=(1,), pp=(2,), ep=(2,), etp=(1,)),
        cost_model=FULL,
    )  # fmt: skip
    found = what_if(moe, "imbalance=1.2")
    assert found.old_then is not None
    assert 1.0 < float(found.old_then.step_s[0] / found.before.costs.step_s[0]) < 1.2


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("nic", "write it like nic=2x"),
        ("nic=", "write it like nic=2x"),
        ("nic=fast", "bandwidth"),
        ("nic=0x", "no factor above 0"),
        ("nik=2x", "did you mean"),
        ("gbs=1.5", "not a whole number or a factor"),
        ("gbs=0.001x", "not a whole number"),
        ("overlap_tp=off", "nothing called"),
        ("overlap_dp=maybe", "on, off or a share"),
        ("precision=fp6", "precision must be one of"),
        ("gpus=63", "63 GPUs"),
        ("gpu=h999", "unknown GPU"),
        ("memory=141", "no unit"),
    ],
)
def test_changes_that_make_no_sense(change: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        what_if(case(), change)


def test_on_the_command_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    argv = ["plan", *RUN, "--space", "plain", "--top", "1", "--what-if", "nic=2x,gbs=2048", "--sensitivities"]
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for words in (
        "what if: nic 100 GB/s instead of 50 GB/s, gbs 2048 instead of 512",
        "best before",
        "best after",
    ):
        assert words in text
    assert "the binding one" in text
    assert main([*argv, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [c["name"] for c in data["what_if"]["changes"]] == ["nic", "gbs"]
    assert data["what_if"]["before"]["step_s"] == data["plans"][0]["step_s"]
    assert data["sensitivities"]["binding"] == "peak"


def test_overlap_of_data_parallelism_is_that_of_fsdp_too() -> None:
    """FSDP's gathers and scatters of weights hide behind computing as gradient sync does: off is off for
    both."""
    found = what_if(case("full"), "overlap_dp=off")
    stack = found.case.cost_model.stack  # type: ignore[attr-defined]
    assert (stack.dp_overlap, stack.fsdp_overlap) == (False, 0.0)


def test_memory_is_told_as_gpus_show_it() -> None:
    """141 GB are 131.3 GiB; an 80 GB H100 has 80 GiB."""
    (change,) = what_if(case("full"), "memory=141GB").changes
    assert (change.old, change.new) == ("80.0 GiB", "131.3 GiB")


@pytest.mark.parametrize("change", ["nic=0x", "memory=-100%", "gbs=0x"])
def test_a_factor_that_leaves_nothing(change: str, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["plan", "llama-3.1-8b", "--gpu", "h100-sxm", "--gpus", "16", "--seq", "4096", "--gbs", "64"]
    assert main([*ask, "--what-if", change]) == 2
    assert capsys.readouterr().err.endswith("is no factor above 0\n")
