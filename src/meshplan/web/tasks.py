"""What is worked out for a question: its ranking, what stands against a plan, and what would change it.

The same functions as behind the command line, with what they answer trimmed to what tables and pictures show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from meshplan.cli.wishes import open_space, tie_share, wish_of
from meshplan.cost.costs import CostModel
from meshplan.plan.plans import Plans
from meshplan.plan.rules import Setting
from meshplan.report.plan_names import plan_names
from meshplan.report.studies import gpu_counts, scaling_of, sensitivities_of
from meshplan.report.why_not_view import why_not_data
from meshplan.search.fidelity import MOST_SURE
from meshplan.search.planned import planned
from meshplan.search.ranking import Ranking
from meshplan.search.reasons_not import why_not
from meshplan.web.question import Asked

Kind = Literal["plan", "why", "scale", "studies"]
KEPT = 2_000
"""Plans kept of every ranking."""
Told = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One thing to work out; ``detail``: the plan that ``why`` doubts, the numbers of GPUs of ``scale``, the
    row of the ranking that ``studies`` is about."""

    asked: Asked
    kind: Kind = "plan"
    detail: str = ""

    @property
    def key(self) -> str:
        """Under which its answer is kept."""
        return f"{self.kind} {self.detail} {self.asked.key}"

    @property
    def searches(self) -> int:
        """About how many times the question is searched for it."""
        return {"plan": 1, "why": 120, "scale": 12, "studies": 12}[self.kind]


def ranked(asked: Asked, *, advise: bool, cost_model: CostModel | None = None) -> Ranking:
    """The ranking that ``meshplan plan`` makes for the same question; its first ``KEPT`` plans."""
    model = cost_model or asked.cost_model
    found = planned(
        Setting(asked.model, asked.cluster, asked.workload),
        space=asked.space,
        cost_model=model,
        sure=min(asked.top, MOST_SURE),
        objective=asked.objective,
        advise=advise,
    )
    if len(found) <= KEPT:
        return found
    simulated = found.simulated and replace(found.simulated, rows=found.simulated.rows[:KEPT].copy())
    return replace(found, costs=found.costs.take(slice(0, KEPT)), simulated=simulated)


def done(task: Task, ranking: Ranking | None, told: Told) -> Any:
    """The answer to a task other than ``plan``; ``ranking``: the one of its question, for ``studies``.

    Raises ``InputError``.
    """
    asked = task.asked
    if task.kind == "why":
        case = replace(asked.case, space=open_space(asked.space, asked.model))
        found = why_not(case, wish_of(task.detail, "why"))
        data = why_not_data(case, found, tie_share(case))
        name = plan_names(Plans.of(found.answer.plan, order=asked.space.order), asked.space.order)[0]
        return {"json": data, "name": " ".join(name.split())}
    if task.kind == "scale":
        return scaling_of(asked.case, tuple(map(int, task.detail.split(","))), told=told)
    assert ranking is not None
    return {
        "scaling": scaling_of(asked.case, gpu_counts(asked.cluster), told=told, known=ranking),
        "sensitivities": sensitivities_of(ranking, int(task.detail), asked.cost_model),
    }
