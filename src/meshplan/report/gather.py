"""Everything a report shows, as plain data: what ``html.report_html`` draws and ``report --json`` prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

import meshplan
from meshplan.cost.costs import CostModel, Costs
from meshplan.cost.models import cost_model_named
from meshplan.errors import MeshplanError
from meshplan.report.estimate_view import stage_data
from meshplan.report.job_text import job_table, job_text, plan_command, source_word
from meshplan.report.pipeline_run import durations_data, stages_data
from meshplan.report.plan_key import plan_key
from meshplan.report.plan_names import plan_names
from meshplan.report.plan_rows import plan_data, ranking_data
from meshplan.report.plan_view import shown_rows
from meshplan.report.studies import Told, case_of, gpu_counts, scaling_of, sensitivities_of
from meshplan.search.band import error_band, ranking_band
from meshplan.search.fidelity import can_simulate
from meshplan.search.ranking import Ranking

SCHEMA_VERSION = 1
TOP = 25
"""Plans of the ranking in a report, one after the other."""
SHOWN = 10
"""Plans in its table, where that shows the best of each mesh."""
MOST_POINTS = 4000
"""Plans in the scatter, the fastest ones."""


def report_data(
    ranking: Ranking,
    *,
    cost_model: CostModel | None = None,
    top: int = TOP,
    chosen: int = 0,
    studies: bool = True,
    stack: str | None = None,
    flags: Sequence[str] = (),
    told: Told = lambda what: None,
) -> dict[str, Any]:
    """The report on a ranking, plain data through and through.

    ``cost_model``: what priced it (default: the one of that name). ``chosen``: the row whose pictures are
    drawn. ``studies``: whether to search again for the scaling curve and the sensitivities. ``stack``: what
    to type for the stack (default: its name). ``flags``: further flags of the command that asks the same.
    ``told`` is called with the name of each part that takes a moment.
    """
    cost_model = cost_model or cost_model_named(ranking.cost_model, stack=ranking.stack)
    word = source_word(ranking.model)
    asked = (ranking.model, ranking.cluster, ranking.workload, ranking.space, ranking.cost_model)
    stack, more = stack or ranking.stack, (*_answer_flags(ranking, cost_model), *flags)
    kept = min(len(ranking), MOST_POINTS)
    data: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": "report",
        "version": meshplan.__version__,
        "ranking": named_ranking(ranking, top, stack=stack, pareto_only="--pareto" in flags),
        "shown": shown_plans(ranking, min(top, SHOWN), {chosen}),
        "points": {
            "step_s": ranking.costs.step_s[:kept].tolist(),
            "memory_bytes": ranking.costs.memory_bytes[:kept].tolist(),
            "more": ranking.counts.feasible - kept,
        },
        "band": None,
        "chosen": None,
        "scaling": None,
        "sensitivities": None,
        "command": plan_command(*asked, word=word, stack=stack, objective=ranking.objective, more=more),
        "job": job_text(job_table(*asked, word=word, stack=stack, objective=ranking.objective)),
    }
    told("report: how far off the model usually is")
    data["band"] = band_data(ranking)
    if not len(ranking):
        return data
    told("report: the plan in full")
    data["chosen"] = chosen_data(ranking, chosen, cost_model)
    if studies:
        told("report: as the GPUs grow")
        counts = gpu_counts(ranking.cluster)
        data["scaling"] = scaling_of(case_of(ranking, cost_model), counts, told=told, known=ranking)
        told("report: what the step waits for")
        data["sensitivities"] = sensitivities_of(ranking, chosen, cost_model)
    return data


def _answer_flags(ranking: Ranking, cost_model: CostModel) -> tuple[str, ...]:
    """Flags of ``meshplan plan`` about how this ranking was made, where it was not as usual."""
    ties = ranking.band > 0 or ranking_band(ranking.cost_model, ranking.model) == 0
    closed = len(ranking) > 0 and ranking.simulated is None and can_simulate(cost_model)
    return (*(() if ties else ("--no-ties",)), *(("--fidelity", "estimate") if closed else ()))


def named_ranking(
    ranking: Ranking, top: int | None, *, stack: str | None = None, pareto_only: bool = False
) -> dict[str, Any]:
    """What ``plan --json`` prints, with the name and the key of every plan; parameters as there."""
    data = ranking_data(ranking, top, stack=stack, pareto_only=pareto_only)
    names = plan_names(ranking.costs.plans.take(slice(0, len(data["plans"]))), ranking.space.order)
    for i, (row, name) in enumerate(zip(data["plans"], names, strict=True)):
        row["name"], row["key"] = " ".join(name.split()), plan_key(ranking.costs.plans[i])
    miss = ranking.closest_miss
    if miss is not None:
        data["closest_miss"]["name"] = plan_names(miss.costs.plans, ranking.space.order)[0]
    return data


def shown_plans(ranking: Ranking, top: int, also: Iterable[int] = ()) -> list[dict[str, Any]]:
    """The plans of the table: ``top`` of them as ``meshplan plan`` shows them, and those of rows ``also``."""
    rows = {*shown_rows(ranking, top), *(i for i in also if 0 <= i < len(ranking))}
    tied = ranking.tied
    return [{**named_ranking_row(ranking, i), "tied": bool(tied[i])} for i in sorted(rows)]


def band_data(ranking: Ranking) -> dict[str, Any] | None:
    """The error band, ``None`` where it is not known."""
    try:
        band = error_band(ranking.cost_model, ranking.model)
    except MeshplanError:  # the table of runs is not this package's own
        return None
    return None if band is None else band.data


def chosen_data(ranking: Ranking, i: int, cost_model: CostModel) -> dict[str, Any]:
    """One plan of a ranking in full: its row, memory by kind of pipeline rank, the durations of its pipeline,
    and the evidence.

    A cost model that does not take its estimate apart gives the fullest rank alone (``stages_complete``).
    """
    from meshplan.cost.full.explain import explain
    from meshplan.cost.full.model import FullModel

    row = named_ranking_row(ranking, i)
    if not isinstance(cost_model, FullModel):
        return {
            **row,
            "stages": [_fullest(row, len(ranking.model.layers))],
            "stages_complete": False,
            "pipeline": None,
            "provenance": [],
            "assumptions": list(ranking.costs.assumptions),
            "left_out": [],
        }
    setting = (ranking.model, ranking.cluster, ranking.workload)
    found = explain(cost_model, *setting, ranking.costs.plans[i], order=ranking.space.order)
    pipes = cost_model.pipelines(*setting, ranking.costs.plans.take(np.array([i])))
    simulated = ranking.simulated is not None and bool(ranking.simulated.rows[i])
    return {
        **row,
        "hfu": found.hfu,
        "stages": stages_data(pipes, 0, row["schedule"])
        if simulated
        else [stage_data(stage) for stage in found.stages],
        "stages_complete": True,
        "pipeline": durations_data(pipes, 0),
        "provenance": [{**asdict(term), "parts": list(term.parts)} for term in found.terms],
        "assumptions": list(found.assumptions),
        "left_out": list(found.left_out),
    }


def _fullest(row: Mapping[str, Any], layers: int) -> dict[str, Any]:
    return {
        "ranks": 1,
        "first_rank": 0,
        "layers": layers // row["pp"],
        "layers_of_stages": [layers // (row["pp"] * row["vp"])] * row["vp"],
        "embedding": False,
        "head": False,
        "memory_bytes": row["memory_bytes"],
        "memory": row["memory"],
    }


def named_ranking_row(ranking: Ranking, i: int) -> dict[str, Any]:
    """Row ``i`` as in ``named_ranking``."""
    relative = float(ranking.costs.step_s[i] / ranking.costs.step_s.min())
    simulated = ranking.simulated is not None and bool(ranking.simulated.rows[i])
    row = named_row(ranking, ranking.costs, i)
    return {"rank": i + 1, "simulated": simulated, "relative": relative, **row}


def named_row(ranking: Ranking, costs: Costs, i: int) -> dict[str, Any]:
    """Row ``i`` of prices of this ranking's question, with the plan's name and key."""
    name = plan_names(costs.plans.take(slice(i, i + 1)), ranking.space.order)[0]
    row = plan_data(costs, i, ranking.workload, ranking.cluster.gpus)
    return {**row, "name": " ".join(name.split()), "key": plan_key(costs.plans[i])}
