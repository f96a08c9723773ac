"""A simulated schedule in the terminal: one row a rank, time to the right.

The drawing is text: a letter says what a rank does in a column's time, a dot that it waits. Where a column
is longer than an action, the letters come as often as the work they stand for.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meshplan.report.screen import Screen
from meshplan.report.table import Column, table
from meshplan.schedule.order import LETTERS, W
from meshplan.schedule.result import Simulation

KIND_NAMES = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
_COLOURS = {"F": "44;97", "B": "43;30", "I": "43;30", "W": "42;30"}
_IDLE = "·"
_SEEN = 0.2
"""Share of a column from which a kind of work may stand for it."""


def shares(run: Simulation, rank: int, cells: int) -> npt.NDArray[np.float64]:
    """(cells, 4): share of each of ``cells`` equal parts of the step a rank spends on F, B, I and W."""
    order = run.order
    own = slice(int(order.first[rank]), int(order.first[rank + 1]))
    edges = np.linspace(0.0, run.step, cells + 1)
    begin, work, kind = run.begin[own], run.work[own], order.kind[own]
    parts = []
    for k in range(W + 1):
        doing = (kind == k) & (work > 0)
        if not doing.any():
            parts.append(np.zeros(cells))
            continue
        times = np.stack([begin[doing], begin[doing] + work[doing]], axis=1).ravel()
        done = np.cumsum(work[doing])
        spent = np.stack([done - work[doing], done], axis=1).ravel()
        parts.append(np.diff(np.interp(edges, times, spent)))
    return np.stack(parts, axis=1) * cells / max(run.step, np.finfo(float).tiny)


def draw_timeline(run: Simulation, screen: Screen, *, title: str | None = None) -> str:
    """The timeline, a headline (``title``) above and a legend below, in at most the screen's width."""
    order = run.order
    label = len(f"rank {order.ranks - 1}")
    cells = max(10, screen.width - label - 9)
    lines = [screen.bold(headline(run) if title is None else title)]
    kinds_seen: set[str] = set()
    for rank in range(order.ranks):
        letters = _letters(shares(run, rank, cells))
        kinds_seen |= set(letters)
        row = _coloured(letters) if screen.colour else letters
        share = run.idle[rank] / run.step if run.step else 0.0
        lines.append(f"{f'rank {rank}':<{label}} {row} {share:>5.1%}")
    legend = [f"{letter} {name}" for letter, name in KIND_NAMES.items() if letter in kinds_seen]
    lines.append(f"{'':<{label}} {', '.join(legend)}, {_IDLE} idle")
    lines.append(f"{'':<{label}} right: share of the pipeline time a rank idles")
    return screen.text("\n".join(lines))


def _letters(part: npt.NDArray[np.float64]) -> str:
    """One letter a cell, of what there is in it the one that is most behind its share of the row so far."""
    idle = np.maximum(1.0 - part.sum(axis=1), 0.0)
    owed = np.zeros(part.shape[1] + 1)
    out = []
    for row in np.column_stack([part, idle]):
        owed += row
        pick = int(np.where(row >= _SEEN, owed, -np.inf).argmax())
        owed[pick] -= 1.0
        out.append((LETTERS + _IDLE)[pick])
    return "".join(out)


def headline(run: Simulation) -> str:
    """One sentence: what ran, how long the step took, how much of it was idle."""
    order = run.order
    stages = f", {order.stages} stages" if order.stages != order.ranks else ""
    return (
        f"{order.name}: {order.ranks} ranks{stages}, {order.micro_batches} micro-batches; "
        f"step {run.step:.6g}, {run.bubble:.1%} idle"
    )


def _coloured(letters: str) -> str:
    out, last = [], ""
    for letter in letters:
        code = _COLOURS.get(letter, "0")
        if code != last:
            out.append(f"\x1b[{code}m")
            last = code
        out.append(letter)
    return "".join(out) + "\x1b[0m"


def rank_table(run: Simulation, screen: Screen) -> str:
    """Busy and idle time and the most activations alive, rank by rank."""

    def cells(values: Sequence[float]) -> list[str]:
        return [f"{v:.6g}" for v in values]

    columns = [
        Column(title="rank", cells=[str(r) for r in range(run.order.ranks)], right=True),
        Column(title="busy", cells=cells(run.busy.tolist()), right=True),
        Column(title="idle", cells=cells(run.idle.tolist()), right=True),
        Column(title="waits inside", cells=cells(np.maximum(run.wait, 0.0).tolist()), right=True, priority=1),
        Column(title="peak in flight", cells=[str(n) for n in run.peak_in_flight.tolist()], right=True),
    ]
    return "\n".join(table(columns, screen.width))


def critical_path_text(run: Simulation, screen: Screen, *, most: int = 12) -> str:
    """The critical path, runs on one rank drawn together; the middle left out where it is long."""
    runs: list[list[str]] = []
    last = -1
    for moment in run.critical_path():
        if moment.rank != last:
            runs.append([f"rank {moment.rank}:"])
            last = moment.rank
        runs[-1].append(f"{moment.stage}{moment.kind}{moment.micro_batch}")
    shown = [" ".join(r) if len(r) <= 3 else f"{r[0]} {r[1]} … {r[-1]} ({len(r) - 1})" for r in runs]
    if len(shown) > most:
        left_out = len(shown) - most
        half = most // 2
        shown = [*shown[:half], f"… {left_out} more …", *shown[-(most - half) :]]
    text = "critical path (stage, kind, micro-batch): " + " → ".join(shown)
    return screen.text(textwrap.fill(text, screen.width, subsequent_indent="  "))


def compare_table(runs: Sequence[tuple[str, Simulation]], screen: Screen) -> str:
    """Step, bubble and peak memory of several schedules, side by side."""
    best = min(run.step for _, run in runs)
    columns = [
        Column(title="schedule", cells=[name for name, _ in runs]),
        Column(title="step", cells=[f"{run.step:.6g}" for _, run in runs], right=True),
        Column(
            title="against best",
            cells=[f"{run.step / best - 1:+.1%}" for _, run in runs],
            right=True,
            priority=1,
        ),
        Column(title="bubble", cells=[f"{run.bubble:.1%}" for _, run in runs], right=True),
        Column(
            title="peak micro-batches",
            cells=[f"{peak_micro_batches(run):.6g}" for _, run in runs],
            right=True,
        ),
        Column(
            title="stages a rank",
            cells=[f"{stages_per_rank(run):g}" for _, run in runs],
            right=True,
            priority=2,
        ),
    ]
    return screen.text("\n".join(table(columns, screen.width)))


def stages_per_rank(run: Simulation) -> int:
    """Stages each rank works on."""
    return len(run.order.stages_of(0))


def peak_micro_batches(run: Simulation) -> float:
    """Most micro-batches alive on a rank, in units of one copy's share of the model on a rank."""
    return float(run.peak_in_flight.max()) * run.order.ranks / run.order.stages
