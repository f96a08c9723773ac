"""Target ``pytorch``: the mesh, its groups and the stages for people with their own training loop.

``init_device_mesh`` and the schedule classes of ``torch.distributed.pipelining`` as in PyTorch 2.13.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from meshplan.export.environment import environment
from meshplan.export.header import header
from meshplan.export.launch import Fitting, Job, Launch, recompute_words
from meshplan.export.quoting import python_text
from meshplan.export.torchrun import run_script
from meshplan.export.torchtitan_plan import fit_torch_schedule, schedule_name
from meshplan.plan.kinds import Recompute, Schedule
from meshplan.plan.plans import Plan

VERSION = "PyTorch 2.13"
MODULE = "meshplan_mesh"
V_SHAPED = (Schedule.ZB_V, Schedule.DUALPIPE_V)


def export_pytorch(job: Job) -> Launch:
    """``run.sh`` and ``meshplan_mesh.py``, which prints the groups of a rank when run by itself."""
    fitting = Fitting(job)
    fit_torch_schedule(fitting)
    if fitting.plan.replicas > 1 and fitting.plan.dp % fitting.plan.replicas:
        fitting.change("replicas", "1", "replicas must divide dp", asked=str(job.plan.replicas), replicas=1)
    fitting.leave_capacity("the mesh alone is written; the experts are your script's")
    before = [f': "${{TRAIN:=$HERE/{MODULE}.py}}"  # your training script; it imports {MODULE}']
    files = {
        "run.sh": run_script(
            job,
            f"{VERSION} launch",
            env=environment(job),
            before=[*before, 'export PYTHONPATH="$HERE${PYTHONPATH:+:$PYTHONPATH}"'],
            program='"$TRAIN" "$@"',
        ),
        f"{MODULE}.py": _module(job, fitting),
    }
    return Launch(
        target="pytorch",
        version=VERSION,
        files=files,
        main="run.sh",
        written=fitting.plan,
        order=fitting.order,
        notes=tuple(fitting.notes),
    )


def _module(job: Job, fitting: Fitting) -> str:
    plan, workload = fitting.plan, job.setting.workload
    constants = {
        **plan_constants(plan, fitting.order, len(job.model.layers)),
        "MICRO_BATCHES": job.micro_batches,
        "GLOBAL_BATCH": workload.gbs,
        "SEQ": workload.seq,
        "PRECISION": workload.precision,
    }
    lines = [
        header(job, f"{VERSION}: mesh, groups and stages of one plan").rstrip("\n"),
        "from torch.distributed.device_mesh import init_device_mesh",
        "",
        *(f"{name} = {python_text(value)}" for name, value in constants.items()),
        *_BODY,
    ]
    return "\n".join(lines) + "\n"


def plan_constants(plan: Plan, order: tuple[str, ...], layers: int) -> dict[str, object]:
    """The plan as the constants at the top of the module."""
    outer = [dim for dim in reversed(order) if dim != "ep"]
    shape = {"tp": plan.tp, "cp": plan.cp, "pp": plan.pp, "dp": plan.dp}
    names: list[str] = []
    sizes: list[int] = []
    for dim in outer:
        if dim == "dp" and plan.replicas > 1:
            names += ["dp_replicate", "dp_shard"]
            sizes += [plan.replicas, plan.dp // plan.replicas]
        else:
            names.append(dim)
            sizes.append(shape[dim])
    swap = {"tp": "etp", "dp": "edp", "ep": "ep", "pp": "pp"}
    experts = {"etp": plan.etp, "edp": plan.edp, "ep": plan.ep, "pp": plan.pp}
    expert_names = [swap[dim] for dim in reversed(order) if dim in swap]
    bounds = [0, *accumulate(replace_layout(plan, layers))]
    return {
        "MESH_NAMES": tuple(names),
        "MESH_SHAPE": tuple(sizes),
        "EXPERT_MESH_NAMES": tuple(expert_names),
        "EXPERT_MESH_SHAPE": tuple(experts[name] for name in expert_names),
        "SEQUENCE_PARALLEL": plan.sp and plan.tp > 1,
        "CONTEXT_PARALLEL": plan.cp_kind.label,
        "SHARDING": plan.sharding.label,
        "SCHEDULE": schedule_name(plan),
        "V_SHAPED": plan.schedule in V_SHAPED,
        "STAGES_PER_RANK": plan.vp,
        "STAGE_BOUNDS": tuple(bounds),
        "MICRO_BATCH": plan.mbs,
        "RECOMPUTE_LAYERS": plan.recompute_layers,
        "RECOMPUTE_MODULES": recompute_words(replace(plan, recompute_layers=0))
        if plan.recompute_modules is not Recompute.NONE
        else "none",
    }


def replace_layout(plan: Plan, layers: int) -> tuple[int, ...]:
    """Layers of each stage."""
    from meshplan.export.launch import stage_layers

    return stage_layers(plan, layers)


_BODY = '''

def meshes(device="cuda"):
    """The mesh of attention and dense layers, and the same ranks regrouped for experts."""
    dense = init_device_mesh(device, MESH_SHAPE, mesh_dim_names=MESH_NAMES)
    experts = init_device_mesh(device, EXPERT_MESH_SHAPE, mesh_dim_names=EXPERT_MESH_NAMES)
    return dense, experts


def groups(mesh):
    """Process group of each dimension of a mesh."""
    return {name: mesh[name].get_group() for name in mesh.mesh_dim_names}


def stages(pp_rank):
    """Stages of a pipeline rank, each a range of layers; the first holds the embedding, the last the head."""
    ranks = (len(STAGE_BOUNDS) - 1) // STAGES_PER_RANK
    places = [turn * ranks + pp_rank for turn in range(STAGES_PER_RANK)]
    if V_SHAPED:
        places = [pp_rank, 2 * ranks - 1 - pp_rank]
    return {place: range(STAGE_BOUNDS[place], STAGE_BOUNDS[place + 1]) for place in places}


def schedule(local_stages, loss_fn):
    """The pipeline schedule over ``torch.distributed.pipelining.PipelineStage`` objects."""
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

    kind = get_schedule_class(SCHEDULE)
    of = local_stages[0] if issubclass(kind, PipelineScheduleSingle) else local_stages
    return kind(of, n_microbatches=MICRO_BATCHES, loss_fn=loss_fn)


if __name__ == "__main__":
    import torch
    import torch.distributed as dist

    dist.init_process_group()
    dense, experts = meshes("cuda" if torch.cuda.is_available() else "cpu")
    rank = dist.get_rank()
    for name, group in {**groups(dense), **groups(experts)}.items():
        print(f"rank {rank} {name}: {dist.get_process_group_ranks(group)}")
    print(f"rank {rank} stages: {stages(dense.get_local_rank('pp'))}")
    dist.destroy_process_group()'''.splitlines()
