"""Target ``deepspeed``: the JSON configuration and the launcher's arguments around your training script.

Keys as DeepSpeed 0.19.8 reads them (``runtime/config.py``, ``runtime/zero/config.py``,
``runtime/tensor_parallel/config.py``, ``module_inject/auto_ep_config.py``, ``launcher/runner.py``).
"""

from __future__ import annotations

import json
from typing import Any

from meshplan.export.environment import environment
from meshplan.export.header import job_facts
from meshplan.export.launch import Fitting, Job, Launch
from meshplan.export.quoting import shell_array
from meshplan.export.torchrun import run_script
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, Plan

VERSION = "DeepSpeed 0.19.8"
CONFIG = "ds_config.json"


def export_deepspeed(job: Job) -> Launch:
    """``run.sh`` and ``ds_config.json``."""
    fitting = Fitting(job)
    fit_deepspeed(fitting)
    before = [
        ': "${TRAIN:=train.py}"  # your training script; it calls deepspeed.initialize',
        shell_array(
            "ARGS", [("yours to rename: what your script needs to know", _script_options(job, fitting.plan))]
        ),
    ]
    program = (
        'deepspeed --no_ssh --num_nodes "$NNODES" --num_gpus "$GPUS_PER_NODE" --node_rank "$NODE_RANK" \\\n'
        '  --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \\\n'
        f'  "$TRAIN" --deepspeed --deepspeed_config "$HERE/{CONFIG}" "${{ARGS[@]}}"'
    )
    files = {
        "run.sh": run_script(
            job, f"{VERSION} launch", env=environment(job), before=before, program=program, torchrun=False
        ),
        CONFIG: json.dumps(configuration(job, fitting.plan), indent=2) + "\n",
    }
    return Launch(
        target="deepspeed",
        version=VERSION,
        files=files,
        main="run.sh",
        written=fitting.plan,
        order=fitting.order,
        notes=tuple(fitting.notes),
    )


def fit_deepspeed(fitting: Fitting) -> None:
    """Change what DeepSpeed cannot run, and say so."""
    plan = fitting.plan
    if plan.pp > 1 and (plan.vp > 1 or plan.schedule is not Schedule.ONE_F_ONE_B):
        fitting.change(
            "schedule", "1f1b", "DeepSpeed's pipeline engine runs 1F1B with one stage a rank",
            asked=f"{plan.schedule.label}, vp {plan.vp}", schedule=Schedule.ONE_F_ONE_B, vp=1, layout=None,
        )  # fmt: skip
    if fitting.plan.layout is not None:
        fitting.change(
            "layout", "even stages", "DeepSpeed's configuration has no stage layout",
            asked=", ".join(map(str, fitting.plan.layout)), layout=None,
        )  # fmt: skip
    if plan.tp > 1 and plan.sp:
        fitting.change("sequence parallel", "off", "DeepSpeed's AutoTP has none", asked="on", sp=False)
    if plan.cp > 1 and plan.cp_kind is not CpKind.ULYSSES:
        fitting.change(
            "cp_kind", "ulysses", "DeepSpeed exchanges heads (Ulysses)", asked=plan.cp_kind.label,
            cp_kind=CpKind.ULYSSES,
        )  # fmt: skip
    if plan.pp > 1 and plan.sharding >= Sharding.ZERO2:
        fitting.change(
            "sharding", "zero1", "ZeRO-2 and ZeRO-3 are incompatible with DeepSpeed's pipeline engine",
            asked=plan.sharding.label, sharding=Sharding.ZERO1,
        )  # fmt: skip
    if fitting.plan.replicas > 1:
        fitting.change(
            "replicas", "1", "DeepSpeed keeps no replicas of shards (MiCS was removed)",
            asked=str(plan.replicas), replicas=1,
        )  # fmt: skip
    fitting.leave_capacity("DeepSpeed's configuration has none; its MoE layer takes it in the script")
    fit_whole_recompute(fitting, "DeepSpeed")
    fitting.default_order("DeepSpeed places tp inside dp inside pp")


def fit_whole_recompute(fitting: Fitting, name: str) -> None:
    """Recompute every layer where the plan recomputes anything."""
    plan = fitting.plan
    if plan.recompute_layers == ALL_LAYERS or not (plan.recompute_layers or plan.recompute_modules):
        return
    asked = f"{plan.recompute_layers} layers a rank" if plan.recompute_layers else "by module"
    fitting.change(
        "recompute", "all layers", f"{name} recomputes every layer or none", asked=asked,
        recompute_layers=ALL_LAYERS, recompute_modules=Recompute.NONE,
    )  # fmt: skip


def configuration(job: Job, plan: Plan) -> dict[str, Any]:
    """The JSON; ``_meshplan`` at its end is ignored by DeepSpeed and names the model and the GPUs."""
    workload = job.setting.workload
    zero: dict[str, Any] = {"stage": int(plan.sharding)}
    if plan.sharding >= Sharding.ZERO1:
        zero |= {"overlap_comm": True, "contiguous_gradients": True, "reduce_scatter": True}
        if workload.offload == "optimizer":
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
            if plan.sharding is Sharding.ZERO3 and workload.offload_fraction < 1:
                zero["offload_optimizer"]["ratio"] = workload.offload_fraction
    found: dict[str, Any] = {
        "train_batch_size": workload.gbs,
        "train_micro_batch_size_per_gpu": plan.mbs,
        "gradient_accumulation_steps": workload.gbs // (plan.dp * plan.mbs),
        "zero_optimization": zero,
        "bf16": {"enabled": workload.precision not in ("fp16", "fp32")},
        "fp16": {"enabled": workload.precision == "fp16"},
        "gradient_clipping": 1.0,
    }
    if plan.tp > 1:
        found["tensor_parallel"] = {"autotp_size": plan.tp}
    if plan.cp > 1:
        found |= {"sequence_parallel_size": plan.cp, "data_parallel_size": plan.dp}
    if plan.pp > 1:
        found["pipeline"] = {"stages": plan.pp}
    if plan.ep > 1 or plan.etp > 1:
        found["expert_parallel"] = {
            "enabled": True, "autoep_size": plan.ep, "expert_tensor_parallel_size": plan.etp,
        }  # fmt: skip
    if plan.recompute_layers == ALL_LAYERS:
        if plan.pp > 1:
            found["pipeline"]["activation_checkpoint_interval"] = 1
        else:
            found["activation_checkpointing"] = {"partition_activations": False}
    return {**found, "steps_per_print": 1, "_meshplan": job_facts(job)}


def _script_options(job: Job, plan: Plan) -> list[tuple[str, ...]]:
    options: list[tuple[str, ...]] = [
        ("--model", job.hub_name),
        ("--seq-length", str(job.setting.workload.seq)),
    ]
    if plan.recompute_layers == ALL_LAYERS:
        options.append(("--gradient-checkpointing",))
    return options
