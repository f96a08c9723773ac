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
from meshplan.cli.flags import ClusterFlags, SpaceFlags, WorkloadFlags, given
from meshplan.cli.help import HelpFormatter
from meshplan.cli.options import Count, Json, OptionalCount
from meshplan.cli.plan_text import read_plan
from meshplan.cli.question import Question, question
from meshplan.cluster.presets import cluster_of
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.stack import load_stack
from meshplan.cost.models import cost_model_named
from meshplan.errors import InputError
from meshplan.files import write_text
from meshplan.measure.cut import with_layers
from meshplan.measure.executable import reasons
from meshplan.measure.needs import need_torch
from meshplan.model.load import load_model
from meshplan.plan.plans import DEFAULT_ORDER, Plan, Plans
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
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
    device: Annotated[Literal["auto", "cpu", "cuda"], Parameter(metavar="NAME")] = "auto",
    stack: Annotated[str, Parameter(metavar="NAME")] = "torchtitan",
    json_: Json = False,
    download: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Train a few steps under each plan, in PyTorch, on this machine; rank the plans by what was measured.

    The reference engine is a real decoder of the model's layer shapes; its loss and gradients are compared
    with one process before anything is timed. Every run is a folder and a line of results.jsonl. With a
    cluster given, the estimate stands beside. Exit code 3: no plan ran, or the machine cannot run any.

    Parameters
    ----------
    model
        A preset (see `meshplan models`), a config.json or its folder, or a name on the hub.
    device
        auto (a GPU where there is one), cpu or cuda.
    stack
        Software whose habits the estimate assumes.
    download
        Fetch the config.json of an unknown model from the Hugging Face hub.
    """
    need_torch("measure")
    from meshplan.measure.launch import LocalLauncher
    from meshplan.measure.specs import RunSpec
    from meshplan.measure.summary import summarise
    from meshplan.measure.sweep import Sweep

    full = FullModel(stack=load_stack(stack))
    machine = cluster or ClusterFlags()
    cut = with_layers(load_model(model, download=download), layers)
    work = _workload(workload or WorkloadFlags(), device)
    asked = _question(cut, machine, work)
    plans = [_plan(text, cut, work, asked) for text in plan] or _best(full, asked, top)
    specs = tuple(
        RunSpec(
            model=cut, workload=work, plan=p, label=plan_label(p), order=order, steps=steps,
            profiled=2 if profile else 0, check=check, device=device,
        )
        for p, order in plans
    )  # fmt: skip
    sweep = Sweep(specs=specs, folder=out, launcher=LocalLauncher(), rounds=rounds, limit_s=float(limit))
    _warn(specs, device)
    results = sweep.run(lambda text: print(text, file=sys.stderr))
    found = summarise(results)
    by_key = {s.key: s for s in specs}
    priced = {m.key: _price(full, asked, by_key[m.key]) for m in found} if asked else {}
    data: dict[str, Any] = measured_data(found, results, priced, out)
    write_text(out / "summary.json", json.dumps(data, indent=2) + "\n")
    if json_:
        print(json.dumps(data, indent=2, allow_nan=False))
    else:
        sys.stdout.write(measured_text(data, Screen.of()))
    return 0 if any(m.outcome == "ok" for m in found) else FAILED


def _workload(flags: WorkloadFlags, device: str) -> Workload:
    if flags.seq is None or flags.gbs is None:
        raise InputError("--seq and --gbs are needed: what one step trains on")
    on_gpu = device == "cuda" or (device == "auto" and shutil.which("nvidia-smi") is not None)
    return Workload(seq=flags.seq, gbs=flags.gbs, precision=flags.precision or ("bf16" if on_gpu else "fp32"))


def _question(model: Any, machine: ClusterFlags, work: Workload) -> Question | None:
    """What an estimate needs; ``None`` where no cluster is given."""
    if not given(machine):
        return None
    flags = WorkloadFlags(seq=work.seq, gbs=work.gbs, precision=work.precision)  # type: ignore[arg-type]
    asked = question("llama-3.1-8b", machine, flags, SpaceFlags())
    return replace(asked, model=model)


def _plan(text: str, model: Any, work: Workload, asked: Question | None) -> tuple[Plan, tuple[str, ...]]:
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
    chosen = plan_of(told, asked, torch=True)
    why = next(reasons(model, work, chosen), None)
    if why is not None:
        raise InputError(f"--plan {text}: the reference engine cannot run this: {why}")
    return chosen, told.order or DEFAULT_ORDER


def _best(full: FullModel, asked: Question | None, top: int | None) -> list[tuple[Plan, tuple[str, ...]]]:
    """The best plans of a search that the engine can run."""
    if top is None or asked is None:
        raise InputError("give plans with --plan, or --top with a cluster (--gpu and --gpus, or --cluster)")
    from meshplan.search.search import search

    ranking = search(asked.model, asked.cluster, asked.workload, space=asked.space, cost_model=full)
    runs = [p for p in ranking if next(reasons(asked.model, asked.workload, p), None) is None]
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


def _warn(specs: tuple[Any, ...], device: str) -> None:
    import os

    cores, most = os.cpu_count() or 1, max(s.plan.gpus for s in specs)
    if device != "cuda" and shutil.which("nvidia-smi") is None and most > cores:
        print(
            f"warning: {most} ranks on {cores} cores take turns; their times say little of a network",
            file=sys.stderr,
        )
