"""Rules about experts: what their dimensions divide, and how they fold onto the ranks of attention."""

from __future__ import annotations

import numpy as np

from meshplan.plan.plans import Plan, Plans
from meshplan.plan.rules.facts import divide, listed, moes
from meshplan.plan.rules.rule import Bools, Rule, Setting, Source


def _expert_pass(s: Setting, p: Plans) -> Bools:
    experts = moes(s)
    return divide((moe.experts for moe in experts), p.ep) if experts else np.asarray(p.ep == 1)


def _expert_words(s: Setting, p: Plan) -> str:
    experts = moes(s)
    if not experts:
        return f"ep {p.ep} needs experts, and {s.model.name} has none"
    return f"ep {p.ep} does not divide {listed(sorted({m.experts for m in experts}))} experts"


def _etp_pass(s: Setting, p: Plans) -> Bools:
    experts = moes(s)
    return divide((moe.width for moe in experts), p.etp) if experts else np.asarray(p.etp == 1)


def _etp_words(s: Setting, p: Plan) -> str:
    experts = moes(s)
    if not experts:
        return f"etp {p.etp} needs experts, and {s.model.name} has none"
    return f"etp {p.etp} does not divide the expert width {listed(sorted({m.width for m in experts}))}"


EP_DIVIDES_EXPERTS = Rule(
    id="ep-divides-experts",
    meaning=True,
    title="ep divides the experts",
    columns=("ep",),
    passes=_expert_pass,
    words=_expert_words,
    fix="ep",
    sources=(
        Source("any", "every ep rank holds as many whole experts"),
        Source("megatron", "megatron/training/arguments.py, validate_args"),
        Source("torchtitan", "torchtitan/models/common/decoder.py, Decoder.Config.update_from_config"),
        Source("pytorch", "torch/distributed/tensor, when the experts' weights are sharded"),
        Source("deepspeed", "deepspeed/moe/layer.py, MoE.__init__"),
        Source("mindspeed", "mindspeed/auto_settings/search_space.py, build_search_spaces"),
    ),
)
ETP_DIVIDES_EXPERT = Rule(
    id="etp-divides-expert",
    meaning=True,
    title="etp divides the width of an expert",
    columns=("etp",),
    passes=_etp_pass,
    words=_etp_words,
    fix="etp",
    sources=(
        Source("any", "the columns of an expert are split evenly"),
        Source("megatron", "megatron/core/transformer/moe/experts.py"),
        Source("torchtitan", "no etp above 1 there: passes"),
        Source("pytorch", "torch/distributed/tensor, when the experts' weights are sharded"),
        Source("deepspeed", "deepspeed/moe/layer.py"),
    ),
)
EXPERT_FOLDING = Rule(
    id="expert-folding",
    meaning=True,
    title="etp × ep divides tp × cp × dp",
    columns=("tp", "cp", "dp", "ep", "etp"),
    passes=lambda s, p: np.asarray((p.tp * p.cp * p.dp) % (p.ep * p.etp) == 0),
    words=lambda s, p: (
        f"etp {p.etp} × ep {p.ep} = {p.etp * p.ep} does not divide tp {p.tp} × cp {p.cp} × dp {p.dp}"
        f" = {p.tp * p.cp * p.dp}"
    ),
    fix="ep",
    sources=(
        Source("any", "the ranks of a stage, regrouped: etp × ep × edp = tp × cp × dp (arXiv 2504.14960)"),
        Source("megatron", "megatron/core/parallel_state.py, initialize_model_parallel"),
        Source("torchtitan", "torchtitan/distributed/parallel_dims.py, ParallelDims._validate"),
        Source("pytorch", "torch/distributed/device_mesh.py, init_device_mesh"),
        Source("deepspeed", "deepspeed/utils/groups.py, _create_expert_and_data_parallel"),
        Source("mindspeed", "mindspeed/auto_settings/search_space.py, build_search_spaces"),
    ),
)
