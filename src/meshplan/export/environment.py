"""Environment variables a launch needs, by the rules of the framework and the GPU."""

from __future__ import annotations

from meshplan.export.launch import Job
from meshplan.plan.kinds import Sharding

BLACKWELL = ("b100", "b200", "b300", "gb200", "gb300", "rtx-5090", "rtx-pro-6000", "rtx-pro-6000-ws")
RACK_SCALE = ("gb200", "gb300")


def environment(job: Job, *, megatron: bool = False) -> dict[str, str]:
    """Variables to export before the processes start.

    ``CUDA_DEVICE_MAX_CONNECTIONS`` by Megatron's own checks (``megatron/training/arguments.py`` at
    core_v0.16.1 and core_v0.19.0): 1 where tensor or context parallelism is on and the GPU is older
    than Blackwell, so that communication is queued before the kernels it hides under; FSDP (ZeRO 2 and 3
    here) refuses 1. Multi-node NVLink has to be named to NCCL. Expandable segments are what the memory
    estimate's small fragmentation assumes.
    """
    found = {}
    connections = max_connections(job) if megatron else None
    if connections is not None:
        found["CUDA_DEVICE_MAX_CONNECTIONS"] = connections
    gpu = job.setting.cluster.gpu.name
    if gpu in RACK_SCALE and job.setting.cluster.gpus_per_node > job.gpus_per_node:
        found["NCCL_MNNVL_ENABLE"] = "1"
    if not gpu.startswith(("ascend", "gaudi", "trn", "mi")):
        found["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    found["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1"
    found["NCCL_DEBUG"] = "WARN"
    return found


def max_connections(job: Job) -> str | None:
    """What Megatron wants ``CUDA_DEVICE_MAX_CONNECTIONS`` to be, or ``None`` where it does not care."""
    plan = job.plan
    if plan.sharding >= Sharding.ZERO2:
        return "8"
    if job.setting.cluster.gpu.name in BLACKWELL or (plan.tp == 1 and plan.cp == 1):
        return None
    return "1"
