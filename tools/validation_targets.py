"""The targets of the full cost model on the large table of published runs: their rows and figures."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from meshplan.report.table import Column, markdown
from meshplan.report.validation_view import right_verdicts
from meshplan.validation.rows import read_rows
from meshplan.validation.run import Outcome, run
from meshplan.validation.summary import Family

HERE = Path(__file__).parent
TARGETS = HERE / "validation_targets.toml"
RESULTS = HERE / "validation_results.toml"
FAMILY = re.compile("megatron|zero-bubble|nemo|torchtitan|llama-3")
SMALL = "megatron-deepspeed-node"
"""The stack of vTrain's single-node runs."""
WORST_SWEEPS = 10


def _source(outcome: Outcome) -> str:
    return outcome.case.row.text["source"].lower()


def _moe(outcome: Outcome) -> bool:
    return bool(outcome.case.row.whole("experts", 0))


def _dense(outcome: Outcome) -> bool:
    case = outcome.case
    return (
        not _moe(outcome)
        and case.workload.precision in ("bf16", "fp16")
        and case.cluster.gpu.name.startswith(("a100", "h100"))
        and bool(FAMILY.search(case.stack.name))
    )


def _small(outcome: Outcome) -> bool:
    return outcome.case.stack.name == SMALL


def _vtrain(outcome: Outcome) -> bool:
    return _source(outcome).startswith("vtrain")


ROWS: Mapping[str, Callable[[Outcome], bool]] = {
    "all": lambda o: True,
    "dense": _dense,
    "dense, several nodes or larger": lambda o: _dense(o) and not _small(o),
    "moe": _moe,
    "korthikanti": lambda o: "korthikanti" in _source(o) and o.case.row.text["tier"] != "C",
    "vtrain multi": lambda o: _vtrain(o) and not _small(o),
    "vtrain single": lambda o: _vtrain(o) and _small(o),
    "simumax": lambda o: _source(o) == "simumax",
}
"""Which rows a target is of. Of Korthikanti's points, which the table has second hand, tier B counts too."""


def figures_of(family: Family) -> dict[str, float | None]:
    """The figures that targets name, of some rows."""
    return {
        "median": family.step.median,
        "p90": family.step.p90,
        "signed": None if family.step.signed_median is None else abs(family.step.signed_median),
        "mean": family.step.mean,
        "memory median": family.memory.median,
        "memory p90": family.memory.p90,
        "memory mean": family.memory.mean,
        "verdicts": right_verdicts(family.oom),
        "tau": family.mean_tau,
        "regret": family.mean_regret,
    }


def targets() -> list[dict[str, Any]]:
    """The targets, in order."""
    found: list[dict[str, Any]] = tomllib.loads(TARGETS.read_text(encoding="utf-8"))["target"]
    return found


def measure(table: Path) -> dict[str, Any]:
    """Every target's figure on ``table``, and the sweeps that regret most."""
    outcomes = run(read_rows(table)).outcomes
    complete = [o for o in outcomes if o.case.row.text["tier"] == "A"]
    families: dict[str, Family] = {}
    for name, keep in ROWS.items():
        some: Sequence[Outcome] = outcomes if name == "korthikanti" else complete
        families[name] = Family.of(o for o in some if keep(o))
    figures = []
    for target in targets():
        family = families[target["rows"]]
        rows = family.memory.n if target["figure"].startswith("memory") else family.step.n
        value = figures_of(family)[target["figure"]]
        figures.append({"rows": rows, "figure": None if value is None else round(value, 4)})
    worst = sorted(families["all"].sweeps, key=lambda s: -s.regret)[:WORST_SWEEPS]
    sweeps = [
        {
            "sweep": f"{s.key[0]}, {s.key[1]}, {s.key[3]} {s.key[2]}, {s.key[4]} sequences of {s.key[5]}",
            "plans": s.n,
            "tau": round(s.tau, 2),
            "regret": round(s.regret, 3),
        }
        for s in worst
    ]
    return {"rows": len(outcomes), "complete": len(complete), "target": figures, "sweep": sweeps}


def write(results: Mapping[str, Any]) -> None:
    """Keeps ``results`` beside this file, where the page is written from."""
    lines = [
        "# Written by tools/write_validation_page.py --measure TABLE: do not edit.",
        f"rows = {results['rows']}",
        f"complete = {results['complete']}",
    ]
    for target, found in zip(targets(), results["target"], strict=True):
        lines += ["", f"[[target]]  # {target['what']}", f"rows = {found['rows']}"]
        if found["figure"] is not None:
            lines.append(f"figure = {found['figure']}")
    for sweep in results["sweep"]:
        lines += ["", "[[sweep]]", f'sweep = "{sweep["sweep"]}"']
        lines += [f"{name} = {sweep[name]}" for name in ("plans", "tau", "regret")]
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def reached(target: Mapping[str, Any], figure: float | None) -> bool:
    """Whether ``figure`` is within the target's bound."""
    if figure is None:
        return False
    within = figure <= target["most"] if "most" in target else figure >= target["least"]
    return bool(within)


def _shown(target: Mapping[str, Any], value: float | None) -> str:
    if value is None:
        return "no row"
    return f"{value:.2f}" if target["figure"] == "tau" else f"{value:.1%}"


def section() -> Iterator[str]:
    """The lines of the page: every target beside its figure, and why the missed ones are missed."""
    results = tomllib.loads(RESULTS.read_text(encoding="utf-8"))
    pairs = list(zip(targets(), results["target"], strict=True))
    yield "## Targets\n"
    yield (
        "What the full cost model is to reach on a larger table of published runs that is not shipped"
        f" ({results['rows']:,} rows could be used, {results['complete']:,} of them complete); unless said"
        " otherwise a line is of its complete rows.\n"
    )
    columns = [
        Column(title="what", cells=tuple(t["what"] for t, _ in pairs)),
        Column(title="rows", right=True, cells=tuple(f"{found['rows']:,}" for _, found in pairs)),
        Column(
            title="target",
            right=True,
            cells=tuple(
                f"at {'most' if 'most' in t else 'least'} {_shown(t, t.get('most', t.get('least')))}"
                for t, _ in pairs
            ),
        ),
        Column(title="reached", right=True, cells=tuple(_shown(t, f.get("figure")) for t, f in pairs)),
        Column(title="", cells=tuple("yes" if reached(t, f.get("figure")) else "no" for t, f in pairs)),
    ]
    yield from [*markdown(columns), ""]
    missed = [t for t, f in pairs if not reached(t, f.get("figure"))]
    if missed:
        yield "Missed, with the reason as far as it is known:\n"
        for target in missed:
            reason = " ".join(target.get("reason", "The reason is not known yet.").split())
            yield f"- **{target['what']}**: {reason}"
        yield ""
    yield "The sweeps that regret most:\n"
    sweeps = results["sweep"]
    yield from [
        *markdown(
            [
                Column(title="sweep", cells=tuple(s["sweep"] for s in sweeps)),
                Column(title="plans", right=True, cells=tuple(str(s["plans"]) for s in sweeps)),
                Column(title="tau", right=True, cells=tuple(f"{s['tau']:.2f}" for s in sweeps)),
                Column(title="regret", right=True, cells=tuple(f"{s['regret']:.1%}" for s in sweeps)),
            ]
        ),
        "",
    ]
