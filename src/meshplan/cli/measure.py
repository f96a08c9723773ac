"""``meshplan measure``: plans run for real, ranked by what was measured, the estimate beside."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts
from cyclopts import Parameter

from meshplan.cli.estimate import PlanFlags, plan_of
from meshplan.cli.flags import ClusterFlags, SpaceFlags, WorkloadFlags, given, no_habits
from meshplan.cli.help import HelpFormatter
from meshplan.cli.options import Count, Json, OptionalCount
from meshplan.cli.output import write_file
from meshplan.cli.plan_text import read_plan
from meshplan.cli.progress import hushed
from meshplan.cli.question import Question, question
from meshplan.cluster.presets import cluster_of
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.stack import load_stack
from meshplan.cost.models import cost_model_named
from meshplan.errors import InputError
from meshplan.files import write_text
from meshplan.measure.cut import with_layers
from meshplan.measure.engines import CommandEngine, Engine, ReferenceEngine, TorchtitanEngine, words_of
from meshplan.measure.executable import reasons
from meshplan.measure.needs import need_torch
from meshplan.model.load import load_model
from meshplan.plan.kinds import Sharding
from meshplan.plan.plans import DEFAULT_ORDER, Plan, Plans
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
from meshplan.report.measure_html import measured_html
from meshplan.report.measure_view import measured_data, measured_text, plan_label
from meshplan.report.screen import Screen

app = cyclopts.App(name="measure", help_formatter=HelpFormatter())

GPU = "h100-sxm"
"""Rules of plans need some cluster where none is given."""
FAILED = 3
"""Exit code when no plan ran."""


@app.default
def measure(
    model: str,
    /,
    *,
    plan: Annotated[
        tuple[str, ...], Parameter(help="A plan to run, tp2,pp2,zero1; once for each.", negative=())
    ] = (),
    top: Annotated[OptionalCount, Parameter(help="Or the best so many plans of a search.")] = None,
    cluster: ClusterFlags | None = None,
    workload: WorkloadFlags | None = None,
    layers: Annotated[OptionalCount, Parameter(help="So many of the model's layers instead of all.")] = None,
    steps: Annotated[Count, Parameter(help="Timed steps of a run.")] = 20,
    rounds: Annotated[Count, Parameter(help="Times every plan runs, round-robin.")] = 3,
    profile: Annotated[bool, Parameter(negative="--no-profile", help="Profile two more steps.")] = True,
    check: Annotated[
        bool, Parameter(negative="--no-check", help="Compare loss and gradients with one process first.")
    ] = True,
    limit: Annotated[Count, Parameter(metavar="SECONDS", help="After this a run counts as hung.")] = 300,
    out: Annotated[Path, Parameter(metavar="FOLDER", help="Runs and results.jsonl; resumed.")] = Path("runs"),
    engine: Annotated[Literal["reference", "torchtitan", "command"], Parameter(metavar="NAME")] = "reference",
    command: Annotated[
        str,
        Parameter(
            metavar="LINE",
            allow_leading_hyphen=True,
            help="Engine command: the launch line, {folder} {ranks} {tp} … filled in; torchtitan: flags.",
        ),
    ] = "",
    traces: Annotated[
        str, Parameter(metavar="FOLDER", help="Where the command leaves its traces.")
    ] = "{folder}",
    launcher: Annotated[Literal["local", "slurm"], Parameter(metavar="NAME")] = "local",
    sbatch: Annotated[
        str,
        Parameter(metavar="FLAGS", allow_leading_hyphen=True, help="Of launcher slurm: '--partition=gpu …'."),
    ] = "",
    nodes: Annotated[Count, Parameter(help="Hosts; launcher local: start the same command on each.")] = 1,
    node_rank: Annotated[int, Parameter(help="Which of the hosts this is, from 0.")] = 0,
    address: Annotated[str, Parameter(metavar="HOST:PORT", help="Where the hosts meet: host 0's.")] = "",
    device: Annotated[Literal["auto", "cpu", "cuda"], Parameter(metavar="NAME")] = "auto",
    stack: Annotated[str, Parameter(metavar="NAME")] = "torchtitan",
    html: Annotated[Path | None, Parameter(metavar="FILE", help="The answer as one HTML page too.")] = None,
    json_: Json = False,
    download: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Train a few steps under each plan, in PyTorch, on this machine; rank the plans by what was measured.

    The reference engine is a real decoder of the model's layer shapes; its loss and gradients are compared
    with one process before anything is timed. Every run is a folder and a line of results.jsonl. With a
    cluster given, the estimate stands beside. Exit code 3: no plan ran, or the machine cannot run any.

    Across hosts (--nodes, --node-rank, --address) the folder must be one that all of them share.

    Parameters
    ----------
    model
        A preset (see `meshplan models`), a config.json or its folder, or a name on the hub.
    engine
        reference (meshplan's own decoder), torchtitan (with the configuration that `meshplan export` writes)
        or command (any line of yours; its traces are read).
    launcher
        local (torchrun here) or slurm (a generated sbatch script).
    device
        auto (a GPU where there is one), cpu or cuda.
    stack
        Software whose habits the estimate assumes.
    download
        Fetch the config.json of an unknown model from the Hugging Face hub.
    """
    if engine != "command":
        need_torch("measure")
    from meshplan.measure.specs import RunSpec
    from meshplan.measure.summary import summarise
    from meshplan.measure.sweep import Sweep, follow

    if not 0 <= node_rank < nodes:
        raise InputError(f"--node-rank {node_rank} is none of --nodes {nodes}: it counts from 0")
    if nodes > 1 and launcher == "local" and not address:
        raise InputError("--nodes needs --address HOST:PORT, where the hosts meet")
    how = launchers(launcher, engine, nodes=nodes, node_rank=node_rank, address=address, sbatch=sbatch)
    say = _say
    if node_rank > 0:
        follow(out, how, say, limit_s=float(limit))
        return 0
    full = FullModel(stack=load_stack(stack))
    machine = cluster or ClusterFlags()
    cut = with_layers(load_model(model, download=download), layers)
    work = _workload(workload or WorkloadFlags(), device, launcher)
    asked = _question(cut, machine, work)
    plans = [_plan(text, cut, work, asked, engine) for text in plan] or _best(full, asked, top, engine)
    specs = tuple(
        RunSpec(
            model=cut, workload=work, plan=p, label=plan_label(p), order=order, steps=steps,
            profiled=2 if profile else 0, check=check and engine == "reference", device=device,
            engine=engine, command=command,
        )
        for p, order in plans
    )  # fmt: skip
    trainer = engines(engine, command, traces, model, asked, layers)
    sweep = Sweep(
        specs=specs, folder=out, launcher=how, rounds=rounds, limit_s=float(limit), engine=trainer,
        announce=nodes > 1 and launcher == "local",
    )  # fmt: skip
    if engine != "command":
        _check_ranks(specs, device, nodes, launcher)
    results = sweep.run(say)
    found = summarise(results)
    by_key = {s.key: s for s in specs}
    priced = {m.key: _price(full, asked, by_key[m.key]) for m in found} if asked else {}
    data: dict[str, Any] = measured_data(found, results, priced, out)
    write_text(out / "summary.json", json.dumps(data, indent=2) + "\n")
    if html is not None:
        write_file(html, measured_html(data))
    if json_:
        print(json.dumps(data, indent=2, allow_nan=False))
    else:
        sys.stdout.write(measured_text(data, Screen.of()))
    return 0 if any(m.outcome == "ok" for m in found) else FAILED


def _workload(flags: WorkloadFlags, device: str, launcher: str) -> Workload:
    """What a step trains on: in bf16 where a GPU does it, here or under Slurm, else in fp32."""
    if flags.seq is None or flags.gbs is None:
        raise InputError("--seq and --gbs are needed: what one step trains on")
    no_habits(flags, "the run measures what it does")
    there = launcher == "slurm" or shutil.which("nvidia-smi") is not None
    on_gpu = device == "cuda" or (device == "auto" and there)
    return Workload(seq=flags.seq, gbs=flags.gbs, precision=flags.precision or ("bf16" if on_gpu else "fp32"))


def _question(model: Any, machine: ClusterFlags, work: Workload) -> Question | None:
    """What an estimate needs; ``None`` where no cluster is given."""
    if not given(machine):
        return None
    flags = WorkloadFlags(seq=work.seq, gbs=work.gbs, precision=work.precision)  # type: ignore[arg-type]
    asked = question("llama-3.1-8b", machine, flags, SpaceFlags())
    gpu = asked.cluster.gpu
    if work.precision == "fp32" and gpu.peak_flops.get("bf16", 0.0) > gpu.peak_flops.get("fp32", 0.0):
        raise InputError(
            f"on a CPU measure trains in fp32, and {gpu.name} is priced in bf16; --precision bf16 trains in"
            " it on a CPU too, and plans named with --plan need no cluster"
        )
    return replace(asked, model=model)


def _plan(
    text: str, model: Any, work: Workload, asked: Question | None, engine: str
) -> tuple[Plan, tuple[str, ...]]:
    told = read_plan(text, PlanFlags())
    told.dp = told.dp or (
        asked.cluster.gpus // ((told.tp or 1) * (told.cp or 1) * (told.pp or 1)) if asked else 1
    )
    gpus = (told.tp or 1) * (told.cp or 1) * (told.pp or 1) * max(told.dp, 1)
    if asked is None:
        asked = Question(
            model=model, cluster=cluster_of(GPU, gpus, gpus_per_node=gpus), workload=work, space=Space(),
            cost_model=cost_model_named(),
        )  # fmt: skip
    chosen = plan_of(told, asked, sharding=Sharding.ZERO3)
    why = next(reasons(model, work, chosen), None)
    if why is not None and engine == "reference":
        raise InputError(f"--plan {text}: the reference engine cannot run this: {why}")
    return chosen, told.order or DEFAULT_ORDER


def _best(
    full: FullModel, asked: Question | None, top: int | None, engine: str
) -> list[tuple[Plan, tuple[str, ...]]]:
    """The best plans of a search that the engine can run."""
    if top is None or asked is None:
        raise InputError("give plans with --plan, or --top with a cluster (--gpu and --gpus, or --cluster)")
    from meshplan.plan.rules import Setting
    from meshplan.search.planned import planned

    setting = Setting(asked.model, asked.cluster, asked.workload)
    ranking = planned(setting, space=asked.space, cost_model=full)
    runs = [
        p
        for p in ranking
        if engine != "reference" or next(reasons(asked.model, asked.workload, p), None) is None
    ]
    if not runs:
        raise InputError("no plan of the search is one that the reference engine can run")
    return [(p, DEFAULT_ORDER) for p in runs[:top]]


def _price(full: FullModel, asked: Question, spec: Any) -> dict[str, Any]:
    """Step and memory of the plan as estimated, by part."""
    costs = full.price(asked.model, asked.cluster, asked.workload, Plans.of(spec.plan, order=spec.order))
    return {
        "step_s": float(costs.step_s[0]), "memory_bytes": float(costs.memory_bytes[0]),
        "time": {k: float(v[0]) for k, v in costs.time.items()},
    }  # fmt: skip


def _say(text: str) -> None:
    if not hushed():
        print(text, file=sys.stderr)


def launchers(name: str, engine: str, *, nodes: int, node_rank: int, address: str, sbatch: str) -> Any:
    """The launcher of that name. Raises ``InputError`` for what does not go together."""
    from meshplan.measure.launch import LocalLauncher, PlainLauncher
    from meshplan.measure.slurm import SlurmLauncher

    if engine == "command":
        if name == "slurm" or nodes > 1:
            raise InputError("engine command launches by itself: put srun or torchrun into --command")
        return PlainLauncher()
    if name == "slurm":
        return SlurmLauncher(nodes=nodes, options=tuple(words_of(sbatch)))
    if nodes > 1 and engine != "reference":
        raise InputError("across hosts --launcher local runs the reference engine; use --launcher slurm")
    return LocalLauncher(nodes=nodes, node_rank=node_rank, address=address)


def engines(
    name: str, command: str, traces: str, model: str, asked: Question | None, layers: int | None
) -> Engine:
    """The engine of that name. Raises ``InputError`` for what it lacks."""
    if name == "command":
        if not command:
            raise InputError("engine command needs --command LINE, the line that trains a plan")
        return CommandEngine(line=command, traces=traces)
    if name == "reference":
        return ReferenceEngine()
    from importlib.util import find_spec

    if find_spec("torchtitan") is None:
        raise InputError("engine torchtitan needs torchtitan, which is not installed; pip install torchtitan")
    if layers is not None:
        raise InputError("--layers is of the reference engine; torchtitan trains the models it knows")

    def files(spec: Any) -> Any:
        from meshplan.export.launch import Job
        from meshplan.export.targets import export
        from meshplan.plan.rules import Setting

        gpus = spec.plan.gpus
        machine = asked.cluster if asked else cluster_of(GPU, gpus, gpus_per_node=gpus)
        setting = Setting(model=spec.model, cluster=machine, workload=spec.workload)
        job = Job(setting=setting, plan=spec.plan, order=spec.order, asked_model=model)
        return export(job, "torchtitan").files

    return TorchtitanEngine(files=files, extra=tuple(words_of(command)))


def _check_ranks(specs: tuple[Any, ...], device: str, nodes: int, launcher: str) -> None:
    """Raise ``MachineError`` where plans have more ranks than this machine's GPUs, or odd ones; warn where
    CPU ranks take turns."""
    import os

    from meshplan.measure.failures import MachineError

    for s in specs:
        if s.plan.gpus % nodes:
            raise MachineError(f"plan {s.label}: {s.plan.gpus} ranks do not divide over {nodes} hosts")
    if launcher == "slurm":
        return
    most = max(s.plan.gpus for s in specs) // nodes
    if device != "cpu" and shutil.which("nvidia-smi") is not None:
        import torch

        have = torch.cuda.device_count()
        if torch.cuda.is_available() and most > have:
            raise MachineError(
                f"the plans need {most} GPUs on this host, which has {have}; --device cpu runs"
                " them on its cores"
            )
        if torch.cuda.is_available():
            return
    cores = os.cpu_count() or 1
    if most > cores:
        print(
            f"warning: {most} ranks on {cores} cores take turns; their times say little of a network",
            file=sys.stderr,
        )
