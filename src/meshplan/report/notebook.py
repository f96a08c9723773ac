"""What a notebook shows for a ranking or an estimate: its table and pictures, in the notebook's own theme."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshplan.report import sections
from meshplan.report.chart_memory import memory_chart
from meshplan.report.chart_pareto import pareto_chart
from meshplan.report.chart_waterfall import waterfall_chart
from meshplan.report.estimate_view import stage_data
from meshplan.report.gather import named_ranking, shown_plans
from meshplan.report.markup import Html, h
from meshplan.report.palette import CHART_CSS, theme_css
from meshplan.report.plan_rows import parts_data
from meshplan.report.ranking_table import ranking_table
from meshplan.report.words import words_in

if TYPE_CHECKING:
    from meshplan.cost.full.explain import Explanation
    from meshplan.search.ranking import Ranking

ROWS = 10


def ranking_html(ranking: Ranking) -> str:
    """The best plans as a table, all of them as a scatter, the best one's step taken apart."""
    words = words_in("en")
    data = named_ranking(ranking, ROWS)
    costs = ranking.costs
    parts: list[Html] = [h("p", h("b", sections.headline(data, words)))]
    parts += [
        ranking_table(data, words, shown=shown_plans(ranking, ROWS)),
        sections.funnel(data, words),
        sections.misses(data, words),
    ]
    if len(ranking):
        limit = costs.memory_limit_bytes
        parts.append(
            pareto_chart(costs.step_s[:4000].tolist(), costs.memory_bytes[:4000].tolist(), limit, words)
        )
        parts.append(waterfall_chart(parts_data(costs.time, 0), parts_data(costs.hidden, 0), words))
    return _styled(parts)


def explanation_html(found: Explanation) -> str:
    """Memory by kind of pipeline rank and the step taken apart."""
    words = words_in("en")
    costs = found.costs
    stages = [stage_data(stage) for stage in found.stages]
    return _styled(
        [
            memory_chart(stages, costs.memory_limit_bytes, words),
            waterfall_chart(parts_data(costs.time, 0), parts_data(costs.hidden, 0), words),
        ]
    )


def _styled(parts: Sequence[Html]) -> str:
    style = Html(theme_css(".mp-chart") + CHART_CSS)
    return h("div", h("style", style), parts, class_="meshplan")
