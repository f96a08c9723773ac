"""All rules, and which of them hold for a framework."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from meshplan.errors import UnknownNameError
from meshplan.plan.rules import experts, megatron, others, pipeline, practice, shape, torch, workload
from meshplan.plan.rules.rule import Rule

FRAMEWORKS: Mapping[str, str] = {
    "any": "arithmetic and shapes, whatever the framework",
    "megatron": "Megatron-Core 0.16.1, 0.19.2 and main of August 2026",
    "megatron-bridge": "Megatron-Bridge, main of August 2026; the rules are Megatron's",
    "torchtitan": "torchtitan 0.3.0 and main of August 2026",
    "pytorch": "PyTorch 2.13.0: device mesh, FSDP2 and torch.distributed.pipelining",
    "deepspeed": "DeepSpeed 0.19.8 and main of August 2026",
    "accelerate": "accelerate 1.15.0",
    "mindspeed": "MindSpeed auto_settings, master of 2026, on Megatron",
    "paddle": "Paddle's auto_tuner, develop",
}
"""Name → the versions whose code was read."""
_SAME: Mapping[str, str] = {"megatron-bridge": "megatron"}

ERRORS: tuple[Rule, ...] = (
    shape.GPUS_PRODUCT, shape.TP_DIVIDES_HEADS, shape.TP_KV_HEADS, shape.TP_DIVIDES_MLP,
    shape.SEQ_DIVIDES_CP, shape.SP_DIVIDES_SEQ, pipeline.LAYERS_DIVIDE_PP, experts.EP_DIVIDES_EXPERTS,
    experts.ETP_DIVIDES_EXPERT, experts.EXPERT_FOLDING, pipeline.VP_FITS_SCHEDULE, pipeline.LAYERS_DIVIDE_VP,
    shape.GBS_DIVIDES, shape.TP_DIVIDES_SHARED, shape.ULYSSES_HEADS, shape.HIERARCHICAL_CP,
    pipeline.STAGES_HAVE_LAYERS, pipeline.LAYOUT_STAGES, pipeline.LAYOUT_LAYERS, pipeline.DUALPIPE_PAIRS,
    shape.REPLICAS_DIVIDE, *workload.WORKLOAD_RULES, *megatron.RULES, *torch.RULES, *others.RULES,
)  # fmt: skip
"""In the order in which a search counts them."""
WARNINGS: tuple[Rule, ...] = (
    practice.TP_IN_NODE, practice.CP_MIN_TOKENS, practice.EP_IN_DOMAIN, practice.FEW_MICRO_BATCHES,
    practice.SHARDED_PIPELINE, practice.PP_INSIDE_DP, practice.RECOMPUTE_ABSENT, practice.RECOMPUTE_MORE,
    practice.FLASH_CORE, practice.GPIPE_MEMORY, practice.SEQ_BEYOND_MODEL,
)  # fmt: skip
REGISTRY: Mapping[str, Rule] = {rule.id: rule for rule in (*ERRORS, *WARNINGS)}
"""Id → rule."""


@cache
def rules_of(framework: str = "any") -> tuple[Rule, ...]:
    """The errors of a framework, in order; raises ``UnknownNameError`` for a framework nobody knows."""
    _known(framework)
    name = _SAME.get(framework, framework)
    return tuple(rule for rule in ERRORS if rule.meaning or name in rule.frameworks)


@cache
def warnings_of(framework: str = "any") -> tuple[Rule, ...]:
    """The warnings of a framework; raises ``UnknownNameError`` likewise."""
    _known(framework)
    name = _SAME.get(framework, framework)
    return tuple(rule for rule in WARNINGS if name in rule.frameworks)


@cache
def workload_rules(framework: str) -> tuple[Rule, ...]:
    """Of the errors of a framework those about what is trained, whatever else the plan."""
    return tuple(rule for rule in rules_of(framework) if rule in workload.WORKLOAD_RULES)


@cache
def framework_rules(name: str) -> tuple[Rule, ...]:
    """What a plan must satisfy to start from our launch files of a target, which spell out the stages and
    replace (and say so) what the target cannot express; none for a name without rules."""
    if name not in FRAMEWORKS or name == "any":
        return ()
    return tuple(rule for rule in rules_of(name) if not rule.written)


def rule_named(name: str) -> Rule:
    """The rule of this id; raises ``UnknownNameError`` with the nearest ones."""
    found = REGISTRY.get(name)
    if found is None:
        raise UnknownNameError("rule", name, REGISTRY, "`meshplan rules` lists them")
    return found


def _known(framework: str) -> None:
    if framework not in FRAMEWORKS:
        raise UnknownNameError("framework", framework, FRAMEWORKS, f"known: {', '.join(FRAMEWORKS)}")


RULES = rules_of("any")
"""What every plan of a real run must satisfy."""
HANDBOOK_RULES = (
    practice.TP_IN_NODE, shape.GPUS_PRODUCT, pipeline.LAYERS_DIVIDE_PP, practice.CP_MIN_TOKENS,
    shape.GBS_DIVIDES,
)  # fmt: skip
"""The textbook's own."""
