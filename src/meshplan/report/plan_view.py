"""A ranking for people: the question, what became of the candidates, the table, the best plan's parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from meshplan.cost.costs import Costs, Floats
from meshplan.plan.plans import Ints
from meshplan.report.parts import bars, step_time, wrap
from meshplan.report.plan_names import plan_names
from meshplan.report.plan_rows import beyond, workload_words
from meshplan.report.screen import Screen, bar, printable
from meshplan.report.table import Column, least_width, markdown, table
from meshplan.schedule.layout_string import short_layout
from meshplan.search.band import error_band
from meshplan.search.objective import BY_TIME, ROOMY
from meshplan.search.pool import first_of_mesh
from meshplan.search.ranking import Ranking
from meshplan.units import format_bandwidth, format_bytes

SMALLEST_SHARE = 0.005
"""Parts of a step below this share are not worth a word."""
SHOWN_SHARES = 4

WISHED = 2.0
"""A plan that does not fit is worth a word if it takes less than this multiple of the fastest one's time."""


def plan_text(ranking: Ranking, top: int, screen: Screen) -> str:
    """Everything ``meshplan plan`` prints as a table."""
    lines = [*_question(ranking, screen), *wrap(_funnel(ranking), screen.width)]
    simulated = _simulated(ranking)
    lines += [*(wrap(simulated, screen.width) if simulated else []), ""]
    shown = shown_rows(ranking, top)
    if len(ranking):
        columns, short = _fitting(ranking, shown, screen.width)
        head, *rows = table(columns, screen.width)
        lines += [screen.bold(head), *rows]
        if short and (ranking.costs.plans.vp[shown] > 1).any():
            lines += wrap("vpN: N virtual stages a rank, interleaved", screen.width)
        lines += [line for text in _ties(ranking, shown) for line in wrap(text, screen.width)]
        lines += ["", *_best(ranking, screen)]
    lines += [line for text in _closing(ranking, shown) for line in wrap(text, screen.width)]
    return screen.text("\n".join(lines).rstrip() + "\n")


def plan_markdown(ranking: Ranking, top: int) -> str:
    """The table alone, in Markdown."""
    return "\n".join(markdown(plan_columns(ranking, shown_rows(ranking, top), bars=False))) + "\n"


def shown_rows(ranking: Ranking, top: int) -> list[int]:
    """The rows of the table, ``top`` of them. Of a space where many plans differ in details only: the best of
    each mesh, and the fastest; others where there are too few meshes."""
    first = list(range(min(top, len(ranking))))
    if not _folded(ranking):
        return first
    rows = {*first[:1], *(int(row) for row in first_of_mesh(ranking.costs.plans)[:top])}
    if top > 1:
        rows.add(int(np.argmin(ranking.costs.step_s)))
    found = sorted(rows)[:top]
    return sorted([*found, *[i for i in range(len(ranking)) if i not in rows][: len(first) - len(found)]])


def _folded(ranking: Ranking) -> bool:
    by_time = ranking.objective in BY_TIME
    return bool(len(ranking)) and ranking.space.size != "plain" and by_time


def _fitting(ranking: Ranking, shown: Sequence[int], width: int) -> tuple[list[Column], bool]:
    """The columns as full as fit into ``width``; and whether the names of plans are in short."""
    ways = ((True, False), (True, True), (False, True))
    found = [(plan_columns(ranking, shown, bars=bars, short=short), short) for bars, short in ways]
    found.append(([column for column in found[-1][0] if column.title != "MFU"], True))
    return next((way for way in found if least_width(way[0]) <= width), found[-1])


def plan_columns(
    ranking: Ranking, shown: Sequence[int], *, bars: bool = True, short: bool = False
) -> list[Column]:
    """The columns of the ranked table for the plans of rows ``shown``."""
    costs, gpus = ranking.costs.take(np.asarray(shown, dtype=np.int64)), ranking.cluster.gpus
    rows, fastest = range(len(shown)), float(ranking.costs.step_s.min())
    tied = ranking.tied if ranking.band else np.zeros(len(ranking), dtype=np.bool_)
    step, memory, limit = costs.step_s, costs.memory_bytes, costs.memory_limit_bytes
    tokens = ranking.workload.tokens / (step * gpus)
    full = [f"{bar(memory[i] / limit, 6)} " if bars else "" for i in rows]
    return [
        Column(title="#", cells=[str(i + 1) for i in shown], right=True),
        Column(title="plan, inner to outer", cells=plan_names(costs.plans, ranking.space.order, short=short)),
        Column(
            title="step", cells=[_about(ranking, shown[i]) + step_time(step[i]) for i in rows], right=True
        ),
        Column(
            title="rel",
            cells=[f"{step[i] / fastest:.2f}{'≈' if tied[shown[i]] else ' '}".rstrip() for i in rows],
            right=True,
        ),
        Column(title="MFU", cells=[f"{costs.mfu[i]:.1%}" for i in rows], right=True),
        Column(title="memory", cells=[f"{full[i]}{format_bytes(memory[i])}" for i in rows], right=True),
        Column(title="tok/s/GPU", cells=[f"{tokens[i]:,.0f}" for i in rows], right=True, priority=2),
        Column(title="of the step, %", cells=[shares(costs.time, step, i) for i in rows], priority=1),
    ]


def _about(ranking: Ranking, i: int) -> str:
    """A mark for times that are the closed form's beside simulated ones."""
    return "" if ranking.simulated is None or ranking.simulated.rows[i] else "~"


def shares(parts: Mapping[str, Floats], whole: Floats, i: int) -> str:
    """The largest parts of row ``i`` in per cent of the whole, small ones left out."""
    found = sorted(((float(v[i] / whole[i]), name) for name, v in parts.items()), reverse=True)
    words = [f"{name.replace('_', ' ')} {100 * v:.0f}" for v, name in found if v >= SMALLEST_SHARE]
    return " · ".join(words[:SHOWN_SHARES])


def _question(ranking: Ranking, screen: Screen) -> list[str]:
    cluster, workload = ranking.cluster, ranking.workload
    tiers = ", ".join(f"{t.name} {format_bandwidth(t.bandwidth)}" for t in cluster.tiers)
    size = f"{cluster.gpus:,}× {cluster.gpu.title}"
    node = f" in nodes of {cluster.gpus_per_node}" if cluster.gpus > cluster.gpus_per_node else ""
    ask = workload_words(workload)
    return [
        screen.bold(printable(f"{ranking.model.name} on {size}{node}")),
        *wrap(f"{tiers} · {ask} · cost model {ranking.cost_model}{_which(ranking)}", screen.width),
    ]


def _which(ranking: Ranking) -> str:
    """What was looked at and for what, where that is not the usual."""
    space, words = ranking.space, []
    words += [f"stack {ranking.stack}"] if ranking.stack else []
    words += [f"{space.size} space"] if space.size != "plain" else []
    words += [f"for {space.framework}"] if space.framework != "any" else []
    words += [f"by {ranking.objective}"] if ranking.objective != "step" else []
    return "".join(f" · {word}" for word in words)


def _funnel(ranking: Ranking) -> str:
    counts = ranking.counts
    removed = [(n, rule) for rule, n in counts.removed.items() if n]
    if counts.memory:
        removed.append((counts.memory, "memory"))
    gone = " · ".join(f"{n:,} {rule}" for n, rule in sorted(removed, reverse=True)) or "none"
    text = f"{counts.candidates:,} candidates → {counts.feasible:,} feasible; removed: {gone}"
    spared = {"memory": "too big", "slow": "too slow"}
    words = [f"{n:,} {spared.get(name, name)}" for name, n in counts.skipped.items() if n]
    return f"{text}; not priced one by one: {' · '.join(words)} whatever their details" if words else text


def _simulated(ranking: Ranking) -> str:
    """How many plans were simulated, and why no more."""
    found = ranking.simulated
    if found is None or not found.plans:
        return ""
    feasible = ranking.counts.feasible + found.unfit
    words = f"{found.plans:,} of {found.screened:,} simulated"
    if found.screened < feasible:
        words = f"the {found.screened:,} best of {feasible:,} kept, {found.plans:,} of these simulated"
    sure = min(found.sure, found.screened)
    if ranking.objective not in BY_TIME:
        certain = f"the order by {ranking.objective} does not rest on their times"
    elif sure == found.screened:
        certain = "all in their order"
    elif sure:
        certain = f"no other can be faster than the first {sure:,}"
    else:
        certain = "others may be faster"
    if found.left_open and ranking.objective in BY_TIME:
        certain += f" ({found.left_open:,} left open)"
    off = f"closed form off by {found.median_error:.1%} in the median, {found.largest_error:.1%} at most"
    slower = found.margin or 0.0
    rest = f"; plans not kept are {slower:.1%} or more slower in it" if slower > 0 else ""
    return f"{words}: {certain}; {off}{rest}"


def _ties(ranking: Ranking, shown: Sequence[int]) -> list[str]:
    """Which plans are as good as each other, and which of them stands first for what."""
    tied = ranking.tied
    if not ranking.band or int(tied[list(shown)].sum()) < 2:
        return []
    runs = error_band(ranking.cost_model, ranking.model)
    known = f" on {runs.runs} published runs" if runs is not None and runs.share == ranking.band else ""
    text = f"≈: as fast as the fastest within {ranking.band:.1%}, the usual error of the model{known}"
    fastest = int(np.argmin(ranking.costs.step_s))
    if fastest and ranking.objective in BY_TIME:
        simple = ranking.complexity
        fuller = bool((simple[tied] < simple[0]).any())
        room = f" that leave {1 - ROOMY:.0%} of the memory free" if fuller else ""
        text += f"; #1 is the simplest of these{room}, #{fastest + 1} the fastest"
    return [text]


def _best(ranking: Ranking, screen: Screen) -> list[str]:
    costs, limit = ranking.costs, format_bytes(ranking.costs.memory_limit_bytes)
    name = plan_names(costs.plans.take(slice(0, 1)), ranking.space.order)[0]
    used = format_bytes(costs.memory_bytes[0])
    layout = int(costs.plans.layout[0])
    stages = [f"layers of each stage: {short_layout(costs.plans.layouts[layout])}"] if layout >= 0 else []
    return [
        screen.bold(f"#1 {name}"),
        *(line for text in stages for line in wrap(text, screen.width)),
        f"one step: {step_time(costs.step_s[0])}",
        *bars(_first(costs.time), lambda part: step_time(part, costs.step_s[0])),
        f"memory of the fullest GPU: {used} of {limit}",
        *bars(_first(costs.memory), format_bytes),
        "",
    ]


def _first(parts: Mapping[str, Floats]) -> dict[str, float]:
    return {name: float(values[0]) for name, values in parts.items()}


def _closing(ranking: Ranking, shown: Sequence[int]) -> list[str]:
    lines = []
    miss = ranking.closest_miss
    lines += [f"note: {text}" for text in beyond(ranking.model, ranking.workload)]
    lines += _tight(ranking)
    if miss is not None and not _hopeless(ranking, miss.costs):
        name = plan_names(miss.costs.plans, ranking.space.order)[0]
        need, more = format_bytes(miss.costs.memory_bytes[0]), format_bytes(miss.excess_bytes)
        lines.append(f"closest miss: {name} needs {need}, {more} too much{_miss_gain(ranking, miss.costs)}")
    rows = np.array(shown, dtype=np.int64)
    if len(ranking) > len(rows):
        feasible = ranking.counts.feasible
        lines.append(f"showing {len(rows):,} of {feasible:,} feasible plans{_what(rows)}; --top shows more")
    if len(ranking) and ranking.simulated is not None and not ranking.simulated.rows[rows].all():
        lines.append("~: closed form, not simulated")
    if len(ranking) and (ranking.costs.plans.recompute_layers[rows] > 0).any():
        lines.append("reN: N layers of every stage are recomputed in the backward pass")
    return lines


def _what(rows: Ints) -> str:
    """What is shown where rows are left out between."""
    if not len(rows) or rows[-1] == len(rows) - 1:
        return ""
    return ", the best of each mesh; --tp, --pp and their like list all of one"


def _tight(ranking: Ranking) -> list[str]:
    """A warning where the best plan fills almost all the memory, with the first one that does not."""
    if not len(ranking):
        return []
    costs = ranking.costs
    filled = costs.memory_bytes / costs.memory_limit_bytes
    if filled[0] <= ROOMY:
        return []
    text = f"#1 fills {filled[0]:.0%} of the memory; estimates are off by 5% in the median: it may run out"
    roomy = np.flatnonzero(filled <= ROOMY)
    if roomy.size:
        i = int(roomy[0])
        name = plan_names(costs.plans.take(slice(i, i + 1)), ranking.space.order)[0]
        slower = costs.step_s[i] / costs.step_s[0] - 1
        word = "longer" if slower >= 0 else "less"
        text += f"; #{i + 1}, {name}, fills {filled[i]:.0%} and takes {abs(slower):.1%} {word}"
    return [text]


def _hopeless(ranking: Ranking, miss: Costs) -> bool:
    """Whether nobody would want the plan if it did fit."""
    return len(ranking) > 0 and bool(miss.step_s[0] > WISHED * ranking.costs.step_s.min())


def _miss_gain(ranking: Ranking, miss: Costs) -> str:
    if not len(ranking):
        return ""
    return f"; its step would take {miss.step_s[0] / ranking.costs.step_s.min():.2f} × the fastest"
