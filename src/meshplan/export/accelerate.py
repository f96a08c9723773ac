"""Target ``accelerate``: an FSDP2 configuration for ``accelerate launch``.

Keys as accelerate 1.15.0 reads them (``commands/config/config_args.py``, ``commands/launch.py``,
``parallelism_config.py``, ``utils/dataclasses.py``).
"""

from __future__ import annotations

from typing import Any

from meshplan.errors import InputError
from meshplan.export.deepspeed import fit_whole_recompute
from meshplan.export.environment import environment
from meshplan.export.header import header
from meshplan.export.launch import Fitting, Job, Launch
from meshplan.export.quoting import shell_array, yaml_text
from meshplan.export.torchrun import run_script
from meshplan.export.torchtitan_plan import degrees
from meshplan.plan.kinds import CpKind, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, Plan

VERSION = "accelerate 1.15.0"
CONFIG = "accelerate.yaml"


def export_accelerate(job: Job) -> Launch:
    """``run.sh`` and ``accelerate.yaml``. Raises ``InputError`` where its plan would not divide the batch."""
    fitting = Fitting(job)
    fit_accelerate(fitting)
    plan, workload = fitting.plan, job.setting.workload
    if workload.gbs % (plan.dp * plan.mbs):
        raise InputError(
            f"accelerate has no pipeline, and without it gbs {workload.gbs:,} does not divide over"
            f" dp {plan.dp:,} × mbs {plan.mbs}; take a plan with pp 1"
        )
    options: list[tuple[str, ...]] = [
        ("--model_name_or_path", job.hub_name),
        ("--max_length", str(workload.seq)),
        ("--per_device_train_batch_size", str(plan.mbs)),
        ("--gradient_accumulation_steps", str(workload.gbs // (plan.dp * plan.mbs))),
    ]
    before = [
        ': "${TRAIN:=train.py}"  # your training script, with an Accelerator or a Trainer',
        shell_array("ARGS", [("yours to rename: what your script needs to know", options)]),
    ]
    program = (
        f'accelerate launch --config_file "$HERE/{CONFIG}" \\\n'
        '  --num_machines "$NNODES" --num_processes "$((NNODES * GPUS_PER_NODE))" \\\n'
        '  --machine_rank "$NODE_RANK" \\\n'
        '  --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" \\\n'
        '  "$TRAIN" "${ARGS[@]}"'
    )
    files = {
        "run.sh": run_script(
            job, f"{VERSION} launch", env=environment(job), before=before, program=program, torchrun=False
        ),
        CONFIG: header(job, f"{VERSION} configuration") + yaml_text(configuration(job, plan)),
    }
    return Launch(
        target="accelerate",
        version=VERSION,
        files=files,
        main="run.sh",
        written=plan,
        order=fitting.order,
        notes=tuple(fitting.notes),
    )


def fit_accelerate(fitting: Fitting) -> None:
    """Change what accelerate's FSDP2 cannot run, and say so."""
    plan = fitting.plan
    if plan.pp > 1:
        fitting.change(
            "pp", "more data parallel", "accelerate has no pipeline for training",
            asked=str(plan.pp), pp=1, vp=1, dp=plan.dp * plan.pp, layout=None, schedule=Schedule.ONE_F_ONE_B,
        )  # fmt: skip
    if plan.ep > 1 or plan.etp > 1:
        fitting.change(
            "ep",
            "1",
            "accelerate's parallelism has no experts",
            asked=f"ep {plan.ep}, etp {plan.etp}",
            ep=1,
            etp=1,
        )
    if plan.tp > 1 and plan.sp:
        fitting.change(
            "sequence parallel", "off", "accelerate's tensor parallelism has none", asked="on", sp=False
        )
    if plan.cp > 1 and plan.cp_kind is not CpKind.ALL_GATHER:
        fitting.change(
            "cp_kind", "all-gather", "accelerate's FSDP2 gathers keys and values", asked=plan.cp_kind.label,
            cp_kind=CpKind.ALL_GATHER,
        )  # fmt: skip
    if plan.sharding < Sharding.ZERO2:
        fitting.change(
            "sharding", "zero2", "FSDP2 shards the gradients as well as the optimizer's states",
            asked=plan.sharding.label, sharding=Sharding.ZERO2,
        )  # fmt: skip
    plan = fitting.plan
    if plan.replicas > 1 and (plan.dp % plan.replicas or plan.dp == plan.replicas):
        fitting.change(
            "replicas",
            "1",
            "accelerate needs at least two ranks to shard over",
            asked=str(plan.replicas),
            replicas=1,
        )
    fit_whole_recompute(fitting, "accelerate")
    fitting.default_order("accelerate's mesh is dp, cp, tp from outside in")


def configuration(job: Job, plan: Plan) -> dict[str, Any]:
    """The YAML as plain data."""
    replicate, shard = degrees(plan)
    precision = job.setting.workload.precision
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "mixed_precision": {"fp32": "no", "fp16": "fp16", "fp8": "fp8"}.get(precision, "bf16"),
        "num_machines": job.nodes,
        "num_processes": job.setting.cluster.gpus,
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": plan.sharding is Sharding.ZERO3,
            "fsdp_activation_checkpointing": plan.recompute_layers == ALL_LAYERS,
            "fsdp_offload_params": False,
            "fsdp_cpu_ram_efficient_loading": False,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        },
        "parallelism_config": {
            "parallelism_config_dp_replicate_size": replicate,
            "parallelism_config_dp_shard_size": shard,
            "parallelism_config_cp_size": plan.cp,
            "parallelism_config_cp_comm_strategy": "allgather",
            "parallelism_config_tp_size": plan.tp,
        },
    }
