"""Scripts and manifests: bash and shellcheck take them, YAML parsers read them, required fields are there."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import export_samples as samples
import pytest

from meshplan.cluster.presets import cluster_of, gpu_names
from meshplan.errors import InputError
from meshplan.export.header import read_facts
from meshplan.export.launch import Job, Launch
from meshplan.export.launchers import LAUNCHERS, SKYPILOT_NAMES, dns_name
from meshplan.export.quoting import yaml_text
from meshplan.export.targets import TARGETS, export
from meshplan.model.presets import preset
from meshplan.plan.kinds import Sharding
from meshplan.plan.plans import Plan
from meshplan.plan.rules import Setting
from meshplan.plan.workload import Workload

NASTY = 'a\'; rm -rf "$HOME" #\n`id` <script>'


def one(target: str, launcher: str, name: str = "run", seed: str = "launchers") -> tuple[Job, Launch]:
    """The first random job that the target takes, on more than one node."""
    rng = random.Random(seed)
    while True:
        job = samples.random_job(rng)
        job = Job(setting=job.setting, plan=job.plan, order=job.order, name=name, asked_model=job.asked_model)
        if job.nodes < 2:
            continue
        try:
            return job, export(job, target, launcher)
        except InputError:
            continue


def parse_all(text: str) -> list[dict]:
    from ruamel.yaml import YAML

    return list(YAML(typ="safe", pure=True).load_all(text))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_bash_takes_every_script(target: str, launcher: str, tmp_path: Path) -> None:
    _, launch = one(target, launcher)
    scripts = [name for name in launch.files if name.endswith((".sh", ".sbatch"))]
    assert "run.sh" in scripts
    for name in scripts:
        file = tmp_path / name
        file.write_text(launch.files[name], encoding="utf-8")
        done = subprocess.run(["bash", "-n", str(file)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), launch.files[name]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="NOT RUN: shellcheck is not installed")
@pytest.mark.parametrize("target", TARGETS)
def test_shellcheck_finds_nothing(target: str, tmp_path: Path) -> None:
    _, launch = one(target, "slurm")
    files = []
    for name in ("run.sh", "job.sbatch"):
        (tmp_path / name).write_text(launch.files[name], encoding="utf-8")
        files.append(str(tmp_path / name))
    # SC2016: single quotes are meant, the inner shell expands
    done = subprocess.run(["shellcheck", "-e", "SC2016", *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("target", TARGETS)
def test_run_script_starts_the_right_thing(target: str, tmp_path: Path) -> None:
    """The script, run with launchers that only print, passes ranks and all arguments on."""
    job, launch = one(target, "torchrun")
    for name, text in launch.files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for program in ("torchrun", "accelerate", "deepspeed"):
        fake = bin_folder / program
        fake.write_text('#!/bin/bash\nprintf "%s\\n" "$(basename "$0")" "$@"\nenv >&2\n', encoding="utf-8")
        fake.chmod(0o755)
    env = {
        "PATH": f"{bin_folder}:/usr/bin:/bin",
        "NODE_RANK": "1",
        "MASTER_ADDR": "node-0",
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        ["bash", str(tmp_path / "run.sh")], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    assert "node-0" in words
    assert "1" in words
    assert str(job.nodes) in words
    if target == "megatron":
        args = [line for line in launch.files["megatron.args"].splitlines() if line.startswith("--")]
        expected = [word for line in args for word in shlex.split(line)]
        assert words[-len(expected) :] == expected


def test_slurm_directives() -> None:
    job, launch = one("megatron", "slurm")
    text = launch.files["job.sbatch"]
    assert text.startswith("#!/bin/bash\n#SBATCH ")
    assert f"#SBATCH --nodes={job.nodes}\n" in text
    assert f"#SBATCH --gpus-per-node={job.gpus_per_node}\n" in text
    assert "#SBATCH --ntasks-per-node=1\n" in text
    before_commands = text[: text.index("set -euo")]
    assert "#SBATCH" not in text[len(before_commands) :], (
        "directives after the first command are ignored by sbatch"
    )


SLURM = all(shutil.which(program) for program in ("sbatch", "slurmctld", "slurmd")) and os.geteuid() == 0


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    """A Slurm of one node with eight make-believe GPUs, on ports of its own; gone after the tests.

    Its folder is not pytest's: Slurm wants short paths that root owns.
    """
    folder = Path(tempfile.mkdtemp(prefix="meshplan-slurm-"))
    host = socket.gethostname().split(".")[0]
    for i in range(8):
        (folder / f"gpu{i}").touch()
    (folder / "gres.conf").write_text(f"NodeName={host} Name=gpu File={folder}/gpu[0-7]\n")
    ports = free_ports(2)
    lines = {
        "ClusterName": "box", "SlurmctldHost": host, "AuthType": "auth/none", "CredType": "cred/none",
        "SlurmUser": "root", "SlurmdUser": "root", "SlurmctldPort": ports[0], "SlurmdPort": ports[1],
        "StateSaveLocation": folder / "state", "SlurmdSpoolDir": folder / "spool",
        "SlurmctldPidFile": folder / "ctld.pid", "SlurmdPidFile": folder / "d.pid",
        "SlurmctldLogFile": folder / "ctld.log", "SlurmdLogFile": folder / "d.log",
        "ProctrackType": "proctrack/linuxproc", "TaskPlugin": "task/none", "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core", "GresTypes": "gpu",
    }  # fmt: skip
    text = "".join(f"{key}={value}\n" for key, value in lines.items())
    text += (
        f"NodeName={host} CPUs=1 Gres=gpu:8 State=UNKNOWN\nPartitionName=all Nodes={host}"
        f" Default=YES State=UP\n"
    )
    conf = folder / "slurm.conf"
    conf.write_text(text)
    (folder / "state").mkdir()
    env = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "SLURM_CONF": str(conf)}
    daemons = [
        subprocess.Popen(
            [name, "-D", "-f", str(conf)], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for name in ("slurmctld", "slurmd")
    ]
    try:
        for _ in range(240):
            state = subprocess.run(
                ["sinfo", "-h", "-o", "%T"], env=env, capture_output=True, text=True, check=False
            )
            if state.stdout.strip().startswith("idle"):
                break
            time.sleep(0.5)
        else:
            pytest.skip(
                f"NOT RUN: the one-node Slurm did not come up"
                f" ({state.stdout.strip() or state.stderr.strip()})"
            )
        yield env
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    """Ports that nobody has, held all at once so that they differ."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


@pytest.mark.skipif(
    not SLURM, reason="NOT RUN: no Slurm daemons here (apt-get install slurm-wlm), or not root"
)
@pytest.mark.parametrize("target", ["megatron", "torchtitan"])
def test_slurm_takes_and_runs_the_script(target: str, tmp_path: Path, slurm: dict[str, str]) -> None:
    """``sbatch --test-only``, then a real job of one node with a torchrun that only prints."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    launch = one_node(target)
    for name, text in launch.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    tested = subprocess.run(
        ["sbatch", "--test-only", "job.sbatch"],
        cwd=folder,
        env=slurm,
        capture_output=True,
        text=True,
        check=False,
    )
    assert tested.returncode == 0, tested.stderr
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    fake = bin_folder / "torchrun"
    fake.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\necho "rank $NODE_RANK of $NNODES"\n')
    fake.chmod(0o755)
    env = {**slurm, "PATH": f"{bin_folder}:{slurm['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(
        ["sbatch", "--wait", "--parsable", "job.sbatch"],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    (log,) = folder.glob("*.log")
    assert "rank 0 of 1" in log.read_text()
    assert "--nproc-per-node\n8\n" in log.read_text()


def one_node(target: str) -> Launch:
    """A launch for one node of eight GPUs."""
    setting = Setting(preset("llama-3.1-8b"), cluster_of("h100-sxm", 8), Workload(seq=8192, gbs=64))
    return export(Job(setting=setting, plan=Plan(tp=2, dp=4, sharding=Sharding.ZERO2)), target, "slurm")


def test_jobset_manifest() -> None:
    """Fields that the JobSet and Job APIs require, and files that survive the ConfigMap."""
    job, launch = one("megatron", "kubernetes")
    config, jobset = parse_all(launch.files["jobset.yaml"])
    assert config["kind"] == "ConfigMap"
    assert config["data"] == {k: v for k, v in launch.files.items() if k != "jobset.yaml"}
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (node,) = jobset["spec"]["replicatedJobs"]
    spec = node["template"]["spec"]
    assert spec["parallelism"] == spec["completions"] == job.nodes
    assert spec["completionMode"] == "Indexed"
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] in ("Never", "OnFailure")
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": job.gpus_per_node}
    env = {e["name"]: e["value"] for e in container["env"]}
    name = jobset["metadata"]["name"]
    assert env["MASTER_ADDR"] == f"{name}-node-0-0.{name}"
    assert all(isinstance(value, str) for value in env.values())
    mounted = {m["name"] for m in container["volumeMounts"]}
    assert mounted == {v["name"] for v in pod["volumes"]}


@pytest.mark.oracle
def test_job_spec_against_the_kubernetes_schema() -> None:
    """The Job inside the JobSet and the ConfigMap, against Kubernetes' own JSON schema."""
    validate = pytest.importorskip(
        "kubernetes_validate", reason="ORACLE NOT RUN: kubernetes-validate is not installed"
    )
    _, launch = one("torchtitan", "kubernetes")
    config, jobset = parse_all(launch.files["jobset.yaml"])
    (node,) = jobset["spec"]["replicatedJobs"]
    plain = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "x"},
        "spec": node["template"]["spec"],
    }
    for manifest in (config, plain):
        validate.validate(manifest, validate.latest_version(), strict=True)


def test_skypilot_task() -> None:
    job, launch = one("accelerate", "skypilot")
    (task,) = parse_all(launch.files["sky.yaml"])
    assert task["num_nodes"] == job.nodes
    assert task["resources"]["accelerators"] == {"H100": job.gpus_per_node}
    assert set(task) <= {"name", "num_nodes", "resources", "workdir", "setup", "run"}
    for variable in ("SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS", "SKYPILOT_NUM_NODES"):
        assert variable in task["run"]
    done = subprocess.run(["bash", "-n"], input=task["run"], capture_output=True, text=True, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_hostile_name_is_only_a_name(target: str, launcher: str, tmp_path: Path) -> None:
    """A job and model named like a shell attack: scripts stay whole, the name comes back, nothing runs."""
    rng = random.Random("launchers")
    while True:
        job = samples.random_job(rng)
        hostile = Job(setting=job.setting, plan=job.plan, order=job.order, name=NASTY, asked_model=NASTY)
        try:
            launch = export(hostile, target, launcher)
            break
        except InputError:
            continue
    bin_folder, marker = tmp_path / "bin", tmp_path / "ran"
    bin_folder.mkdir()
    for program in ("id", "rm", "torchrun", "accelerate", "deepspeed"):
        does = f"touch {marker}" if program in ("id", "rm") else "true"
        (bin_folder / program).write_text(f"#!/bin/bash\n{does}\n", encoding="utf-8")
        (bin_folder / program).chmod(0o755)
    for name, text in launch.files.items():
        file = tmp_path / name
        file.write_text(text, encoding="utf-8")
        if name.endswith(".sbatch"):
            assert subprocess.run(["bash", "-n", str(file)], capture_output=True, check=False).returncode == 0
        if name.endswith(".py"):
            compile(text, name, "exec")
        if name.endswith((".yaml", ".yml")):
            assert parse_all(text)
        if name.endswith(".json"):
            assert json.loads(text)["_meshplan"]["model"] == NASTY
    env = {"PATH": f"{bin_folder}:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", str(tmp_path / "run.sh")], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not marker.exists(), "part of the name was run as a command"
    facts = read_facts(launch.files["run.sh"])
    assert facts["model"].replace("?", "\n") == NASTY


def test_names_for_dns() -> None:
    assert dns_name("Llama-3.1 70B") == "llama-3-1-70b"
    assert dns_name("") == "run"
    assert dns_name("70b") == "run-70b"
    assert dns_name(NASTY).replace("-", "").isalnum()
    assert len(dns_name("x" * 500)) <= 63


@pytest.mark.parametrize(
    "value",
    [
        {
            "a": [
                1,
                2.5,
                True,
                None,
                "yes",
                "3e-4",
                "12:30",
                "0x1f",
                "- x",
                "",
                " ",
                "a: b",
                "#",
                "é",
                "\u2028",
            ]
        },
        {"nested": {"list": [{"x": 1, "y": [{"z": "w"}]}, {"x": {}}], "empty": [], "none": {}}},
        {"text": "line 1\n  line 2\n\nline 4\n", "short": "no newline\nat end"},
        {"no": "NO", "on": "off", "true": "True", "null": "~", "1": "01"},
    ],
)
def test_yaml_says_what_was_meant(value: dict) -> None:
    """Our writer, read by a YAML 1.2 parser (and by a 1.1 one where it is installed)."""
    text = yaml_text(value)
    assert parse_all(text) == [value]
    if importlib.util.find_spec("yaml") is not None:
        import yaml

        assert yaml.safe_load(text) == value


def test_skypilot_names_are_of_known_gpus() -> None:
    """As ``sky show-gpus -a`` prints them (docs.skypilot.co, compute/gpus)."""
    assert set(SKYPILOT_NAMES) <= set(gpu_names())
    printed = {"a10": "A10", "a10g": "A10G", "a40": "A40", "l4": "L4", "t4": "T4", "gh200-96gb": "GH200"}
    assert printed.items() <= SKYPILOT_NAMES.items()
