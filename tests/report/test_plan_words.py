"""Plans as short words, and questions as job files and commands: what is written reads back the same."""

from __future__ import annotations

import contextlib
import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.cli import main
from meshplan.cluster.cluster import Cluster, Tier
from meshplan.cluster.presets import cluster_of, load_gpu
from meshplan.errors import InputError
from meshplan.model.load import load_model
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, Plan, Plans
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
from meshplan.report.job_text import job_table, job_text, model_word, plan_command
from meshplan.report.plan_key import find_plan, plan_key, read_plan
from meshplan.report.plan_names import plan_names
from meshplan.report.plan_rows import layout_data
from meshplan.report.saved import plan_of_data

DEGREE = st.integers(1, 4096)
PLANS = st.builds(
    Plan,
    tp=DEGREE, cp=DEGREE, pp=DEGREE, dp=DEGREE, ep=DEGREE, etp=DEGREE, mbs=DEGREE, replicas=DEGREE,
    vp=st.integers(1, 32),
    sp=st.booleans(),
    cp_kind=st.sampled_from(CpKind),
    schedule=st.sampled_from(Schedule),
    sharding=st.sampled_from(Sharding),
    recompute_layers=st.one_of(st.integers(0, 200), st.just(ALL_LAYERS)),
    recompute_modules=st.lists(st.sampled_from([m for m in Recompute if m])).map(
        lambda ms: Recompute(sum({int(m) for m in ms}))
    ),
    layout=st.one_of(st.none(), st.lists(st.integers(0, 200), min_size=1, max_size=12).map(tuple)),
)  # fmt: skip


@given(PLANS)
@settings(max_examples=300)
def test_a_plan_reads_back_from_its_key(plan: Plan) -> None:
    assert replace(Plan(), **read_plan(plan_key(plan))) == plan


@given(PLANS)
def test_a_plan_reads_back_from_json(plan: Plan) -> None:
    row = layout_data(Plans.of(plan), 0, Workload(seq=1, gbs=10**9))
    assert plan_of_data(json.loads(json.dumps(row))) == plan


def test_a_key_is_short() -> None:
    assert plan_key(Plan(tp=4, cp=2, pp=2, dp=4)) == "tp4,cp2,dp4,pp2,mbs1"


def test_words_of_the_table_are_read_as_well() -> None:
    assert read_plan("tp4 cp2 re3 mlp zero3") == {
        "tp": 4,
        "cp": 2,
        "recompute_layers": 3,
        "recompute_modules": Recompute.MLP,
        "sharding": Sharding.ZERO3,
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("tp4,tp8", "gives tp more than once"),
        ("tp0", "tp in a plan must be from 1 to 10,000,000, not 0"),
        ("zero9", "'zero9' is no part of a plan; did you mean"),
        ("recompute=x", "is not a number of layers, full or a module"),
        ("x" * 700, "a plan is at most 600 characters"),
    ],
)
def test_words_that_are_none(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read_plan(text)


@given(st.text(max_size=80))
@settings(max_examples=300)
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InputError):  # any other error fails the test
        assert isinstance(read_plan(text), dict)


def test_finding_a_plan_looks_at_recomputation_last() -> None:
    plans = Plans.of(Plan(tp=2, recompute_layers=3), Plan(tp=2, recompute_layers=5), Plan(tp=4))
    assert find_plan(plans, Plan(tp=2, recompute_layers=5)) == 1
    assert find_plan(plans, Plan(tp=2)) == 0
    assert find_plan(plans, Plan(tp=8)) is None


# ── job files and commands ───────────────────────────────────────────────────────────────────────

LLAMA = load_model("llama-3.1-8b")
WORKLOAD = Workload(seq=4096, gbs=128)
H100 = load_gpu("h100-sxm")
TIERS = (
    Tier(name="NVLink: 4", span=4, bandwidth=1 / 3 * 1e12, latency_s=3.4e-6),
    Tier(name="pod", span=64, bandwidth=25e9, latency_s=1.4e-5),
    Tier(name="spine", span=128, bandwidth=12.5e9, latency_s=2e-5),
)
CLUSTERS = {
    "plain": cluster_of("h100-sxm", 64),
    "own network": cluster_of("h100-sxm", 64, nic="200 Gb/s"),
    "odd network": cluster_of("h100-sxm", 64, nic=1e11 / 3),
    "own node": cluster_of("h100-sxm", 64, gpus_per_node=4),
    "one node": cluster_of("b200", 8),
    "racks": cluster_of("gb200", 128),
    "tiers": Cluster(gpu=H100, gpus=128, tiers=TIERS, described=TIERS),
    "more memory": replace(
        cluster_of("h100-sxm", 64),
        gpu=replace(H100, hbm_bytes=1.2345e11, usable_hbm_bytes=1.2e11),
    ),
    "less filled": replace(cluster_of("h100-sxm", 64), memory_fraction=0.85),
}
SPACE = Space(
    tp=(2, 4),
    pp=(1, 2, 4),
    mbs=(1,),
    sharding=(Sharding.ZERO1, Sharding.ZERO3),
    order=("tp", "cp", "ep", "pp", "dp"),
)


def asked(capsys: pytest.CaptureFixture[str], argv: list[str]) -> dict[str, object]:
    assert main([*argv, "--json"]) == 0
    data: dict[str, object] = json.loads(capsys.readouterr().out)
    return data


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_job_file_asks_the_same(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = CLUSTERS[name]
    from meshplan.cli.job import load_job
    from meshplan.cluster.files import cluster_of_table

    path = tmp_path / "job.yaml"
    path.write_text(job_text(job_table(LLAMA, cluster, WORKLOAD, SPACE, "full")), encoding="utf-8")
    job = load_job(str(path))
    assert not isinstance(job.cluster, str | None)
    again = cluster_of_table(dict(job.cluster), where="job")
    assert (again.tiers, again.gpus, again.memory_fraction) == (
        cluster.tiers,
        cluster.gpus,
        cluster.memory_fraction,
    )
    assert again.gpu.hbm_bytes == cluster.gpu.hbm_bytes
    assert again.gpu.usable_hbm_bytes == cluster.gpu.usable_hbm_bytes
    assert again.gpu.peak_flops == cluster.gpu.peak_flops
    assert Space(**job.space) == SPACE
    assert Workload(**job.workload) == WORKLOAD
    assert (job.model, job.cost_model) == ("llama-3.1-8b", "full")


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_command_asks_the_same_as_the_job_file(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    question = (LLAMA, CLUSTERS[name], WORKLOAD, SPACE, "full")
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(job_text(job_table(*question)), encoding="utf-8")
    by_file = asked(capsys, ["plan", "job.yaml"])
    by_flags = asked(capsys, shlex.split(plan_command(*question))[1:])
    assert by_file["plans"] == by_flags["plans"]
    assert by_file["counts"] == by_flags["counts"]


def test_a_model_of_ones_own_is_named_by_its_file() -> None:
    llama = load_model("llama-3.1-8b")
    assert model_word(llama) == "llama-3.1-8b"
    assert model_word(replace(llama, vocab=1000)) == "./config.json"
    assert model_word(replace(llama, name="mine")) == "./config.json"


def test_words_that_a_shell_would_read_are_quoted() -> None:
    command = plan_command(LLAMA, CLUSTERS["own network"], WORKLOAD, word="$(rm -rf ~)")
    assert "'$(rm -rf ~)'" in command
    assert shlex.split(command)[2] == "$(rm -rf ~)"


def test_a_gpu_made_from_a_preset_has_its_curves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same datasheet under ``like`` costs the same; a tenth more of its peak makes the step shorter."""
    job = "model: llama-3.1-8b\ncluster:\n  gpu: {gpu}\n  gpus: 8\nworkload: {{seq: 4096, gbs: 64}}\n"
    steps = []
    for gpu in ("h100-sxm", "{like: h100-sxm}", "{like: h100-sxm, peak_flops: {bf16: 1088 TFLOP/s}}"):
        path = tmp_path / "job.yaml"
        path.write_text(job.format(gpu=gpu), encoding="utf-8")
        data = asked(capsys, ["plan", str(path), "--tp", "1", "--cp", "1", "--pp", "1", "--mbs", "1"])
        steps.append(data["plans"][0]["step_s"])  # type: ignore[index]
    assert steps[0] == steps[1]
    assert steps[2] < 0.97 * steps[0]


def test_a_gpu_without_curves_is_said_to_have_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.yaml"
    whole = replace(H100, name="mine", title="Mine", sources={}, like="")
    cluster = replace(cluster_of("h100-sxm", 8), gpu=whole)
    path.write_text(job_text(job_table(LLAMA, cluster, WORKLOAD)), encoding="utf-8")
    assert main(["plan", str(path)]) == 2
    said = capsys.readouterr().err
    assert "no curves are known for GPU 'Mine'; name the preset it resembles (like: h100-sxm)" in said


def test_replicas_of_shards_are_in_the_name() -> None:
    """Two plans that differ in nothing else do not look the same."""
    alone, copied = (Plan(tp=2, dp=64, replicas=n) for n in (1, 32))
    names = plan_names(Plans.of(alone, copied), ("tp", "cp", "ep", "dp", "pp"))
    assert names[1].split() == [*names[0].split(), "replicas32"]
