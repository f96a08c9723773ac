"""Launchers around any target: torchrun alone, Slurm, a Kubernetes JobSet, SkyPilot.

Each starts ``run.sh`` on every node with NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT set.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace

from meshplan.errors import InputError
from meshplan.export.header import header
from meshplan.export.launch import Job, Launch, Note
from meshplan.export.quoting import comment, yaml_text
from meshplan.export.torchrun import PORT

IMAGE = "docker.io/pytorch/pytorch:latest"
"""A container image to be replaced by the user's own."""
MOST_CONFIG_BYTES = 1 << 20
"""What a Kubernetes ConfigMap may hold."""
SKYPILOT_NAMES = {
    "a100-40gb": "A100", "a100-80gb": "A100-80GB", "a100-pcie-80gb": "A100-80GB", "h100-sxm": "H100",
    "h100-pcie": "H100", "h200": "H200", "b200": "B200", "b300": "B300", "gb200": "GB200", "gb300": "GB300",
    "l40s": "L40S", "mi300x": "MI300X", "v100-16gb": "V100", "v100-32gb": "V100-32GB", "rtx-4090": "RTX4090",
    "rtx-a6000": "RTXA6000", "gaudi2": "Gaudi HL-205", "h20": "H20", "h800": "H800", "a800-80gb": "A800-80GB",
    "a10": "A10", "a10g": "A10G", "a40": "A40", "l4": "L4", "t4": "T4", "gh200-96gb": "GH200",
}  # fmt: skip
"""Names of accelerators in SkyPilot's catalogue."""


def with_launcher(launch: Launch, job: Job, launcher: str, image: str = IMAGE) -> Launch:
    """The launch with one more file for this launcher; ``torchrun`` needs none."""
    maker = LAUNCHERS[launcher]
    return launch if maker is None else maker(launch, job, image)


def _slurm(launch: Launch, job: Job, image: str) -> Launch:
    name = dns_name(job.name)
    text = f"""#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={job.nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={job.gpus_per_node}
#SBATCH --exclusive
#SBATCH --output=%x-%j.log
{header(job, f"{launch.version} under Slurm: sbatch job.sbatch in this folder").rstrip()}
# Yours to add: --account, --partition, --time, a container
set -euo pipefail
cd -- "${{RUN_DIR:-${{SLURM_SUBMIT_DIR:-.}}}}"
MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)"
export MASTER_ADDR
export MASTER_PORT="${{MASTER_PORT:-$((10000 + SLURM_JOB_ID % 50000))}}"
export NNODES="$SLURM_JOB_NUM_NODES"
srun --kill-on-bad-exit=1 bash -c 'NODE_RANK="$SLURM_NODEID" exec bash ./{launch.main}'
"""
    return replace(launch, files={**launch.files, "job.sbatch": text}, main="job.sbatch")


def _kubernetes(launch: Launch, job: Job, image: str) -> Launch:
    size = sum(len(text.encode()) for text in launch.files.values())
    if size > MOST_CONFIG_BYTES:
        raise InputError(
            f"the launch files take {size:,} bytes, and a Kubernetes ConfigMap holds {MOST_CONFIG_BYTES:,}"
        )
    name = dns_name(job.name)
    gpu = "amd.com/gpu" if job.setting.cluster.gpu.name.startswith("mi") else "nvidia.com/gpu"
    container = {
        "name": "train",
        "image": image,
        "command": ["bash", "-c"],
        "args": ["cp /meshplan/* /tmp/ && NODE_RANK=$JOB_COMPLETION_INDEX exec bash /tmp/run.sh"],
        "env": [
            {"name": "NNODES", "value": str(job.nodes)},
            {"name": "MASTER_ADDR", "value": f"{name}-node-0-0.{name}"},
            {"name": "MASTER_PORT", "value": str(PORT)},
        ],
        "ports": [{"containerPort": PORT}],
        "resources": {"limits": {gpu: job.gpus_per_node}},
        "volumeMounts": [
            {"name": "files", "mountPath": "/meshplan"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    pod = {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [
            {"name": "files", "configMap": {"name": f"{name}-files"}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }
    node = {
        "name": "node",
        "replicas": 1,
        "template": {
            "spec": {
                "parallelism": job.nodes,
                "completions": job.nodes,
                "completionMode": "Indexed",
                "backoffLimit": 0,
                "template": {"spec": pod},
            }
        },
    }
    jobset = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "network": {"enableDNSHostnames": True},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [node],
        },
    }
    files = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{name}-files"},
        "data": dict(launch.files),
    }
    text = (
        header(job, f"{launch.version} as a JobSet: kubectl apply -f jobset.yaml; put your own image")
        + yaml_text(files)
        + "---\n"
        + yaml_text(jobset)
    )
    return replace(launch, files={**launch.files, "jobset.yaml": text}, main="jobset.yaml")


def _skypilot(launch: Launch, job: Job, image: str) -> Launch:
    gpu = job.setting.cluster.gpu.name
    sky = SKYPILOT_NAMES.get(gpu)
    notes = launch.notes
    if sky is None:
        sky = gpu.upper()
        why = "SkyPilot's catalogue is not known to have this GPU; put its name there"
        notes = (*notes, Note(part="GPU", asked=gpu, written=sky, why=why))
    run = (
        'export NNODES="$SKYPILOT_NUM_NODES" NODE_RANK="$SKYPILOT_NODE_RANK"\n'
        'MASTER_ADDR="$(echo "$SKYPILOT_NODE_IPS" | sed -n 1p)"\n'
        "export MASTER_ADDR\n"
        f"exec bash ./{shlex.quote(launch.main)}\n"
    )
    task = {
        "name": dns_name(job.name),
        "num_nodes": job.nodes,
        "resources": {"accelerators": {sky: job.gpus_per_node}},
        "workdir": ".",
        "setup": "# install your framework and its data here\n",
        "run": run,
    }
    text = header(job, f"{launch.version} under SkyPilot: sky launch sky.yaml in this folder") + yaml_text(
        task
    )
    return replace(launch, files={**launch.files, "sky.yaml": text}, main="sky.yaml", notes=notes)


def dns_name(text: str) -> str:
    """A name that Slurm, Kubernetes (RFC 1123 label) and SkyPilot accept."""
    plain = re.sub(r"[^a-z0-9]+", "-", comment(text).lower()).strip("-")[:40].strip("-")
    return plain if plain and plain[0].isalpha() else f"run-{plain}".rstrip("-")


LAUNCHERS: Mapping[str, Callable[[Launch, Job, str], Launch] | None] = {
    "torchrun": None,
    "slurm": _slurm,
    "kubernetes": _kubernetes,
    "skypilot": _skypilot,
}
