"""Rules for people and programs: the list, one in full, and what a plan breaks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from meshplan.plan.kinds import Recompute
from meshplan.plan.plans import ALL_LAYERS, Plan, Plans
from meshplan.plan.rules import FRAMEWORKS, Rule, Setting
from meshplan.report.parts import wrap
from meshplan.report.plan_rows import cluster_data, layout_data, model_data, workload_data
from meshplan.report.screen import Screen, printable
from meshplan.report.table import Column, table
from meshplan.schedule.layout_string import write_layout
from meshplan.search.check import Check
from meshplan.search.repair import Change, Repair

SCHEMA_VERSION = 1
TIGHT = 72
"""Columns below which the list says rules alone."""
LONGEST_LAYOUT = 12
"""Stages of a layout that are written one by one; longer ones as Megatron's string."""


def rules_text(rules: Sequence[Rule], framework: str, screen: Screen) -> str:
    """The list of rules."""
    columns = [
        Column(title="id", cells=[rule.id for rule in rules]),
        Column(
            title="",
            cells=["warning" if rule.severity == "warning" else "" for rule in rules],
            priority=int(screen.width < TIGHT),
        ),
        Column(title="holds for", cells=[_frameworks(rule) for rule in rules], priority=2),
        Column(title="a valid plan", cells=[rule.title for rule in rules]),
    ]
    head, *lines = table(columns, screen.width)
    what = "" if framework == "any" else f" of {framework} ({FRAMEWORKS[framework]})"
    closing = f"{len(rules)} rules{what}; `meshplan rules ID` shows one with its sources"
    return screen.text("\n".join([screen.bold(head), *lines, "", *wrap(closing, screen.width), ""]))


def rule_text(rule: Rule, screen: Screen) -> str:
    """One rule with the places it was read from."""
    lines = [screen.bold(rule.id), *wrap(rule.title, screen.width, "")]
    kind = "warning: it runs, and is rarely wise" if rule.severity == "warning" else "error"
    lines += ["", f"severity  {kind}"]
    if rule.columns:
        lines.append(f"about     {', '.join(rule.columns)}")
    if rule.written:
        lines += wrap(
            "files     launch files of `meshplan export` write it another way and say so",
            screen.width,
            " " * 10,
        )
    lines += ["", screen.bold("read in")]
    for source in rule.sources:
        name = "any framework" if source.framework == "any" else source.framework
        lines += wrap(f"  {name:<14}  {source.where}", screen.width, " " * 18)
    named = [name for name in rule.frameworks if name != "any"]
    if named:
        lines += ["", screen.bold("versions")]
        lines += [line for n in named for line in wrap(f"  {n:<14}  {FRAMEWORKS[n]}", screen.width, " " * 18)]
    return screen.text("\n".join(lines) + "\n")


def rule_data(rule: Rule) -> dict[str, Any]:
    """One rule as plain data."""
    return {
        "id": rule.id,
        "severity": rule.severity,
        "title": rule.title,
        "columns": list(rule.columns),
        "frameworks": list(rule.frameworks),
        "sources": [
            {"framework": s.framework, "versions": FRAMEWORKS[s.framework], "where": s.where}
            for s in rule.sources
        ],
        "written": rule.written,
    }


def rules_data(rules: Sequence[Rule], framework: str) -> dict[str, Any]:
    """The list as plain data."""
    return {
        "schema_version": SCHEMA_VERSION,
        "framework": framework,
        "versions": dict(FRAMEWORKS),
        "rules": [rule_data(rule) for rule in rules],
    }


def check_text(check: Check, screen: Screen, notes: Sequence[str] = ()) -> str:
    """What a plan breaks, warnings apart, and what would be valid."""
    plan, width = check.plan, screen.width
    title = f"{check.setting.model.name} on {check.setting.cluster.gpus:,} GPUs: {' '.join(_words(check))}"
    lines = [
        *(screen.bold(line) for line in wrap(printable(title), width)),
        *wrap(_effective(check), width),
        "",
    ]
    errors, warnings = check.errors, check.warnings
    for finding in errors:
        lines += wrap(f"error    {finding.rule.id}: {finding.sentence}", width, " " * 9)
    for finding in warnings:
        lines += wrap(f"warning  {finding.rule.id}: {finding.sentence}", width, " " * 9)
        lines += [f"         without it: {repair_flags(repair)}" for repair in finding.repairs]
    lines += [""] if check.findings else []
    who = "any framework" if check.framework == "any" else check.framework
    if errors:
        lines.append(f"invalid for {who}: {_count(len(errors), 'rule')} of {check.rules} broken")
        if check.repairs:
            lines.append("valid, each tried against all rules:")
            lines += [f"  {repair_flags(repair)}{_rest(plan, repair)}" for repair in check.repairs]
        else:
            lines += wrap(
                "no plan within three changes is valid; `meshplan plan` lists those that are", width
            )
    else:
        lines.append(f"valid for {who}: {check.rules} rules, {_count(len(warnings), 'warning')}")
    lines += [line for note in notes for line in wrap(f"note: {note}", width)]
    return screen.text("\n".join(lines) + "\n")


def check_data(check: Check, notes: Sequence[str] = ()) -> dict[str, Any]:
    """The same as plain data."""
    setting = check.setting
    return {
        "schema_version": SCHEMA_VERSION,
        "valid": check.valid,
        "framework": check.framework,
        "versions": FRAMEWORKS[check.framework],
        "rules_asked": check.rules,
        "model": model_data(setting.model),
        "cluster": cluster_data(setting.cluster, setting.cluster.memory_bytes),
        "workload": workload_data(setting.workload),
        "plan": _plan_data(check.plan, setting, check.order),
        "findings": [
            {
                "id": f.rule.id,
                "severity": f.rule.severity,
                "title": f.rule.title,
                "sentence": f.sentence,
                "sources": [
                    {"framework": s.framework, "where": s.where}
                    for s in f.rule.sources
                    if s.framework in ("any", check.framework)
                ],
                "fixes": [_repair_data(r, check.order) for r in f.repairs],
            }
            for f in check.findings
        ],
        "fixes": [_repair_data(repair, check.order) for repair in check.repairs],
        "notes": list(notes),
    }


def repair_flags(repair: Repair) -> str:
    """The changes as flags to type."""
    return " ".join(_flag(change) for change in repair.changes)


def _flag(change: Change) -> str:
    name, new = change.name, change.new
    if name == "sp":
        return "--sp" if new else "--no-sp"
    if name in ("recompute_layers", "recompute_modules"):
        return "--recompute none"
    if name == "layout":
        if new is None:
            return "without --layout"
        words = ",".join(map(str, new)) if len(new) <= LONGEST_LAYOUT else write_layout(new)
        return f"--layout {shlex.quote(words)}"
    return f"--{name.replace('_', '-')} {getattr(new, 'label', new)}"


def _rest(plan: Plan, repair: Repair) -> str:
    named = {change.name for change in repair.changes}
    rest = []
    if repair.plan.dp != plan.dp and "dp" not in named:
        rest.append(f"dp {repair.plan.dp:,} instead of {plan.dp:,}")
    if repair.plan.layout != plan.layout and "layout" not in named:
        rest.append("without --layout")
    return f"  ({', '.join(rest)})" if rest else ""


def _repair_data(repair: Repair, order: tuple[str, ...]) -> dict[str, Any]:
    return {
        "flags": repair_flags(repair),
        "changes": [{"name": c.name, "old": _plain(c.old), "new": _plain(c.new)} for c in repair.changes],
        "gpus": repair.setting.cluster.gpus,
        "gbs": repair.setting.workload.gbs,
        "plan": _plan_data(repair.plan, repair.setting, order),
    }


def _plan_data(plan: Plan, setting: Setting, order: tuple[str, ...]) -> dict[str, Any]:
    return {
        **layout_data(Plans.of(plan, order=order), 0, setting.workload),
        "order": "-".join(order),
        "gpus": plan.gpus,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Recompute):
        return int(value)
    return getattr(value, "label", value)


def _words(check: Check) -> list[str]:
    plan = check.plan
    words = [f"{dim}{getattr(plan, dim)}" for dim in check.order if dim != "ep"]
    words += [f"{name}{getattr(plan, name)}" for name in ("ep", "etp", "vp") if getattr(plan, name) > 1]
    words.append(f"mbs{plan.mbs}")
    words += [plan.schedule.label] if plan.pp > 1 else []
    words.append(plan.sharding.label)
    words += [f"replicas{plan.replicas}"] if plan.replicas > 1 else []
    words += [plan.cp_kind.label] if plan.cp > 1 else []
    words += ["no-sp"] if plan.tp > 1 and not plan.sp else []
    if plan.recompute_layers:
        words.append("re-all" if plan.recompute_layers >= ALL_LAYERS else f"re{plan.recompute_layers}")
    return words


def _effective(check: Check) -> str:
    """What the degrees come to: ranks, expert ranks, micro-batches, layers of a stage."""
    plan, setting = check.plan, check.setting
    batch, unit = setting.workload.gbs, max(plan.dp * plan.mbs, 1)
    words = [f"{plan.gpus:,} ranks"]
    if plan.ep > 1 or plan.etp > 1:
        edp = plan.tp * plan.cp * plan.dp / (plan.etp * plan.ep)
        words.append(f"experts: etp {plan.etp} × ep {plan.ep} × edp {edp:.4g}")
    words.append(f"{batch / unit:,.4g} micro-batches of {plan.mbs} × {setting.workload.seq:,} tokens")
    layers, stages = len(setting.model.layers), plan.pp * plan.vp
    if plan.layout is not None:
        least, most = min(plan.layout), max(plan.layout)
        words.append(f"stages of {least} to {most} layers" if least < most else f"stages of {most} layers")
    elif stages > 1:
        words.append(f"{layers} layers / {stages} stages = {layers / stages:.4g}")
    return " · ".join(words)


def _frameworks(rule: Rule) -> str:
    return "any" if "any" in rule.frameworks else ", ".join(rule.frameworks)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
