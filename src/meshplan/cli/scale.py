"""``meshplan scale``: the best plan as the GPUs grow."""

import json
import sys
from dataclasses import replace
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from meshplan.cli.flags import (
    ClusterFlags,
    HabitFlags,
    ObjectiveName,
    Precision,
    SizeFlags,
    SpaceFlags,
    StackName,
    WorkloadFlags,
    habits,
)
from meshplan.cli.help import HelpFormatter
from meshplan.cli.options import Json, option, read_count
from meshplan.cli.progress import progress
from meshplan.cli.wishes import CostModelName, asked_case
from meshplan.errors import InputError, shown
from meshplan.report.scale_view import scale_data, scale_text
from meshplan.report.screen import Screen
from meshplan.search.heap import keep_freed_memory
from meshplan.search.scaling import scaling

app = cyclopts.App(name="scale", help_formatter=HelpFormatter())

NO_PLAN = 1
MOST_POINTS = 40


def read_counts(text: str, what: str) -> tuple[int, ...]:
    """``64..16384`` (doubling) or ``64,96,128``."""
    low, dots, high = text.partition("..")
    if not dots:
        return tuple(dict.fromkeys(read_count(part.strip(), what) for part in text.split(",")))
    first, last = read_count(low, what), read_count(high, what)
    if last < first:
        raise InputError(f"{what} {shown(text)} counts down; write {last}..{first}")
    found = [first]
    while found[-1] * 2 <= last:
        found.append(found[-1] * 2)
    return tuple(found)


Counts = Annotated[tuple[int, ...], option(read_counts, joined=True, metavar="LIST")]


@app.default
def scale(
    model: str,
    /,
    *,
    gpus: Annotated[Counts, Parameter(help="Numbers of GPUs: 64..16384 (doubling) or 64,96,128.")],
    gbs: Annotated[
        Counts | None, Parameter(help="Sequences in the global batch, one curve each: 512,2048.")
    ] = None,
    weak: bool = True,
    gpu: Annotated[str | None, Parameter(metavar="NAME", help="GPU preset; see `meshplan gpus`.")] = None,
    gpus_per_node: Annotated[int | None, option(read_count)] = None,
    nic: Annotated[str | None, Parameter(metavar="RATE")] = None,
    cluster: str | None = None,
    seq: Annotated[int | None, option(read_count)] = None,
    precision: Annotated[Precision | None, Parameter(metavar="NAME")] = None,
    habit: HabitFlags | None = None,
    space: SpaceFlags | None = None,
    size: SizeFlags | None = None,
    cost_model: CostModelName = None,
    objective: ObjectiveName = None,
    stack: StackName = None,
    json_: Json = False,
    download: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Find the best plan for every number of GPUs: its MFU, its tokens/s, and where the efficiency goes.

    Strong scaling keeps the global batch, weak scaling lets it grow with the GPUs. Exit code 0: there is a
    plan for some number of GPUs; 1: for none; 2: the question makes no sense.

    Parameters
    ----------
    model
        A preset (see `meshplan models`), a config.json or its folder, a name in the Hugging Face
        cache, or a job file (.yaml, .toml). Flags win over it.
    weak
        Also with the first batch growing as the GPUs do; --no-weak without.
    gpus_per_node
        GPUs in a node (default: the GPU's own).
    nic
        Network of a GPU, one direction: '400 Gb/s', '50 GB/s'.
    cluster
        Cluster file (YAML or TOML) instead of the flags above.
    seq
        Tokens in a sequence.
    precision
        Of the matrix multiplications (default: bf16).
    download
        Fetch the config.json of an unknown model from the Hugging Face hub.
    """
    counts = tuple(sorted(gpus))
    batches = gbs or ()
    if len(counts) * (len(batches) + 1) > MOST_POINTS:
        raise InputError(f"--gpus and --gbs make more than {MOST_POINTS} points; ask for fewer")
    tokens = WorkloadFlags(
        seq=seq,
        gbs=batches[0] if batches else None,
        precision=precision,
        **habits(habit or HabitFlags()),
    )
    case = asked_case(
        model,
        ClusterFlags(gpu=gpu, gpus=counts[-1], gpus_per_node=gpus_per_node, nic=nic, cluster=cluster),
        tokens,
        space,
        cost_model=cost_model,
        stack=stack,
        download=download,
        size=size,
        objective=objective,
    )
    keep_freed_memory()
    batches = batches or (case.workload.gbs,)
    case = replace(case, workload=replace(case.workload, gbs=batches[0]))
    found = scaling(case, counts, batches, weak=weak, told=progress())
    if json_:
        print(json.dumps(scale_data(case, found), indent=2, allow_nan=False))
    else:
        sys.stdout.write(scale_text(case, found, Screen.of()))
    return 0 if any(point.costs is not None for point in found.points) else NO_PLAN
