"""``calibrate --from``: what people already have; fits checked on times made from known numbers."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from meshplan.calibrate.from_results import read_cases, stack_path
from meshplan.calibrate.kernels import read_kernels
from meshplan.calibrate.stack_fit import Case, fit_stack, prices
from meshplan.cli.app import run
from meshplan.cluster.curves import gemm_seconds
from meshplan.cluster.files import load_cluster
from meshplan.cluster.presets import cluster_of
from meshplan.cluster.profile import load_profile, profile_of
from meshplan.cost.full.stack import load_stack
from meshplan.errors import InputError
from meshplan.measure.cut import with_layers
from meshplan.measure.results import Result, append
from meshplan.measure.specs import RunSpec, spec_data
from meshplan.model.load import load_model
from meshplan.plan.kinds import Schedule, Sharding
from meshplan.plan.plans import DEFAULT_ORDER, Plan
from meshplan.plan.workload import Workload

MODEL, WORK = with_layers(load_model("llama-3.1-8b"), 8), Workload(seq=4096, gbs=16)
PLANS = (
    Plan(dp=8, sharding=Sharding.ZERO3),
    Plan(dp=8, sharding=Sharding.ZERO1),
    Plan(tp=2, dp=4, sharding=Sharding.ZERO3),
    Plan(tp=4, dp=2, sharding=Sharding.ZERO3),
    Plan(tp=8),
    Plan(pp=2, dp=4),
    Plan(pp=4, dp=2),
    Plan(pp=2, vp=2, dp=4, schedule=Schedule.INTERLEAVED),
)
CLUSTER = cluster_of("h100-sxm", 8)


def truth():
    """A stack unlike the shipped one in three scalars, and the steps it would take."""
    true = replace(load_stack("torchtitan"), matmul=0.6, host_layer_s=2e-3, step_s=20e-3)
    cases = [
        Case(model=MODEL, workload=WORK, plan=p, order=DEFAULT_ORDER, label=str(i), step_s=1.0)
        for i, p in enumerate(PLANS)
    ]
    return true, [
        replace(c, step_s=float(s)) for c, s in zip(cases, prices(cases, CLUSTER, true), strict=True)
    ]


def test_a_stack_is_found_again_from_its_steps():
    _, cases = truth()
    found = fit_stack(cases, CLUSTER, load_stack("torchtitan"), name="mine")
    assert found.error("before_s") > 0.1
    assert found.error("after_s") < 0.03
    assert found.error("held_back_s") < 0.05
    assert found.values.keys() >= {"matmul", "host_layer_s", "step_s"}


def test_noise_of_five_percent_leaves_about_that():
    _, cases = truth()
    rng = np.random.default_rng(3)
    noisy = [replace(c, step_s=c.step_s * float(np.exp(0.05 * rng.standard_normal()))) for c in cases]
    found = fit_stack(noisy, CLUSTER, load_stack("torchtitan"), name="mine")
    assert 0.005 < found.error("held_back_s") < 0.12


def test_a_fit_that_does_not_help_is_refused():
    _, cases = truth()
    stack = load_stack("torchtitan")
    fair = prices(cases, CLUSTER, stack)
    with pytest.raises(InputError, match="does not help"):
        fit_stack(
            [replace(c, step_s=float(s)) for c, s in zip(cases, fair, strict=True)], CLUSTER, stack, name="x"
        )
    with pytest.raises(InputError, match="too few"):
        fit_stack(cases[:3], CLUSTER, stack, name="x")


def results(path, cases):
    for i, c in enumerate(cases):
        spec = RunSpec(model=c.model, workload=c.workload, plan=c.plan, label=c.label)
        for turn, by in enumerate((0.98, 1.0, 1.02)):
            append(
                path,
                Result(
                    key=str(i), label=c.label, round=turn, outcome="ok", steps_s=(c.step_s * by,) * 3,
                    spec=spec_data(spec),
                ),
            )  # fmt: skip
    append(path, Result(key="x", label="x", round=0, outcome="oom", reason="full"))


def test_the_command_fits_a_stack_that_an_estimate_then_uses(tmp_path, capsys):
    _, cases = truth()
    lines, out = tmp_path / "results.jsonl", tmp_path / "mine.yaml"
    results(lines, cases)
    again = read_cases([lines], CLUSTER)
    assert [c.step_s for c in again] == pytest.approx([c.step_s for c in cases])
    machine = ["--gpu", "h100-sxm", "--gpus", "8"]
    assert run(["calibrate", *machine, "--from", str(lines), "--out", str(out), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    errors = data["stack"]["median_error"]
    assert errors["held_back"] < errors["before"] / 2
    assert len(data["stack"]["plans"]) == len(PLANS)
    question = ["estimate", "llama-3.1-8b", *machine, "--seq", "4096", "--gbs", "64", "--dp", "8", "--json"]
    assert run([*question, "--stack", str(stack_path(out))]) == 0
    fitted = json.loads(capsys.readouterr().out)["step_s"]
    assert run([*question, "--stack", "torchtitan"]) == 0
    assert fitted > 1.1 * json.loads(capsys.readouterr().out)["step_s"]


def test_results_of_another_cluster_or_of_no_run_are_refused(tmp_path):
    _, cases = truth()
    lines = tmp_path / "results.jsonl"
    results(lines, cases)
    with pytest.raises(InputError, match="ran on 8 ranks; cluster"):
        read_cases([lines], cluster_of("h100-sxm", 4))
    empty = tmp_path / "empty.jsonl"
    append(empty, Result(key="x", label="x", round=0, outcome="oom", reason="full"))
    with pytest.raises(InputError, match="no plan ran"):
        read_cases([empty], CLUSTER)
    with pytest.raises(InputError, match="do not exist"):
        read_cases([tmp_path / "nowhere.jsonl"], CLUSTER)


def test_a_gpu_of_another_rate_is_seen_in_its_products(tmp_path):
    """Times of an H100 that reaches 0.9 of the shipped rate and starts kernels in twice the time."""
    profile = load_profile("h100-sxm")
    curve = profile.gemm["bf16"]
    slower = replace(curve, efficiency=0.9 * curve.efficiency, start_s=2 * curve.start_s)
    other = replace(profile, gemm={**profile.gemm, "bf16": slower})
    table = tmp_path / "kernels.csv"
    with table.open("w") as f:
        out = csv.writer(f)
        out.writerow(["m", "n", "k", "latency_us"])
        for m in (512, 1024, 4096, 8192):
            for n in (1024, 4096, 14336):
                for k in (1024, 4096, 8192):
                    out.writerow([m, n, k, 1e6 * float(gemm_seconds(other, m, n, k, clock="burst"))])
    path = tmp_path / "mine.yaml"
    assert (
        run(["calibrate", "--gpu", "h100-sxm", "--gpus", "16", "--from", str(table), "--out", str(path)]) == 0
    )
    cluster = load_cluster(path)
    assert cluster.gpus == 16
    bent = profile_of(cluster.gpu).gemm["bf16"]
    assert bent.efficiency == pytest.approx(slower.efficiency, rel=0.02)
    assert profile_of(cluster.gpu).attention == load_profile("h100-sxm").attention


def test_tables_are_told_apart_by_their_columns(tmp_path):
    path = tmp_path / "all.csv"
    path.write_text(
        "op,m,n,k,batch,heads,seq,head_dim,ranks,bytes,per_host,latency_ms\n"
        "matmul,256,512,1024,,,,,,,,2\n"
        "attention,,,,1,8,4096,128,,,,4\n"
        "all_reduce,,,,,,,,16,1048576,8,0.5\n"
        "p2p,,,,,,,,2,1048576,1,0.25\n"
    )
    a, b, c, d = read_kernels(path)
    assert (a.op, a.dtype, a.shape, a.median_s) == ("matmul", "bf16", (256, 512, 1024), 2e-3)
    assert (b.op, b.shape, b.median_s) == ("attention", (1, 8, 4096, 128), 4e-3)
    assert (c.op, c.ranks, c.per_host, c.size_bytes) == ("all_reduce", 16, 8, 1 << 20)
    assert d.median_s == pytest.approx(0.5e-3)  # there and back


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("m,n,k\n1,2,3\n", "no column of times"),
        ("m,n,k,latency_us\n256,512,0,5\n", "line 2: k must be a number above 0"),
        ("m,n,k,latency_us\n256,512,512,fast\n", "latency_us must be a number"),
        ("a,b,latency_us\n1,2,3\n", "holds no times"),
    ],
)
def test_what_is_no_table_is_one_sentence(tmp_path, text, words):
    path = tmp_path / "kernels.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_kernels(path)


def test_a_cluster_to_start_from_needs_something_to_read(tmp_path, capsys):
    assert run(["calibrate", "--gpu", "h100-sxm", "--gpus", "8", "--out", str(tmp_path / "x.yaml")]) == 2
    assert "needs --from" in capsys.readouterr().err
