"""Rules about the pipeline: how layers go on stages, and what each schedule asks for."""

from __future__ import annotations

import numpy as np

from meshplan.plan.kinds import Schedule
from meshplan.plan.plans import AUTO_LAYOUT, Plan, Plans
from meshplan.plan.rules.facts import INTERLEAVED, TWO_STAGES, batches, is_any, micro_batches, of_layout
from meshplan.plan.rules.rule import Bools, Rule, Setting, Source

_ARGUMENTS = "megatron/training/arguments.py, validate_args"
_SPLIT = "torchtitan/distributed/pipeline_parallel.py"


def _schedule_pass(s: Setting, p: Plans) -> Bools:
    two = is_any(p.schedule, TWO_STAGES) & (p.vp == 2)
    # DualPipe keeps two copies of a stage rather than two stages of a rank: its vp stays 1.
    dual = (p.schedule == Schedule.DUALPIPE) & (p.vp == 1)
    many = is_any(p.schedule, INTERLEAVED) & (p.vp > 1)
    piped = is_any(p.schedule, (*TWO_STAGES, *INTERLEAVED, Schedule.DUALPIPE))
    return np.asarray(np.where(piped, (two | dual | many) & (p.pp > 1), p.vp == 1))


def _schedule_words(s: Setting, p: Plan) -> str:
    name = p.schedule.label
    two, many = p.schedule in (*TWO_STAGES, Schedule.DUALPIPE), p.schedule in INTERLEAVED
    if not two and not many:
        return f"vp {p.vp} needs an interleaved schedule, not {name}"
    if p.pp == 1:
        return f"the {name} schedule needs pp above 1"
    if two:
        return f"the {name} schedule takes vp {1 if p.schedule is Schedule.DUALPIPE else 2}, not {p.vp}"
    return f"the {name} schedule needs vp above 1"


def _pairs(s: Setting, p: Plans) -> Bools:
    """DualPipe runs both ways at once: even ranks, and an even number of micro-batches for each of them."""
    m = micro_batches(s, p)
    dual = (p.schedule == Schedule.DUALPIPE) & (p.pp > 1)
    good = (p.pp % 2 == 0) & (m % 2 == 0) & (m >= 2 * p.pp)
    both = (p.schedule == Schedule.DUALPIPE_V) & (p.pp > 1)
    return np.asarray(np.where(dual, good, np.where(both, m >= 2 * p.pp, True)))


def _pairs_words(s: Setting, p: Plan) -> str:
    if p.schedule is Schedule.DUALPIPE and p.pp % 2:
        return f"dualpipe pairs up ranks, and pp {p.pp} is odd"
    need = "an even number of micro-batches, " if p.schedule is Schedule.DUALPIPE else ""
    return f"{p.schedule.label} needs {need}2 × pp {p.pp} = {2 * p.pp} or more, and there are {batches(s, p)}"


def _stages_pass(s: Setting, p: Plans) -> Bools:
    # A cut of its own may leave the ends without layers: they have embedding and head.
    ends = np.where(p.layout == AUTO_LAYOUT, 2, 0)
    return np.asarray((p.layout >= 0) | (p.pp * p.vp <= len(s.model.layers) + ends))


def _stages_words(s: Setting, p: Plan) -> str:
    return f"pp {p.pp} × vp {p.vp} = {p.pp * p.vp} stages for {len(s.model.layers)} layers"


LAYERS_DIVIDE_PP = Rule(
    id="layers-divide-pp",
    title="pp divides the layers, where no layout is given",
    columns=("pp", "layout"),
    passes=lambda s, p: (p.layout != -1) | (len(s.model.layers) % p.pp == 0),
    words=lambda s, p: f"{len(s.model.layers)} layers do not divide over pp {p.pp}",
    fix="pp",
    written=True,
    sources=(
        Source("any", "an even split; otherwise a layout says which stage has how many layers"),
        Source("megatron", _ARGUMENTS),
        Source("mindspeed", "mindspeed/auto_settings/search_space.py, build_search_spaces"),
        Source("paddle", "python/paddle/distributed/auto_tuner/prune.py, prune_by_pp"),
    ),
)
LAYERS_DIVIDE_VP = Rule(
    id="layers-divide-vp",
    title="pp × vp divides the layers, where no layout is given",
    columns=("pp", "vp", "layout"),
    passes=lambda s, p: (
        (p.layout != -1)
        | (len(s.model.layers) % (p.pp * p.vp) == 0)
        | (len(s.model.layers) % p.pp != 0)  # that is layers-divide-pp's to say
    ),
    words=lambda s, p: f"{len(s.model.layers)} layers do not divide over pp {p.pp} × vp {p.vp}",
    fix="vp",
    written=True,
    sources=(
        Source("any", "an even split; otherwise a layout says which stage has how many layers"),
        Source("megatron", _ARGUMENTS),
        Source("mindspeed", "mindspeed/auto_settings/search_space.py, build_search_spaces"),
        Source("paddle", "ppfleetx/models/language_model/utils.py, process_model_configs"),
    ),
)
LAYOUT_STAGES = Rule(
    id="layout-stages",
    meaning=True,
    title="a layout has pp × vp stages",
    columns=("pp", "vp", "layout"),
    passes=lambda s, p: np.asarray((p.layout < 0) | (of_layout(p, map(len, p.layouts)) == p.pp * p.vp)),
    words=lambda s, p: (
        f"the layout has {len(p.layout or ())} stages, and pp {p.pp} × vp {p.vp} is {p.pp * p.vp}"
    ),
    sources=(
        Source("any", "one entry a stage"),
        Source("megatron", f"{_ARGUMENTS} (pipeline_model_parallel_layout)"),
        Source("torchtitan", f"{_SPLIT}, _pipeline_module_split"),
        Source("pytorch", "torch/distributed/pipelining/schedules.py"),
    ),
)
LAYOUT_LAYERS = Rule(
    id="layout-layers",
    meaning=True,
    title="the stages of a layout hold every layer once",
    columns=("layout",),
    passes=lambda s, p: np.asarray(
        (p.layout < 0) | (of_layout(p, map(sum, p.layouts)) == len(s.model.layers))
    ),
    words=lambda s, p: (
        f"the stages hold {sum(p.layout or ())} layers in all, and {s.model.name} has {len(s.model.layers)}"
    ),
    sources=(
        Source("any", "no layer is left out, none comes twice"),
        Source(
            "megatron", "megatron/core/transformer/pipeline_parallel_layer_layout.py, validate_layer_layout"
        ),
        Source("torchtitan", f"{_SPLIT}, _generate_llm_fqn_per_model_part"),
        Source("pytorch", "every layer of the model is on one stage"),
    ),
)
STAGES_HAVE_LAYERS = Rule(
    id="stages-have-layers",
    meaning=True,
    title="there are no more stages than layers",
    columns=("pp", "vp", "layout"),
    passes=_stages_pass,
    words=_stages_words,
    fix="vp",
    sources=(
        Source("any", "a stage without layers only wastes its ranks"),
        Source("megatron", "megatron/core/transformer/transformer_block.py, get_num_layers_to_build"),
        Source("torchtitan", f"{_SPLIT}, _generate_llm_fqn_per_model_part"),
        Source("pytorch", "torch/distributed/pipelining/stage.py"),
        Source("deepspeed", "deepspeed/runtime/pipe/module.py, PipelineModule._partition_layers"),
    ),
)
VP_FITS_SCHEDULE = Rule(
    id="vp-fits-schedule",
    meaning=True,
    title="interleaved schedules have vp above 1, V schedules 2, the others 1",
    columns=("pp", "vp", "schedule"),
    passes=_schedule_pass,
    words=_schedule_words,
    fix="vp",
    sources=(
        Source("any", "arXiv 2104.04473 (interleaved), 2401.10241 and 2405.15362 (V), 2412.19437 (DualPipe)"),
        Source("megatron", f"{_ARGUMENTS}; megatron/core/parallel_state.py, initialize_model_parallel"),
        Source("torchtitan", f"{_SPLIT}, _build_pipeline_schedule and _get_pp_rank_to_stage_indices"),
        Source("pytorch", "torch/distributed/pipelining/schedules.py"),
        Source("deepspeed", "deepspeed/runtime/pipe/schedule.py, TrainSchedule"),
    ),
)
DUALPIPE_PAIRS = Rule(
    id="dualpipe-pairs",
    title="DualPipe: even pp, 2 × pp or more micro-batches, an even number; DualPipeV: 2 × pp or more",
    columns=("pp", "dp", "mbs", "schedule"),
    passes=_pairs,
    words=_pairs_words,
    sources=(Source("any", "deepseek-ai/DualPipe, dualpipe/dualpipe.py and dualpipev.py, step"),),
)
