"""The ranking as a table for reports and pages: the plans to be shown, and all the first ones folded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshplan.report.markup import Child, Html, h, join
from meshplan.report.parts import step_time
from meshplan.report.words import Words
from meshplan.units import format_bytes

Data = Mapping[str, Any]
HEADS = ("rank", "plan", "step", "relative", "mfu", "memory_used", "tokens")
LESS = "tokens"
"""The column that narrow screens leave out: it follows from the step time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Extra:
    """A column more, beside the rank: its title and its cells."""

    title: str
    cell: Callable[[Data], Child]


def ranking_table(
    ranking: Data,
    words: Words,
    *,
    shown: Sequence[Data] | None = None,
    band: Data | None = None,
    chosen: int | None = None,
    cell: Callable[[Data], Child] = lambda row: row["name"],
    extra: Extra | None = None,
) -> Html:
    """The ranked plans; ``=`` marks those tied with the best, ``~`` times of the closed form where others are
    simulated.

    ``shown``: the rows of the table (default: all plans of ``ranking``); where they leave out some of the
    ranking's plans, a line says so, and those stand in a box to open. ``cell`` makes the cell with a plan's
    name.
    """
    plans = ranking["plans"]
    if not plans:
        return Html("")
    rows = list(plans) if shown is None else list(shown)
    there = {row["rank"] for row in rows}
    left = [row for row in plans if row["rank"] not in there]
    some = any(row.get("simulated") for row in plans)

    def table(found: Sequence[Data], caption: str, own: Extra | None) -> Html:
        body = [_row(row, plans[0], ranking, some, band, chosen, cell, own) for row in found]
        kept = h("caption", caption)
        return h("div", h("table", kept, h("thead", _head(words, own)), h("tbody", body)), class_="wide")

    feasible = f"{ranking['counts']['feasible']:,}"
    parts = [table(rows, words("table.caption", shown=f"{len(rows):,}", feasible=feasible), extra)]
    if left:
        more = extra and Extra(
            title=extra.title, cell=lambda row: "" if row["rank"] in there else extra.cell(row)
        )
        summary = words("table.all", count=f"{len(plans):,}")
        parts += [
            h("p", words("table.folded"), class_="soft"),
            h("details", h("summary", summary), table(plans, "", more), id="all-plans"),
        ]
    return join(parts)


def _head(words: Words, extra: Extra | None) -> Html:
    found: list[tuple[str, str | None]] = [(words(f"table.{name}"), _class(name)) for name in HEADS]
    found[1:1] = [(extra.title, None)] if extra else []
    return h("tr", [h("th", title, scope="col", class_=class_) for title, class_ in found])


def _class(name: str) -> str | None:
    return None if name == "plan" else "num less" if name == LESS else "num"


def _row(
    row: Data, first: Data, ranking: Data, some: bool, band: Data | None, chosen: int | None,
    cell: Callable[[Data], Child], extra: Extra | None,
) -> Html:  # fmt: skip
    limit = ranking["cluster"]["memory_limit_bytes"]
    tied = band is not None and is_tied(row, band)
    step = step_time(row["step_s"], first["step_s"]) + (" ~" if some and not row.get("simulated") else "")
    cells = [
        h("td", f"{row['rank']:,}", class_="num"),
        h("td", extra.cell(row)) if extra else Html(""),
        h("td", cell(row), class_="plan"),
        h("td", step, class_="num keep"),
        h("td", f"{row['relative']:.2f}{' =' if tied else ''}", class_="num keep"),
        h("td", f"{row['mfu']:.1%}", class_="num"),
        h(
            "td",
            f"{format_bytes(row['memory_bytes'])} ({row['memory_bytes'] / limit:.0%})",
            class_="num keep memory",
        ),
        h("td", f"{row['tokens_per_s_per_gpu']:,.0f}", class_="num less"),
    ]
    return h("tr", cells, class_="chosen" if row["rank"] == chosen else None)


def is_tied(row: Data, band: Data) -> bool:
    """Whether a plan is as fast as the fastest within the error band."""
    return bool(row.get("tied", row["relative"] <= 1 + band["share"]))


def tie_note(band: Data | None, rows: Sequence[Data], words: Words) -> Html:
    """What ``=`` means, with where the width comes from; ``rows``: those of the table."""
    if band is None or not rows:
        return Html("")
    tied = sum(1 for row in rows if is_tied(row, band))
    text = words(
        "report.ties", share=f"{band['share']:.1%}", runs=band["runs"], kind=words(f"report.{band['kind']}"),
        count=tied,
    )  # fmt: skip
    return h("p", text, class_="soft")
