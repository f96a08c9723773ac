"""``meshplan read``: what a launch script will do, and what would be better."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import cyclopts
from cyclopts import Parameter

from meshplan.cli.export import best_plans, price_of, prices
from meshplan.cli.flags import ClusterFlags, StackName, WorkloadFlags, habits
from meshplan.cli.job import is_job_file, is_phased
from meshplan.cli.options import Json
from meshplan.cluster.files import load_cluster
from meshplan.cost.costs import Costs
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.stack import stack_names
from meshplan.errors import InputError, shown
from meshplan.export.found import Found
from meshplan.export.launch import Job
from meshplan.export.reading import Given, Reading, resolve
from meshplan.export.recognise import recognise
from meshplan.export.targets import files_without_checks
from meshplan.files import MIB, read_text
from meshplan.plan.plans import Plan
from meshplan.plan.rules import FSDP_OFFLOAD, Setting
from meshplan.plan.space import Space
from meshplan.report.read_view import Better, read_data, read_text_view
from meshplan.report.screen import Screen, printable
from meshplan.search.planned import planned

app = cyclopts.App(name="read")

WRONG = 1
LIMIT_BYTES = 4 * MIB
DEEPEST = 3
"""Parts of a path that are looked for below the folder of the script that names it."""
OF_A_FOLDER = ("job.sbatch", "jobset.yaml", "sky.yaml", "run.sh")
"""What `export` writes that starts the run, the outermost first: each reads those after it."""
LAUNCH_SUFFIXES = (".sh", ".bash", ".sbatch", ".slurm", ".args", ".yaml", ".yml", ".toml", ".json", ".py")
MOST_NAMED = 5
MAIN_FILES = {
    "megatron": ("megatron.args",), "megatron-bridge": ("meshplan_recipe.py",),
    "torchtitan": ("torchtitan.flags", "meshplan_titan.py"), "deepspeed": ("ds_config.json",),
    "accelerate": ("accelerate.yaml",), "pytorch": ("meshplan_mesh.py",),
}  # fmt: skip
"""The file of each target in which a change of plan is shown; the first that there is."""


@app.default
def read(
    file: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *arguments: str,
    model: Annotated[str | None, Parameter(metavar="NAME")] = None,
    cluster: ClusterFlags | None = None,
    workload: WorkloadFlags | None = None,
    stack: StackName = None,
    json_: Json = False,
) -> int:
    """Read a launch script or configuration: what it will do, and the best plan beside it.

    Nothing in the file is run. Known are Megatron-LM argument lists and launch scripts, Megatron-Bridge
    and NeMo recipes and overrides, torchtitan command lines and configurations, DeepSpeed JSON, accelerate
    YAML and meshplan's own files. Exit code 0: it would start and fit; 1: it would not; 2: it cannot be
    read.

    Parameters
    ----------
    file
        The file, or the folder that export wrote; - reads standard input.
    arguments
        What the script is started with, as on its own command line: read run.sh -- dsw 7B 1 128.
    model
        What it trains, where the file does not say.
    """
    if file.startswith("-") and file != "-":
        raise InputError(f"unknown option {shown(file)}; see `meshplan read --help`")
    file = _of_folder(file)
    text, where = _input(file)
    found = recognise(text, where=where, sibling=_beside(file), arguments=arguments)
    if not isinstance(found, Found):
        if model is not None:
            raise InputError("a job file says its model; drop --model")
        return _job_file(file, cluster or ClusterFlags(), workload or WorkloadFlags(), stack, json_=json_)
    given = _given(model, cluster or ClusterFlags(), workload or WorkloadFlags())
    try:
        reading = resolve(found, given)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    cost_model = _prices(reading, stack)
    costs = _price(cost_model, reading)
    better = _better(cost_model, reading, costs)
    fits = costs is None or bool(costs.fits[0])
    if json_:
        print(json.dumps(read_data(reading, costs, better), indent=2, allow_nan=False))
    else:
        sys.stdout.write(read_text_view(reading, costs, better, Screen.of()))
    return 0 if fits and not reading.problems else WRONG


def _prices(reading: Reading, stack: str | None) -> FullModel:
    """The cost model with the stack asked for, that of the file's header, or the framework's."""
    if stack is None and reading.stack in stack_names():
        stack = reading.stack
    return prices(reading.kind, stack)


def _of_folder(file: str) -> str:
    """The file to read of a folder, said on standard error; any other path stays. Raises ``InputError``."""
    folder = Path(file)
    try:
        if file == "-" or not folder.is_dir():
            return file
        names = sorted(path.name for path in folder.iterdir() if path.is_file())
    except (OSError, ValueError):  # said where the file is read
        return file
    starts = [name for name in OF_A_FOLDER if name in names]
    if starts:
        path = str(folder / starts[0])
        print(f"reading {printable(path)}", file=sys.stderr)
        return path
    some = [name for name in names if name.endswith(LAUNCH_SUFFIXES)]
    more = f" and {len(some) - MOST_NAMED} more" if len(some) > MOST_NAMED else ""
    which = f"name one of its files: {', '.join(some[:MOST_NAMED])}{more}" if some else "name a script"
    known = f"{', '.join(OF_A_FOLDER[:-1])} or {OF_A_FOLDER[-1]}"
    raise InputError(f"folder {shown(file, 200)} has no {known}; {which}")


def _input(file: str) -> tuple[str, str]:
    if file != "-":
        return read_text(file, limit_bytes=LIMIT_BYTES, what="launch file"), f"launch file {shown(file, 200)}"
    data = sys.stdin.buffer.read(LIMIT_BYTES + 1)
    if len(data) > LIMIT_BYTES:
        raise InputError(
            f"standard input is larger than {LIMIT_BYTES / MIB:g} MiB, too large for a launch file"
        )
    try:
        return data.decode("utf-8-sig"), "standard input"
    except UnicodeDecodeError as error:
        raise InputError(f"standard input is not UTF-8 text (byte {error.start})") from None


def _beside(file: str) -> Any:
    """Files that a script names, by the last parts of their path, from the script's own folder or below."""
    folder = Path(file).parent if file != "-" else None

    def sibling(name: str) -> str | None:
        parts = [part for part in name.split("/") if part]
        if folder is None or not parts or any(part.startswith(".") for part in parts[-DEEPEST:]):
            parts = parts[-1:] if parts and not parts[-1].startswith(".") else []
        if folder is None:
            return None
        for deep in range(1, min(DEEPEST, len(parts)) + 1):
            path = folder.joinpath(*parts[-deep:])
            try:
                if path.is_file():
                    return read_text(path, limit_bytes=LIMIT_BYTES, what="launch file")
            except (OSError, ValueError, InputError):
                return None
        return None

    return sibling


def _given(model: str | None, cluster: ClusterFlags, workload: WorkloadFlags) -> Given:
    described = load_cluster(cluster.cluster, gpus=cluster.gpus) if cluster.cluster is not None else None
    return Given(
        model=model,
        cluster=described,
        gpu=cluster.gpu,
        gpus=cluster.gpus,
        gpus_per_node=cluster.gpus_per_node,
        nic=cluster.nic,
        seq=workload.seq,
        gbs=workload.gbs,
        precision=workload.precision,
        **habits(workload),
    )


def _price(cost_model: FullModel, reading: Reading) -> Costs | None:
    """The price of the plan as read; ``None`` where it is too far from valid to be priced."""
    plan, setting = reading.plan, reading.setting
    if plan.gpus != setting.cluster.gpus or setting.workload.gbs < plan.dp * plan.mbs:
        return None
    if plan.layout is None and plan.pp * plan.vp > len(setting.model.layers):
        return None
    if plan.tp * plan.cp * plan.dp % (plan.ep * plan.etp):
        return None
    try:
        return price_of(cost_model, setting, plan, reading.order)
    except (InputError, ValueError, ZeroDivisionError, IndexError):
        return None


def _better(cost_model: FullModel, reading: Reading, costs: Costs | None) -> Better | None:
    """The best plan the same framework can run, if it beats the file's; with the change as a diff."""
    plan, setting = reading.plan, reading.setting
    space = Space.of("small", setting.model, reading.kind)
    recompute = (plan.recompute_layers, plan.recompute_modules)
    own = {
        "order": reading.order,
        "recompute": tuple(dict.fromkeys((*space.recompute, recompute))),
        "sharding": tuple(dict.fromkeys((*space.sharding, plan.sharding))),
    }
    try:
        ranking = best_plans(setting, reading.kind, own, cost_model, advise=False, without=(FSDP_OFFLOAD,))
    except InputError:  # what cannot be priced cannot be compared
        return None
    if not len(ranking):
        return None
    best = ranking.costs
    runs = costs is not None and bool(costs.fits[0]) and not reading.problems
    if runs and costs is not None and float(best.step_s[0]) >= float(costs.step_s[0]) * (1 - 1e-6):
        return Better(costs=best, changes=(), gain=0.0)
    gain = float(costs.step_s[0] / best.step_s[0] - 1) if costs is not None and runs else None
    return Better(costs=best, changes=_changes(reading, best.plans[0]), gain=gain)


def _changes(reading: Reading, best: Plan) -> tuple[str, ...]:
    """Lines of the launch files that differ, as a diff without context."""
    old, new = (_lines(reading, plan) for plan in (reading.plan, best))
    removed = [f"- {line}" for line in old if line not in new]
    added = [f"+ {line}" for line in new if line not in old]
    return (*removed, *added)


def _lines(reading: Reading, plan: Plan) -> list[str]:
    try:
        job = Job(setting=reading.setting, plan=plan, order=reading.order)
        files = files_without_checks(job, reading.kind)
    except InputError:
        return []
    text = next(files[name] for name in MAIN_FILES[reading.kind] if name in files)
    return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def _job_file(
    file: str, cluster: ClusterFlags, workload: WorkloadFlags, stack: str | None, *, json_: bool
) -> int:
    """Our own job file is a question: answered by ``plan``, its best plan shown."""
    from meshplan.cli.flags import SpaceFlags, WorkloadsFlags
    from meshplan.cli.plan import plan
    from meshplan.cli.question import question

    if file == "-" or not is_job_file(file):
        raise InputError("a job file of meshplan is read under a name that ends in .yaml or .toml")
    if not json_ or is_phased(file):
        precision = None if workload.precision is None else (workload.precision,)
        same = WorkloadsFlags(seq=workload.seq, gbs=workload.gbs, precision=precision, **habits(workload))
        return plan(file, cluster=cluster, workload=same, stack=stack, top=3, json_=json_)
    asked = question(file, cluster, workload, SpaceFlags(), stack=stack)
    setting = Setting(asked.model, asked.cluster, asked.workload)
    ranking = planned(setting, space=asked.space, cost_model=asked.cost_model, objective=asked.objective)
    if not len(ranking):
        reason = "no plan is left" if ranking.nothing is None else ranking.nothing.reason
        print(f"error: {reason}", file=sys.stderr)
        return WRONG
    best = ranking.costs.take(slice(0, 1))
    reading = Reading(
        kind="meshplan",
        what="a job file of meshplan",
        setting=setting,
        plan=best.plans[0],
        order=asked.space.order,
        defaults={},
        unknown=(),
        problems=(),
        notes=("the plan is the best of those that the file leaves open",),
    )
    kept = Better(costs=best, changes=(), gain=0.0)
    print(json.dumps(read_data(reading, best, kept), indent=2, allow_nan=False))
    return 0
