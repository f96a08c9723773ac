"""Two network namespaces joined by a link of a known rate: calibration finds it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshplan.cluster.files import load_cluster

pytest.importorskip("torch", reason="torch is not installed: pip install 'meshplan[measure]'")

TOOL = Path(__file__).parents[2] / "tools" / "cluster_in_a_box.py"
ACCURACY = TOOL.with_name("measured_accuracy.py")
RATE, BYTES_A_SECOND = "1gbit", 125e6


def box(*args, tool=TOOL):
    env = {**os.environ, "MESHPLAN_MOST_BYTES": str(1 << 24)}
    done = subprocess.run(
        [sys.executable, str(tool), *args], capture_output=True, text=True, timeout=400, check=False, env=env
    )
    if done.returncode == 3 and "no cluster in a box here" in done.stderr:
        pytest.skip(f"NETWORK NAMESPACES ARE NOT ALLOWED HERE, the link is not tested: {done.stderr.strip()}")
    if "quiet machine" in done.stderr:
        pytest.skip(f"THIS MACHINE IS TOO BUSY TO MEASURE A LINK: {done.stderr.strip()}")
    return done


def namespaces():
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout


def test_the_rate_of_the_link_is_found(tmp_path):
    path = tmp_path / "box.yaml"
    done = box("calibrate", "--rate", RATE, "--out", str(path))
    assert done.returncode == 0, done.stderr
    cluster = load_cluster(path)
    assert (cluster.gpus, cluster.gpus_per_node) == (2, 1)
    assert cluster.tiers[1].bandwidth == pytest.approx(BYTES_A_SECOND, rel=0.15)


def test_both_hosts_run_and_nothing_is_left():
    before = namespaces() if Path("/usr/sbin/ip").exists() else ""
    done = box(
        "run", "--rate", RATE, "--", "sh", "-c", "echo host $HOST_RANK at $MASTER_ADDR; exit $HOST_RANK"
    )
    assert done.returncode == 1  # of host 1
    assert "host 0 at 10.123.0.1" in done.stdout
    assert namespaces() == before


UP = "exec env MESHPLAN_PATIENCE=4 {python} -m meshplan {command} --nodes 2 --node-rank $HOST_RANK"
UP += " --address $MASTER_ADDR:$MASTER_PORT"
DOWN = "ip link set $GLOO_SOCKET_IFNAME down"


@pytest.mark.parametrize(
    ("command", "up", "words"),
    [
        ("calibrate --out {folder}/box.yaml", 0, "host 1 of 2 did not come to port"),
        ("calibrate --out {folder}/box.yaml", 1, ":29571 does not answer: "),
        (
            "measure llama-3.2-1b --layers 1 --seq 64 --gbs 2 --plan dp2 --rounds 1 --no-check"
            " --out {folder}/runs",
            0,
            "host 1 of 2 did not come to port",
        ),
    ],
)
def test_a_host_that_is_down_is_one_sentence_and_nothing_is_left(tmp_path, command, up, words):
    before = namespaces() if Path("/usr/sbin/ip").exists() else ""
    line = UP.format(python=sys.executable, command=command.format(folder=tmp_path))
    done = box("run", "--", "sh", "-c", f"if [ $HOST_RANK = {up} ]; then {line}; else {DOWN}; fi")
    assert done.returncode == 3, done.stderr
    (said,) = [x for x in done.stderr.splitlines() if x.startswith("error: ")]
    assert words in said
    assert "Traceback" not in done.stderr
    assert namespaces() == before
    assert not ranks_in(tmp_path)


def ranks_in(folder):
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found += [entry.name] * (str(folder).encode() in (entry / "cmdline").read_bytes())
            except OSError:
                continue
    return found


def test_tp_inside_against_across_the_hosts_is_foreseen(tmp_path):
    done = box("--order", str(tmp_path / "order"), "--rounds", "2", "--steps", "1", tool=ACCURACY)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout[done.stdout.index("{") :])
    if found["spread"] > 0.25:
        pytest.skip(
            f"THIS MACHINE IS TOO BUSY TO COMPARE STEPS: of one plan they vary by {found['spread']:.0%}"
        )
    # 18 pairs of an all-gather and a reduce-scatter of 2 MiB a step for each of two groups on one link of
    # 0.4 Gbit/s; gloo sends 1 MiB for the one and all 2 MiB for the other: 2.3 s, and computing
    assert found["across_s"] > 2.2
    assert found["measured_ratio"] > 1.2
    assert found["estimated_ratio"] == pytest.approx(found["measured_ratio"], rel=0.25)
