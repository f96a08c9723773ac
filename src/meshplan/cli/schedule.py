"""``meshplan schedule``: simulate a pipeline schedule with durations given by hand."""

import json
import math
from pathlib import Path
from typing import Annotated, Any

import cyclopts
from cyclopts import Parameter

from meshplan.cli.help import HelpFormatter
from meshplan.cli.options import OptionalCount, option
from meshplan.cli.output import write_file
from meshplan.errors import InputError, shown
from meshplan.report import timeline
from meshplan.report.screen import Screen
from meshplan.report.timeline_svg import draw_svg
from meshplan.report.timeline_trace import write_trace
from meshplan.schedule.generate import SCHEDULES, make_order, schedule_name
from meshplan.schedule.order import Order
from meshplan.schedule.order_file import order_dict, read_order_file
from meshplan.schedule.result import Simulation
from meshplan.schedule.simulate import simulate

app = cyclopts.App(
    name="schedule",
    help="Simulate a pipeline schedule with given durations.",
    help_formatter=HelpFormatter(),
    usage="Usage: meshplan schedule [OPTIONS] [NAME]",
)

MOST_NUMBERS = 100_000
SCHEMA_VERSION = 1


def read_durations(text: str, what: str) -> tuple[float, ...]:
    """Numbers from 0, separated by commas; raises ``InputError``."""
    parts = text.split(",")
    if len(parts) > MOST_NUMBERS:
        raise InputError(f"{what} lists {len(parts):,} numbers; {MOST_NUMBERS:,} is the most")
    return tuple(_duration(part, what) for part in parts)


def _duration(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(
            f"{what} must be a number or a comma-separated list of them, not {shown(text)}"
        ) from None
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"{what} must be 0 or more, not {shown(text)}")
    if value > 1e15:
        raise InputError(f"{what} must be at most 1e15, not {shown(text)}")
    return value


def read_share(text: str, what: str) -> float:
    """One number above 0."""
    value = _duration(text, what)
    if not value:
        raise InputError(f"{what} must be above 0, not {shown(text)}")
    return value


def read_names(text: str, what: str) -> tuple[str, ...]:
    """Schedule names separated by commas."""
    del what
    return tuple(dict.fromkeys(schedule_name(part.strip()) for part in text.split(",")))


Durations = Annotated[
    tuple[float, ...], option(read_durations, metavar="X[,X...]"), Parameter(show_default=False)
]
OptionalShare = Annotated[float | None, option(read_share, metavar="X")]
Names = Annotated[tuple[str, ...] | None, option(read_names, metavar="NAME,NAME...")]
Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


@app.default
def schedule(
    name: str | None = None,
    /,
    *,
    ranks: OptionalCount = None,
    micro_batches: OptionalCount = None,
    vp: OptionalCount = None,
    group: OptionalCount = None,
    forward: Durations = (1.0,),
    backward: Durations = (1.0,),
    weight: Durations = (1.0,),
    p2p: Durations = (0.0,),
    hold_sender: Flag = False,
    pair_share: OptionalShare = None,
    tail: Durations = (0.0,),
    unfilled: Flag = False,
    file: Path | None = None,
    compare: Names = None,
    timeline_: Annotated[bool, Parameter(name="--timeline", negative=(), show_default=False)] = False,
    svg: Path | None = None,
    trace: Path | None = None,
    save_order: Path | None = None,
    json_: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
) -> int:
    """Run a pipeline schedule exactly: step time, bubble, waits, critical path, activations alive.

    Schedules: gpipe, 1f1b, interleaved, looped-bfs, zb-h1, zb-h2, zb-v, v-half, v-min, dualpipe,
    dualpipe-v. Durations are in any one unit; each is one number, or a list with one a stage.

    Parameters
    ----------
    name
        The schedule; or give --file or --compare.
    ranks
        Pipeline ranks.
    micro_batches
        Micro-batches of a step.
    vp
        Stages a rank holds (interleaved, looped-bfs, zb-h1; default 2, zb-h1 1).
    group
        Micro-batches that go through a rank's stages together (interleaved, zb-h1).
    forward
        Forward of a stage (default 1).
    backward
        Gradient of a stage's input (default 1); a whole backward is this and --weight.
    weight
        Gradient of a stage's weights (default 1).
    p2p
        From a stage to the next on another rank (default 0); a list has one a boundary.
    hold_sender
        Sending holds the sender instead of running beside its work.
    pair_share
        An overlapped forward and backward of DualPipe take this share of both one after the other
        (default: they run one after the other).
    tail
        Work after a rank's last action, such as gradient synchronisation; a list has one a rank.
    unfilled
        Accept fewer micro-batches than ranks.
    file
        Run the order in this JSON file: one list of actions a rank, such as
        {"ranks": [["0F0", "0B0"], ["1F0", "1B0"]]} (stage, kind F, B, I or W, micro-batch).
    compare
        Show these schedules side by side; durations are then of all layers of a rank.
    timeline_
        Draw every rank's work over time.
    svg
        Write the timeline to this file as SVG.
    trace
        Write it as a Chrome trace, for Perfetto.
    save_order
        Write the order to this file, in the form --file reads.
    json_
        Print JSON.
    """
    durations = {
        "forward": forward, "backward_input": backward, "weight": weight, "p2p": p2p, "tail": tail,
    }  # fmt: skip
    how: dict[str, Any] = {"overlap_p2p": not hold_sender, "pair_share": pair_share}
    given = [
        what for what, is_there in (("a name", name), ("--file", file), ("--compare", compare)) if is_there
    ]
    if len(given) != 1:
        both = f"not {' and '.join(given)}" if given else f"one of {', '.join(SCHEDULES)}, for example"
        raise InputError(f"give a schedule's name, --file or --compare: {both}")

    def make(schedule_name: str) -> Order:
        if ranks is None or micro_batches is None:
            missing = "--ranks" if ranks is None else "--micro-batches"
            raise InputError(f"schedule '{schedule_name}' needs {missing}")
        return make_order(
            schedule_name, ranks=ranks, micro_batches=micro_batches, unfilled=unfilled,
            vp=vp if not compare or SCHEDULES[schedule_name].vp is None else None,
            group=group if not compare or SCHEDULES[schedule_name].grouped else None,
        )  # fmt: skip

    if compare:
        _refuse_with_compare(
            {"--timeline": timeline_, "--svg": svg, "--trace": trace, "--save-order": save_order}
        )
        _show_comparison([(n, _run_alike(make(n), durations, how)) for n in compare], json_)
        return 0
    if file is not None:
        _refuse_with_file({"--ranks": ranks, "--micro-batches": micro_batches, "--vp": vp, "--group": group})
        order = read_order_file(file)
    else:
        order = make(schedule_name(name or ""))
    run = simulate(order, **{**how, **{k: _value(v) for k, v in durations.items()}})
    write_file(svg, lambda out: out.write(draw_svg(run)))
    write_file(trace, lambda out: write_trace(run, out))
    write_file(save_order, lambda out: out.write(json.dumps(order_dict(order)) + "\n"))
    if json_:
        print(json.dumps(schedule_dict(run), allow_nan=False))
    else:
        _show(run, draw=timeline_)
    return 0


def schedule_dict(run: Simulation) -> dict[str, Any]:
    """What ``--json`` prints for one run; durations in the unit they were given in."""
    busy, idle, wait, peak = run.busy, run.idle, run.wait, run.peak_in_flight
    return {
        "schema_version": SCHEMA_VERSION,
        "schedule": run.order.name,
        "micro_batches": run.order.micro_batches,
        "stages": run.order.stages,
        "step": run.step,
        "bubble": run.bubble,
        "ranks": [
            {
                "rank": r,
                "busy": float(busy[r]),
                "idle": float(idle[r]),
                "wait": max(float(wait[r]), 0.0),
                "peak_in_flight": int(peak[r]),
            }
            for r in range(run.order.ranks)
        ],
        "critical_path": [moment._asdict() for moment in run.critical_path()],
    }


def _value(numbers: tuple[float, ...]) -> Any:
    return numbers[0] if len(numbers) == 1 else list(numbers)


def _run_alike(order: Order, durations: dict[str, tuple[float, ...]], how: dict[str, Any]) -> Simulation:
    """Simulate with durations of a rank's layers: its stages share them."""
    listed = next((k for k, v in durations.items() if len(v) > 1 and k != "tail"), None)
    if listed is not None:
        flag = "--backward" if listed == "backward_input" else f"--{listed}"
        raise InputError(f"--compare takes one number for {flag}: schedules have different stages")
    share = order.ranks / order.stages
    work: dict[str, Any] = {k: durations[k][0] * share for k in ("forward", "backward_input", "weight")}
    return simulate(order, **{**how, **work}, p2p=durations["p2p"][0], tail=_value(durations["tail"]))


def _refuse_with_compare(options: dict[str, Any]) -> None:
    for flag, value in options.items():
        if value:
            raise InputError(f"{flag} shows one schedule; leave out --compare")


def _refuse_with_file(options: dict[str, Any]) -> None:
    for flag, value in options.items():
        if value is not None:
            raise InputError(f"--file says that itself; leave out {flag}")


def _show(run: Simulation, *, draw: bool) -> None:
    screen = Screen.of()
    if draw:
        print(timeline.draw_timeline(run, screen))
    else:
        print(screen.text(timeline.headline(run)))
    print("\n" + timeline.rank_table(run, screen))
    print("\n" + timeline.critical_path_text(run, screen))


def _show_comparison(runs: list[tuple[str, Simulation]], as_json: bool) -> None:
    if not as_json:
        print(timeline.compare_table(runs, Screen.of()))
        return
    rows = [
        {
            "schedule": name,
            "step": run.step,
            "bubble": run.bubble,
            "peak_micro_batches": timeline.peak_micro_batches(run),
            "stages_per_rank": timeline.stages_per_rank(run),
        }
        for name, run in runs
    ]
    print(json.dumps({"schema_version": SCHEMA_VERSION, "schedules": rows}, allow_nan=False))
