"""Fits on samples made from known curves, logs as people have them, and one real calibration."""

import itertools
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan.calibrate.fit import fit_gemm, fit_link, fit_table, line, rising
from meshplan.calibrate.nccl_tests import read_log
from meshplan.calibrate.profile import calibration
from meshplan.calibrate.samples import Sample, read_samples, write_samples
from meshplan.calibrate.write import profile_path, write
from meshplan.cli import main
from meshplan.cluster.collectives import collective_seconds
from meshplan.cluster.curves import gemm_seconds
from meshplan.cluster.files import load_cluster
from meshplan.cluster.profile import profile_of
from meshplan.errors import InputError

RATE, START = 120e9, 30e-6
LOCAL, LOCAL_S, WIRE, WIRE_S = 1.3e9, 200e-6, 110e6, 400e-6
ABOUT = {
    "hosts": ["a", "a", "b", "b"], "date": "2026-01-01", "device": "cpu", "torch": "2.13.0",
    "memory_bytes": 8 << 30, "cores": 2,
}  # fmt: skip
SIZES = [4096 * 4**i for i in range(7)]


def repeated(seconds, spread=0.0, n=9):
    rng = np.random.default_rng(1)
    return tuple(float(seconds * (1 + spread * x)) for x in rng.standard_normal(n))


def machine(spread=0.0):
    """Samples of a machine whose every number is known."""
    found = [
        Sample(
            op="matmul",
            dtype="fp32",
            shape=(m, n, 512),
            seconds=repeated(START + 2 * m * n * 512 / RATE, spread),
        )
        for m in (256, 512, 1024)
        for n in (256, 1024)
    ]
    for width in (64, 128):
        for tokens in (128, 512):
            flops = 2.0 * 4 * tokens * tokens * width
            shape = (1, 4, tokens, width)
            found.append(Sample(op="attention", dtype="fp32", shape=shape, seconds=repeated(flops / 40e9)))
            found.append(
                Sample(
                    op="attention_backward", dtype="fp32", shape=shape, seconds=repeated(2.5 * flops / 20e9)
                )
            )
    found.append(Sample(op="copy", size_bytes=2 << 24, seconds=repeated((2 << 24) / 12e9)))
    found.append(Sample(op="launch", seconds=repeated(5e-6)))
    for size in SIZES:
        for ranks, per, rate, latency in ((2, 2, LOCAL, LOCAL_S), (2, 1, WIRE, WIRE_S), (4, 2, WIRE, WIRE_S)):
            for op, share in (("all_reduce", 2 * (ranks - 1) / ranks), ("all_gather", (ranks - 1) / ranks),
                              ("reduce_scatter", (ranks - 1) / ranks), ("all_to_all", (ranks - 1) / ranks),
                              ("p2p", 2.0)):  # fmt: skip
                alpha = 2 * latency if op == "p2p" else latency
                seconds = repeated(alpha + share * size / rate, spread)
                found.append(Sample(op=op, size_bytes=size, ranks=ranks, per_host=per, seconds=seconds))
    return found


def test_lines_and_links_are_found_again():
    assert line([1.0, 2.0, 10.0], [3.0, 5.0, 21.0]) == pytest.approx((1.0, 2.0))
    fit = fit_link([s for s in machine() if s.op == "p2p" and s.per_host == 1])
    assert (fit.latency_s, fit.bandwidth) == pytest.approx((WIRE_S, WIRE))
    gemm = fit_gemm([s for s in machine() if s.op == "matmul"])
    assert (gemm.rate, gemm.start_s) == pytest.approx((RATE, START), rel=0.02)


def test_noise_is_borne_and_told():
    fit = fit_link([s for s in machine(0.1) if s.op == "p2p" and s.per_host == 1])
    assert fit.bandwidth == pytest.approx(WIRE, rel=0.1)
    assert 0.01 < fit.fit.noise < 0.2


def test_what_is_only_noise_is_refused():
    wild = [Sample(op="p2p", size_bytes=s, seconds=(1e-6, 1.0, 1e-6, 2.0, 3.0)) for s in SIZES]
    with pytest.raises(InputError, match=r"too much to fit|does not rise"):
        fit_link(wild)
    falling = [Sample(op="p2p", size_bytes=s, seconds=(1.0 / s,)) for s in SIZES]
    with pytest.raises(InputError, match="does not rise"):
        fit_link(falling)


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=30))
def test_rising_times_rise_and_keep_what_rose(times):
    found = rising(times)
    assert len(found) == len(times)
    assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(found))
    assert rising(sorted(times)) == pytest.approx(sorted(times))


def test_the_file_gives_back_what_was_measured(tmp_path):
    path = tmp_path / "box.yaml"
    made = calibration(machine(), ABOUT, name="box", profile_file=profile_path(path).name)
    cluster = write(made, path)
    assert cluster == load_cluster(path)
    assert (cluster.gpus, cluster.gpus_per_node) == (4, 2)
    assert cluster.tiers[1].bandwidth == pytest.approx(WIRE, rel=1e-3)
    profile = profile_of(cluster.gpu)
    inside = collective_seconds(profile, "all_gather", 1 << 20, ranks=2, ranks_per_node=2)
    assert float(inside) == pytest.approx(LOCAL_S + (1 << 19) / LOCAL, rel=0.02)
    wire = collective_seconds(
        profile, "p2p", 1 << 20, ranks=2, ranks_per_node=1, network_bandwidth=cluster.tiers[1].bandwidth,
        network_latency_s=cluster.tiers[1].latency_s,
    )  # fmt: skip
    assert float(wire) == pytest.approx(WIRE_S + (1 << 20) / WIRE, rel=0.02)
    product = gemm_seconds(profile, 1024, 1024, 512, dtype="fp32")
    assert float(product) == pytest.approx(START + 2 * 1024 * 1024 * 512 / RATE, rel=0.03)


def test_collectives_across_hosts_are_those_measured(tmp_path):
    path = tmp_path / "box.yaml"
    slow = [
        replace(x, seconds=tuple(3 * t for t in x.seconds)) if x.op == "reduce_scatter" else x
        for x in machine()
    ]
    cluster = write(calibration(slow, ABOUT, name="box", profile_file=profile_path(path).name), path)
    profile = profile_of(cluster.gpu)

    def seconds(op, size, ranks, per, nic=cluster.tiers[1].bandwidth):
        return float(
            collective_seconds(
                profile, op, size, ranks=ranks, ranks_per_node=per, network_bandwidth=nic,
                network_latency_s=cluster.tiers[1].latency_s,
            )
        )  # fmt: skip

    for ranks, per in ((2, 1), (4, 2)):
        share = (ranks - 1) / ranks
        gather = WIRE_S + share * (1 << 20) / WIRE
        assert seconds("all_gather", 1 << 20, ranks, per) == pytest.approx(gather, rel=0.02)
        assert seconds("reduce_scatter", 1 << 20, ranks, per) == pytest.approx(3 * gather, rel=0.02)
        # beyond the largest size measured: its bandwidth
        assert seconds("all_gather", 1 << 27, ranks, per) == pytest.approx(share * (1 << 27) / WIRE, rel=0.02)
        # twice the link: half of all that is not latency
        faster = seconds("all_gather", 1 << 24, ranks, per, nic=2 * cluster.tiers[1].bandwidth)
        assert faster == pytest.approx(WIRE_S + share * (1 << 24) / WIRE / 2, rel=0.03)
    inside = seconds("p2p", 1 << 20, 2, 2)
    assert inside == pytest.approx(LOCAL_S + (1 << 20) / LOCAL, rel=0.02)


def test_an_estimate_takes_the_file(tmp_path):
    path = tmp_path / "box.yaml"
    made = calibration(machine(), ABOUT, name="box", profile_file=profile_path(path).name)
    write(made, path)
    done = run(
        "estimate", "llama-3.2-1b", "--cluster", str(path), "--seq", "128", "--gbs", "4",
        "--precision", "fp32", "--stack", "torchtitan", "--json",
    )  # fmt: skip
    data = json.loads(done.stdout)
    # 6 FLOP a weight and token on four ranks at the measured rate, and some more for the rest
    least = 6 * 1.24e9 * 512 / 4 / RATE
    assert least < data["time"]["matmul"] + data["time"]["head and loss"] < 2 * least, done.stderr


def test_faster_than_its_link_is_refused(tmp_path):
    path = tmp_path / "box.yaml"
    path.write_text("old")
    made = calibration(machine(), ABOUT, name="box", profile_file=profile_path(path).name)
    made.profile["collectives"]["all_gather"]["link_bandwidth"] = 1e6
    with pytest.raises(InputError, match="above the link's"):
        write(made, path)
    assert path.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["box.yaml"]


LOG = """
# nThread 1 nGpus 8 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid  101 on    node-a device  0 [0000:1b] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  102 on    node-a device  1 [0000:43] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    36.52   28.71   28.71      0    36.10   29.05   29.05      0
     2097152        524288     float     sum      -1    48.91   42.88   42.88      0    48.55   43.20   43.20      0
     4194304       1048576     float     sum      -1    70.02   59.90   59.90      0    69.87   60.03   60.03      0
# Out of bounds values : 0 OK
"""  # noqa: E501


def test_logs_of_nccl_tests_are_read(tmp_path):
    path = tmp_path / "all_reduce.log"
    path.write_text(LOG)
    found = read_log(path)
    assert [(s.op, s.size_bytes, s.ranks, s.per_host) for s in found] == [
        ("all_reduce", 1 << 20, 2, 2), ("all_reduce", 1 << 21, 2, 2), ("all_reduce", 1 << 22, 2, 2),
    ]  # fmt: skip
    assert [s.median_s for s in found] == pytest.approx([36.52e-6, 48.91e-6, 70.02e-6])
    table = fit_table("all_reduce", found)
    assert table.seconds[0] == pytest.approx([36.52e-6, 48.91e-6, 70.02e-6])


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("x.log", LOG, "does not say which collective"),
        ("all_reduce.log", "hello", "lists 0 ranks"),
        ("all_reduce.log", "\n".join(LOG.splitlines()[:8]), "has 0 rows"),
    ],
)
def test_what_is_no_log_is_one_sentence(tmp_path, name, text, words):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_log(path)


def run(*args, **env):
    return subprocess.run(
        [sys.executable, "-m", "meshplan", *args], capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, **env},
    )  # fmt: skip


def test_the_command_works_from_samples_and_a_log_without_torch(tmp_path):
    samples, log = tmp_path / "s.json", tmp_path / "all_reduce.log"
    write_samples(samples, machine(), ABOUT)
    assert read_samples(samples)[0] == machine()
    log.write_text(LOG)
    done = run(
        "calibrate",
        "--samples",
        str(samples),
        "--out",
        str(tmp_path / "c.yaml"),
        "--from",
        str(log),
        "--json",
    )
    assert done.returncode == 0, done.stderr
    profile = profile_of(load_cluster(tmp_path / "c.yaml").gpu)
    logged = collective_seconds(profile, "all_reduce", 1 << 21, ranks=2, ranks_per_node=2)
    assert float(logged) == pytest.approx(48.91e-6, rel=0.01)
    bad = run("calibrate", "--samples", str(log), "--out", str(tmp_path / "d.yaml"))
    assert bad.returncode == 2
    assert "does not hold the samples" in bad.stderr
    assert run("calibrate", "--out", str(tmp_path / "d.txt")).returncode == 2


def _changed(change):
    """The samples of a machine as written, with one thing wrong."""
    data = json.loads(json.dumps({"about": ABOUT, "samples": [asdict(s) for s in machine()]}))
    change(data)
    return data


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda d: d["samples"][0].update(seconds=[float("nan")]),
            "seconds of matmul must be numbers above 0",
        ),
        (lambda d: d["samples"][0].update(seconds=[-1.0]), "seconds of matmul must be numbers above 0"),
        (lambda d: d["samples"][0].update(seconds=[0.0]), "seconds of matmul must be numbers above 0"),
        (lambda d: d["samples"][0].update(seconds=[]), "seconds of matmul must be numbers above 0, not '[]'"),
        (lambda d: d["samples"][0].update(seconds=["x"]), "seconds of matmul must be numbers above 0"),
        (lambda d: d["samples"][0].update(shape=[1]), "the shape of matmul must be 3 whole numbers from 1"),
        (lambda d: d["samples"][0].update(op="gemv"), "unknown operation 'gemv'; known: matmul, attention"),
        (lambda d: d["samples"][-1].update(size_bytes=-8), "must be a number from 0, not '-8'"),
        (lambda d: d["samples"][-1].update(ranks=0), "must run among 1 rank or more"),
        (lambda d: d.update(about={}), "does not hold the samples of a calibration"),
        (lambda d: d["samples"][0].update(dtype=[1]), "dtype of matmul must be a name, not '[1]'"),
        (lambda d: d["about"].update(hosts=[{}]), "does not hold the samples of a calibration"),
        (lambda d: d.update(about=None), "does not hold the samples of a calibration"),
        (lambda d: d.update(samples=7), "does not hold the samples of a calibration"),
        (
            lambda d: d.update(samples=[s for s in d["samples"] if s["op"] != "p2p"]),
            "a link needs messages between two ranks (p2p) of two sizes or more",
        ),
        (
            lambda d: d.update(samples=[s for s in d["samples"] if s["ranks"] == s["per_host"]]),
            "hosts hold no transfer from one to another",
        ),
        (
            lambda d: d.update(
                samples=[s for s in d["samples"] if s["op"] != "all_reduce" or s["size_bytes"] == 4096]
            ),
            "all-reduce needs samples of two sizes or more",
        ),
    ],
)
def test_samples_that_cannot_be_are_refused_in_a_sentence(change, words, tmp_path, capsys):
    file, out = tmp_path / "s.json", tmp_path / "c.yaml"
    file.write_text(json.dumps(_changed(change)))
    assert main(["calibrate", "--samples", str(file), "--out", str(out)]) == 2
    told = capsys.readouterr().err
    assert words in told, told
    assert told.count("\n") == 1
    assert not out.exists()


def test_this_machine_is_measured(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed: pip install 'meshplan[measure]'")
    path = tmp_path / "here.yaml"
    done = run("calibrate", "--out", str(path), "--json", MESHPLAN_MOST_BYTES="1048576")
    if done.returncode == 2 and "quiet machine" in done.stderr:
        pytest.skip(f"this machine is too busy to be measured: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    cluster = load_cluster(path)
    assert cluster.gpus == 2
    assert 1e9 < cluster.gpu.peak_flops["bf16"] < 1e13
    assert 1e7 < cluster.tiers[0].bandwidth < 1e11
    assert path.with_suffix(".samples.json").exists()
