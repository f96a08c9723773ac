"""What makes a plan valid: each rule an object with an id, its sources, a predicate and a sentence.

``registry`` has them all; one module a family: ``shape`` (divisibility), ``experts``, ``pipeline``,
``practice`` (warnings), ``megatron``, ``torch`` (torchtitan, PyTorch, accelerate), ``others`` (DeepSpeed and
two auto-tuners), ``workload`` (offload, capacity of experts, precisions).
"""

from __future__ import annotations

from meshplan.plan.rules.experts import EP_DIVIDES_EXPERTS as EP_DIVIDES_EXPERTS
from meshplan.plan.rules.experts import ETP_DIVIDES_EXPERT as ETP_DIVIDES_EXPERT
from meshplan.plan.rules.experts import EXPERT_FOLDING as EXPERT_FOLDING
from meshplan.plan.rules.pipeline import LAYERS_DIVIDE_PP as LAYERS_DIVIDE_PP
from meshplan.plan.rules.pipeline import LAYERS_DIVIDE_VP as LAYERS_DIVIDE_VP
from meshplan.plan.rules.pipeline import VP_FITS_SCHEDULE as VP_FITS_SCHEDULE
from meshplan.plan.rules.practice import CP_MIN_TOKENS as CP_MIN_TOKENS
from meshplan.plan.rules.practice import TP_IN_NODE as TP_IN_NODE
from meshplan.plan.rules.registry import FRAMEWORKS as FRAMEWORKS
from meshplan.plan.rules.registry import HANDBOOK_RULES as HANDBOOK_RULES
from meshplan.plan.rules.registry import REGISTRY as REGISTRY
from meshplan.plan.rules.registry import RULES as RULES
from meshplan.plan.rules.registry import framework_rules as framework_rules
from meshplan.plan.rules.registry import rule_named as rule_named
from meshplan.plan.rules.registry import rules_of as rules_of
from meshplan.plan.rules.registry import warnings_of as warnings_of
from meshplan.plan.rules.registry import workload_rules as workload_rules
from meshplan.plan.rules.rule import Bools as Bools
from meshplan.plan.rules.rule import Rule as Rule
from meshplan.plan.rules.rule import Setting as Setting
from meshplan.plan.rules.rule import Severity as Severity
from meshplan.plan.rules.rule import Source as Source
from meshplan.plan.rules.rule import broken as broken
from meshplan.plan.rules.shape import GBS_DIVIDES as GBS_DIVIDES
from meshplan.plan.rules.shape import GPUS_PRODUCT as GPUS_PRODUCT
from meshplan.plan.rules.shape import SEQ_DIVIDES_CP as SEQ_DIVIDES_CP
from meshplan.plan.rules.shape import SP_DIVIDES_SEQ as SP_DIVIDES_SEQ
from meshplan.plan.rules.shape import TP_DIVIDES_HEADS as TP_DIVIDES_HEADS
from meshplan.plan.rules.shape import TP_DIVIDES_MLP as TP_DIVIDES_MLP
from meshplan.plan.rules.shape import TP_KV_HEADS as TP_KV_HEADS
from meshplan.plan.rules.workload import FSDP_OFFLOAD as FSDP_OFFLOAD
from meshplan.plan.rules.workload import WORKLOAD_RULES as WORKLOAD_RULES
