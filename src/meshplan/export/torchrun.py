"""``run.sh``: what one node runs. Every launcher sets NNODES, NODE_RANK and MASTER_ADDR and starts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshplan.export.header import header
from meshplan.export.launch import Job
from meshplan.export.quoting import exports

PORT = 29500


def run_script(
    job: Job,
    title: str,
    *,
    env: Mapping[str, str],
    before: Sequence[str],
    program: str,
    torchrun: bool = True,
) -> str:
    """The script of one node: environment, ``before`` (variables), then ``program`` under torchrun.

    ``program`` and ``before`` are shell text, already quoted. Without ``torchrun`` the program is a
    launcher of its own and finds the same variables.
    """
    nodes, per_node = job.nodes, job.gpus_per_node
    where = "on this node alone" if nodes == 1 else f"once on each of {nodes:,} nodes"
    lines = [
        "#!/usr/bin/env bash",
        header(job, f"{title}: start it {where}").rstrip("\n"),
        "set -euo pipefail",
        'HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"',
        'cd -- "${WORK_DIR:-$HERE}"',
        "",
        f"NNODES=${{NNODES:-{nodes}}}",
        f"GPUS_PER_NODE=${{GPUS_PER_NODE:-{per_node}}}",
        "NODE_RANK=${NODE_RANK:-0}",
        "MASTER_ADDR=${MASTER_ADDR:-localhost}",
        f"MASTER_PORT=${{MASTER_PORT:-{PORT}}}",
        "",
        *exports(env),
        "# Your network, if NCCL does not find it: NCCL_SOCKET_IFNAME, NCCL_IB_HCA",
        "",
        *before,
        "",
    ]
    if torchrun:
        lines += [
            "exec torchrun \\",
            '  --nnodes "$NNODES" --nproc-per-node "$GPUS_PER_NODE" --node-rank "$NODE_RANK" \\',
            '  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \\',
            f"  {program}",
        ]
    else:
        lines.append(f"exec {program}")
    return "\n".join(lines) + "\n"
