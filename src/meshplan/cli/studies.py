"""What ``meshplan plan`` and ``meshplan estimate`` can add to their answer: the run, the steps, what if."""

from dataclasses import dataclass, field, replace
from typing import Any

from meshplan.cli.question import Question
from meshplan.cli.run_flags import RunFlags, StudyFlags, power_of, price_of, reliability_of
from meshplan.cli.wishes import case_of
from meshplan.cluster.cluster import Cluster
from meshplan.cost.costs import Costs
from meshplan.goodput.run import WholeRun, whole_run
from meshplan.model.model import Model
from meshplan.plan.workload import Workload
from meshplan.report.run_view import run_data, run_lines
from meshplan.report.screen import Screen
from meshplan.report.steps_view import steps_data, steps_lines
from meshplan.report.what_if_view import sensitivity_lines, what_if_data, what_if_lines
from meshplan.report.why_view import sensitivities_data
from meshplan.search.ranking import Ranking
from meshplan.search.reasons_compare import sensitivities
from meshplan.search.reasons_walk import walk
from meshplan.search.what_if import what_if


@dataclass(kw_only=True)
class Studies:
    """Sections of text, and the same under keys of the JSON."""

    sections: list[list[str]] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def text(self, screen: Screen) -> str:
        """The sections, each after an empty line."""
        lines = [line for section in self.sections for line in ("", *section)]
        return screen.text("\n".join(lines) + "\n") if lines else ""


def studies_of(
    asked: Question, ranking: Ranking, study: StudyFlags, run: RunFlags, screen: Screen
) -> Studies:
    """Everything the flags ask for about ``ranking``. Raises ``InputError``."""
    case = case_of(asked)
    case, found = replace(case, simulate=ranking.simulated is not None, ties=ranking.band > 0), Studies()
    best = ranking.costs.take(slice(0, 1)) if len(ranking) else None
    if study.explain_steps:
        steps = walk(case)
        found.sections.append(steps_lines(case, steps, screen))
        found.data["steps"] = steps_data(steps)
    if study.sensitivities and best is not None:
        slopes = sensitivities(case, best.plans[0])
        found.sections.append(sensitivity_lines(best, slopes, screen))
        found.data["sensitivities"] = sensitivities_data(slopes)
    if study.what_if is not None:
        changed = what_if(case, study.what_if)
        found.sections.append(what_if_lines(changed, screen))
        found.data["what_if"] = what_if_data(changed)
    if run.tokens is not None and best is not None:
        whole = run_of(asked.model, asked.cluster, asked.workload, best, run)
        found.sections.append(run_lines(whole, screen, "the best plan"))
        found.data["run"] = run_data(whole)
    return found


def run_of(model: Model, cluster: Cluster, workload: Workload, costs: Costs, flags: RunFlags) -> WholeRun:
    """The whole run with the plan of ``costs``."""
    assert flags.tokens is not None
    return whole_run(
        model,
        workload,
        costs,
        gpus=cluster.gpus,
        tokens=flags.tokens,
        reliability=reliability_of(flags),
        price=price_of(flags, cluster.gpu),
        power=power_of(flags, cluster.gpu),
    )
