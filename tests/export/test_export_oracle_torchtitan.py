"""What we write, loaded by torchtitan itself: configuration manager, mesh and model rules, stage split.

Needs torchtitan 0.3 (and triton, which its configuration imports); skipped, loudly, where it is not there.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import random
import shlex
import sys
from pathlib import Path
from typing import Any

import export_oracles as oracles
import export_samples as samples
import pytest

from meshplan.errors import InputError
from meshplan.export.launch import Fitting, Job, stage_layers
from meshplan.export.targets import export
from meshplan.export.torchtitan_models import FLAVORS, STOCK
from meshplan.export.torchtitan_plan import fit_torchtitan, parallelism_fields, training_fields
from meshplan.model.counts import model_parameters
from meshplan.model.presets import preset
from meshplan.plan.kinds import Schedule
from meshplan.plan.plans import ALL_LAYERS
from meshplan.plan.rules import broken, framework_rules

pytestmark = [*oracles.ALL, oracles.TITAN]


MODELS = ("llama-3.1-70b", "llama-3.1-8b", "llama-3.2-1b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-120b")
EXPLAINED = {
    "tp-divides-mlp": "checked by DTensor when the model is parallelised",
    "etp-divides-expert": "torchtitan has no etp",
    "ep-divides-experts": "checked when expert weights are sharded over the mesh",
    "expert-folding": "checked when the sparse mesh is made (dp_shard · cp · tp must be a multiple of ep)",
    "stages-have-layers": "an empty list of modules is taken; a stage without layers only wastes ranks",
    "torchtitan-ep-in-shards": "checked when the sparse mesh is made",
}
"""Rules of ours that the configuration does not check, and where torchtitan does."""


def jobs(count: int, seed: str) -> list[Job]:
    rng = random.Random(seed)
    return [samples.random_job(rng, MODELS) for _ in range(count)]


def exported(count: int, seed: str) -> list[Job]:
    found = []
    for job in jobs(count, seed):
        try:
            export(job, "torchtitan")
        except InputError:
            continue
        found.append(job)
    return found


def parse(words: list[str]) -> Any:
    from torchtitan.config import ConfigManager

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return ConfigManager().parse_args(words)


def check(config: Any, job: Job, plan: Any) -> None:
    from torchtitan.distributed.parallel_dims import ParallelDims

    p, t = config.parallelism, config.training
    dims = ParallelDims.from_config(p, job.setting.cluster.gpus)
    assert (dims.tp, dims.cp, dims.pp, dims.ep) == (plan.tp, plan.cp, plan.pp, plan.ep)
    assert dims.dp_replicate * dims.dp_shard == plan.dp
    assert p.enable_sequence_parallel == plan.sp
    assert t.seq_len == job.setting.workload.seq
    assert t.global_batch_size == job.setting.workload.gbs
    policy = type(config.activation_checkpoint).__qualname__
    assert (policy == "FullAC.Config") == (plan.recompute_layers == ALL_LAYERS)
    if plan.pp > 1:
        from torch.distributed.pipelining.schedules import get_schedule_class

        get_schedule_class(p.pipeline_parallel_schedule)
        counts = tuple(sum(n.startswith("layers.") for n in part) for part in p.module_fqns_per_model_part)
        assert counts == stage_layers(plan, len(job.model.layers))
        assert len(counts) == plan.pp * plan.vp
        assert p.pipeline_parallel_microbatch_size == plan.mbs
        assert t.local_batch_size // plan.mbs == job.micro_batches
    else:
        assert t.local_batch_size == plan.mbs


def test_the_configuration_module_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    taken = [job for job in exported(250, "modules") if job.setting.workload.precision == "bf16"][:25]
    assert len(taken) >= 15
    for i, job in enumerate(taken):
        launch = export(job, "torchtitan")
        name = f"titan_case_{i}"
        (tmp_path / f"{name}.py").write_text(launch.files["meshplan_titan.py"], encoding="utf-8")
        check(parse(["--module", name, "--config", "train"]), job, launch.written)
        sys.modules.pop(name, None)


def test_the_flags_mean_the_same() -> None:
    seen = 0
    for job in exported(250, "flags"):
        launch = export(job, "torchtitan")
        if "torchtitan.flags" not in launch.files:
            continue
        lines = [line for line in launch.files["torchtitan.flags"].splitlines() if not line.startswith("#")]
        check(parse([word for line in lines for word in shlex.split(line)]), job, launch.written)
        seen += 1
        if seen == 20:
            break
    assert seen == 20


def test_flavors_are_the_presets() -> None:
    """Parameters, layer for layer the same model: the whole count on the meta device."""
    import torch

    for name, flavor in FLAVORS.items():
        module = importlib.import_module(f"torchtitan.models.{flavor.module}")
        spec = module.model_registry(flavor.name)
        with torch.device("meta"):
            built = spec.model.build()
        assert sum(p.numel() for p in built.parameters()) == int(model_parameters(preset(name)).total) - mtp(
            name
        ), name


def mtp(name: str) -> int:
    """Parameters of multi-token prediction, which torchtitan leaves out by default."""
    from dataclasses import replace

    model = preset(name)
    return int(model_parameters(model).total) - int(model_parameters(replace(model, mtp=())).total)


def test_stock_configurations_are_as_listed() -> None:
    for flavor in dict.fromkeys(f for f in FLAVORS.values() if f.config and f.config != "llama3_405b"):
        config = parse(["--module", flavor.module, "--config", flavor.config])
        stock = STOCK[flavor.config]
        assert config.training.local_batch_size == stock.get("training.local_batch_size", 8)
        assert config.training.seq_len == stock.get("training.seq_len", 2048)
        assert config.parallelism.tensor_parallel_degree == stock.get("parallelism.tensor_parallel_degree", 1)
        assert config.parallelism.expert_parallel_degree == stock.get("parallelism.expert_parallel_degree", 1)
        assert config.parallelism.pipeline_parallel_schedule == stock.get(
            "parallelism.pipeline_parallel_schedule", "1F1B"
        )
        policy = {"FullAC.Config": "full", "SelectiveAC.Config": "selective"}[
            type(config.activation_checkpoint).__qualname__
        ]
        assert policy == stock["checkpointing"]


def test_a_plain_llama_of_any_size_loads_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from meshplan.cluster.presets import cluster_of
    from meshplan.plan.plans import Plan
    from meshplan.plan.rules import Setting
    from meshplan.plan.workload import Workload

    model = preset("mistral-large-123b")
    setting = Setting(model, cluster_of("h100-sxm", 64), Workload(seq=4096, gbs=64))
    launch = export(Job(setting=setting, plan=Plan(tp=8, dp=8)), "torchtitan")
    (tmp_path / "titan_llama.py").write_text(launch.files["meshplan_titan.py"], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = parse(["--module", "titan_llama", "--config", "train"])
    with torch.device("meta"):
        built = config.model_spec.model.build()
    assert sum(p.numel() for p in built.parameters()) == int(model_parameters(model).total)


@pytest.mark.parametrize("name", [*FLAVORS, "mistral-large-123b"])
def test_the_configuration_has_the_models_rotary_embedding(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Base, scaling and epsilon of every layer, as torchtitan has them after loading what we write."""
    from meshplan.cluster.presets import cluster_of
    from meshplan.plan.plans import Plan
    from meshplan.plan.rules import Setting
    from meshplan.plan.workload import Workload

    model = preset(name)
    setting = Setting(model, cluster_of("h100-sxm", 64), Workload(seq=4096, gbs=64))
    launch = export(Job(setting=setting, plan=Plan(dp=64), asked_model=name), "torchtitan")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = "titan_rope_" + "".join(c if c.isalnum() else "_" for c in name)
    (tmp_path / f"{module}.py").write_text(launch.files["meshplan_titan.py"], encoding="utf-8")
    spec = importlib.import_module(module).model_spec()
    assert model.rope is not None
    said = any(note.part == "norms' epsilon" for note in launch.notes)
    for block in spec.model.layers:
        rope = block.attention.rope
        assert rope.theta == model.rope.base
        match model.rope.kind:
            case "llama3":
                assert (rope.scaling, rope.scaling_factor) == ("llama", model.rope.factor)
            case "yarn":
                assert (rope.scaling, rope.rope_factor) == ("yarn", model.rope.factor)
                assert rope.truncate == model.rope.truncate
            case _:
                assert rope.scaling == "none"
        assert (block.attention_norm.eps == model.norm_eps) != said


def test_our_stage_split_is_torchtitans() -> None:
    """Where a file gives layers a stage instead of modules, ``read`` cuts as torchtitan does."""
    from torchtitan.distributed.pipeline_parallel import _generate_llm_fqn_per_model_part

    from meshplan.export.found import Found, Settings
    from meshplan.export.read_torchtitan import _split

    rng = random.Random("stages")
    compared = 0
    for _ in range(300):
        name = rng.choice(("llama-3.1-8b", "llama-3.1-70b", "deepseek-v3"))
        pp, each = rng.choice((2, 3, 4, 8)), rng.randint(1, 12)
        first, last = rng.randint(0, 2), rng.randint(0, 2)
        layers = len(preset(name).layers)
        found = Found(kind="torchtitan", what="")
        found.model = preset(name)
        settings = Settings({
            "parallelism.pipeline_parallel_layers_per_stage": each,
            "parallelism.pipeline_parallel_first_stage_less_layers": first,
            "parallelism.pipeline_parallel_last_stage_less_layers": last,
        })  # fmt: skip
        counts, vp = _split(settings, found, pp, layers, single=False)
        stages = -(-(layers + first + last) // each)
        try:
            theirs = _generate_llm_fqn_per_model_part(stages, layers, first, last)
        except ValueError:
            assert found.problems
            continue
        if stages % pp:
            assert found.problems
            continue
        assert counts == tuple(sum(n.startswith("layers.") for n in part) for part in theirs)
        assert vp == stages // pp
        compared += 1
    assert compared > 40


def test_validity_agrees_on_two_thousand_plans() -> None:
    agreed = {True: 0, False: 0}
    specs: dict[str, Any] = {}
    for job in jobs(2000, "validity"):
        fitting = Fitting(job)
        fit_torchtitan(fitting)
        plan = fitting.plan
        wrong = {rule.id for rule in broken(job.setting, plan, framework_rules("torchtitan"))}
        accepted, reason = accepts(job, plan, specs)
        ours = not (wrong - set(EXPLAINED))
        assert accepted == ours, (
            f"{plan}\ntorchtitan: {reason or 'accepts'}\nours: {sorted(wrong) or 'accepts'}"
        )
        agreed[accepted] += 1
    assert min(agreed.values()) > 100, f"the sample is one-sided: {agreed}"


def accepts(job: Job, plan: Any, specs: dict[str, Any]) -> tuple[bool, str]:
    """Whether torchtitan's configuration, mesh, model and PyTorch's schedules take the plan."""
    import copy

    from torchtitan.config import ParallelismConfig, TrainingConfig
    from torchtitan.distributed.parallel_dims import ParallelDims
    from torchtitan.trainer import Trainer

    flavor = FLAVORS[job.model.name]
    if flavor not in specs:
        module = importlib.import_module(f"torchtitan.models.{flavor.module}")
        extra = {"attn_backend": "flex"} if flavor.module == "gpt_oss" else {}
        specs[flavor] = module.model_registry(flavor.name, **extra)
    workload = job.setting.workload
    try:
        micro_batches, odd = divmod(workload.gbs, plan.dp * plan.mbs)
        assert not odd, "global batch size must be multiple of local batch size times data-parallel degree"
        config = Trainer.Config(
            model_spec=specs[flavor],
            parallelism=ParallelismConfig(**parallelism_fields(plan, len(job.model.layers))),
            training=TrainingConfig(
                **training_fields(plan, micro_batches, workload.seq, workload.gbs, "bf16")
            ),
        )
        dims = ParallelDims.from_config(config.parallelism, job.setting.cluster.gpus)
        divisor = (dims.tp if plan.sp else 1) * (
            2 * dims.cp if dims.cp > 1 else 1
        )  # trainer.py, before the model
        if workload.seq % divisor:
            raise ValueError("sequence length must be divisible")
        copied = copy.copy(specs[flavor].model)
        copied.layers = [copy.copy(layer) for layer in copied.layers[:1]]
        for layer in copied.layers:
            layer.attention = copy.copy(layer.attention)
        type(copied).__mro__[1].update_from_config(copied, config=config)
        if plan.pp > 1:
            schedule(plan, micro_batches)
    except (ValueError, AssertionError, NotImplementedError) as error:
        return False, f"{type(error).__name__}: {error}"
    return True, ""


def schedule(plan: Any, micro_batches: int) -> None:
    """PyTorch's own checks of the schedule, on stages without a module."""
    from types import SimpleNamespace

    import torch
    from torch.distributed.pipelining import schedules

    from meshplan.export.torchtitan_plan import schedule_name

    kind = schedules.get_schedule_class(schedule_name(plan))
    total = plan.pp * plan.vp
    if plan.vp * plan.pp > 0 and not issubclass(kind, schedules.PipelineScheduleMulti):
        assert plan.vp == 1, "single-stage schedules take one stage a rank"
    own = (
        [0, total - 1]
        if plan.schedule in (Schedule.ZB_V, Schedule.DUALPIPE_V)
        else [r * plan.pp for r in range(plan.vp)]
    )
    stages = [
        SimpleNamespace(
            group_size=plan.pp, group_rank=0, num_stages=total, stage_index=i,
            stage_index_to_group_rank={},
            is_first=i == 0, is_last=i == total - 1, has_backward=True,
            device=torch.device("cpu"), group=None,
            submod=torch.nn.Identity(),
        )
        for i in own
    ]  # fmt: skip
    args = (
        (stages, micro_batches)
        if issubclass(kind, schedules.PipelineScheduleMulti)
        else (stages[0], micro_batches)
    )
    try:
        made = kind(*args, loss_fn=None)
    except (AttributeError, TypeError) as error:  # the stub has not all of a stage; the checks come before
        raise pytest.skip.Exception(f"PyTorch's {kind.__name__} wants more of a stage: {error}") from None
    if plan.schedule is Schedule.ONE_F_ONE_B and micro_batches < plan.pp:
        raise ValueError("checked in step(): 1F1B needs a micro-batch for every stage")
    del made
