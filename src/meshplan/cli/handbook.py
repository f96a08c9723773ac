"""``meshplan handbook``: the textbook model's five scenarios."""

import json
import sys
from typing import Any

import cyclopts

from meshplan.cli.options import Count, Json
from meshplan.cost.scenarios import SCENARIOS, Scenario
from meshplan.plan.rules import HANDBOOK_RULES
from meshplan.plan.space import Space
from meshplan.report.plan_view import plan_columns
from meshplan.report.screen import Screen
from meshplan.report.table import table
from meshplan.search.ranking import Ranking
from meshplan.search.search import search

app = cyclopts.App(name="handbook")

COLUMNS = ("tp", "cp", "pp", "dp")


@app.default
def handbook(*, top: Count = 10, json_: Json = False) -> int:
    """Print the textbook model's five scenarios: all plans that fit, ranked by MFU.

    Parameters
    ----------
    top
        Plans shown of each scenario; JSON holds all.
    """
    rankings = [(scenario, rank(scenario)) for scenario in SCENARIOS]
    if json_:
        print(json.dumps([_data(s, r) for s, r in rankings], indent=2, allow_nan=False))
        return 0
    screen = Screen.of()
    for scenario, ranking in rankings:
        shown = min(top, len(ranking))
        head, *rows = table(plan_columns(ranking, range(shown), bars=screen.width >= 70), screen.width)
        title = f"{scenario.id}: {scenario.title}: {len(ranking)} plans fit"
        sys.stdout.write(screen.text("\n".join([screen.bold(title), head, *rows, "", ""])))
    return 0


def rank(scenario: Scenario) -> Ranking:
    """The scenario's answer: the textbook's space, rules and rounded inputs."""
    return search(
        scenario.model,
        scenario.cluster,
        scenario.workload,
        space=Space.handbook(),
        cost_model=scenario.cost_model,
        rules=HANDBOOK_RULES,
    )


def _data(scenario: Scenario, ranking: Ranking) -> dict[str, Any]:
    costs = ranking.costs
    plans = [
        {
            "rank": i + 1,
            **{name: int(getattr(costs.plans, name)[i]) for name in COLUMNS},
            "mfu": float(costs.mfu[i]),
            "step_s": float(costs.step_s[i]),
            "memory_bytes": float(costs.memory_bytes[i]),
            "recomputed_layers": int(costs.plans.recompute_layers[i]),
            "time": {part: float(values[i]) for part, values in costs.time.items()},
        }
        for i in range(len(ranking))
    ]
    return {"id": scenario.id, "title": scenario.title, "fitting": len(ranking), "plans": plans}
