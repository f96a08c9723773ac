"""``results.jsonl`` of ``meshplan measure`` as cases for a fit of the stack, and the stack's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from statistics import median

from meshplan.calibrate.stack_fit import Case, StackFit
from meshplan.calibrate.write import toml_text
from meshplan.cluster.cluster import Cluster
from meshplan.cost.full.stack import Stack
from meshplan.errors import InputError, shown
from meshplan.files import write_text
from meshplan.measure.failures import writing
from meshplan.measure.results import OK, Result, read
from meshplan.measure.specs import spec_of


def stack_path(cluster: Path) -> Path:
    """Where the stack of a cluster file stands: ``my-cluster.stack.toml`` for ``my-cluster.yaml``."""
    return cluster.with_suffix(".stack.toml")


def read_cases(paths: Sequence[Path], cluster: Cluster) -> list[Case]:
    """Every plan that ran, with the median of its steps. Raises ``InputError`` for files without any, and for
    plans on other numbers of ranks than the cluster has."""
    groups: dict[str, list[Result]] = {}
    for path in paths:
        if not path.exists():
            raise InputError(f"results {shown(path, 200)} do not exist")
        for r in read(path):
            if r.outcome == OK and r.steps_s:
                groups.setdefault(r.key, []).append(r)
    found = [_case(rows) for rows in groups.values()]
    if not found:
        names = ", ".join(shown(p, 200) for p in paths)
        raise InputError(f"{names}: no plan ran, so there is no step to fit on")
    for c in found:
        if c.plan.gpus > cluster.gpus:
            raise InputError(
                f"plan {c.label} ran on {c.plan.gpus} ranks; cluster {cluster.name} has {cluster.gpus}"
            )
    return found


def _case(rows: Sequence[Result]) -> Case:
    spec = spec_of(rows[0].spec)
    return Case(
        model=spec.model,
        workload=spec.workload,
        plan=spec.plan,
        order=spec.order,
        label=rows[0].label,
        step_s=median(s for r in rows for s in r.steps_s),
    )


def write_stack(found: StackFit, path: Path) -> None:
    """The stack's TOML file: what differs from the defaults."""
    with writing(path):
        write_text(
            path, "# Made by meshplan calibrate; seconds and shares.\n" + toml_text(_table(found.stack))
        )


def _table(stack: Stack) -> Mapping[str, object]:
    table: dict[str, object] = {}
    for f in fields(stack):
        value = getattr(stack, f.name)
        if f.name != "sources" and (f.default is MISSING or value != f.default):
            table[f.name] = value
    return {**table, "sources": dict(stack.sources)} if stack.sources else table
