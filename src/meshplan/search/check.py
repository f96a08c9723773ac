"""One plan against all rules: what it breaks, warnings apart, and near plans that break nothing."""

from __future__ import annotations

from dataclasses import dataclass

from meshplan.cluster.cluster import Cluster
from meshplan.model.model import Model
from meshplan.plan.plans import DEFAULT_ORDER, Plan
from meshplan.plan.rules import Rule, Setting, broken, rules_of, warnings_of
from meshplan.plan.workload import Workload
from meshplan.search.repair import Repair, repairs


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A rule that a plan breaks. ``repairs``: for a warning, the nearest valid plan without it."""

    rule: Rule
    sentence: str
    repairs: tuple[Repair, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """What there is to say about one plan."""

    setting: Setting
    plan: Plan
    order: tuple[str, ...]
    framework: str
    findings: tuple[Finding, ...]
    repairs: tuple[Repair, ...]
    """Near plans that pass every rule; empty where nothing is broken, or nothing near works."""
    rules: int
    """How many rules were asked, warnings among them."""

    @property
    def valid(self) -> bool:
        """Whether only warnings were found."""
        return not self.errors

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Rules without which the plan does not run."""
        return tuple(f for f in self.findings if f.rule.severity == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """Rules without which it runs badly."""
        return tuple(f for f in self.findings if f.rule.severity == "warning")


def check_plan(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    plan: Plan,
    *,
    framework: str = "any",
    order: tuple[str, ...] = DEFAULT_ORDER,
    without: tuple[Rule, ...] = (),
) -> Check:
    """The plan against all rules of a framework (``any``: those of arithmetic alone).

    Every fix was itself checked against all of them. ``without``: rules not to ask about.
    Raises ``UnknownNameError`` for a framework nobody
    knows.
    """
    setting = Setting(model, cluster, workload)
    rules = tuple(rule for rule in rules_of(framework) if rule not in without)
    warnings = warnings_of(framework)
    wrong = broken(setting, plan, rules, order=order)
    unwise = broken(setting, plan, warnings, order=order)
    findings = [Finding(rule=rule, sentence=rule.explain(setting, plan, order)) for rule in wrong]
    for rule in unwise:
        kept = (*rules, *(w for w in warnings if w not in unwise), rule)
        near: tuple[Repair, ...] = ()
        if not wrong:
            near = repairs(setting, plan, kept, order=order, touching=rule.columns, most=1)
        findings.append(Finding(rule=rule, sentence=rule.explain(setting, plan, order), repairs=near))
    return Check(
        setting=setting,
        plan=plan,
        order=order,
        framework=framework,
        findings=tuple(findings),
        repairs=repairs(setting, plan, rules, order=order) if wrong else (),
        rules=len(rules) + len(warnings),
    )
