"""Random plans for the tests of the export room: any values a plan can hold, valid for a target or not."""

from __future__ import annotations

import random

from meshplan.cluster.presets import cluster_of
from meshplan.export.launch import Job
from meshplan.model.layers import Moe
from meshplan.model.model import Model
from meshplan.model.presets import preset
from meshplan.plan.kinds import CpKind, Recompute, Schedule, Sharding
from meshplan.plan.plans import ALL_LAYERS, DEFAULT_ORDER, Plan
from meshplan.plan.rules import Setting
from meshplan.plan.workload import Workload

MODELS = (
    "llama-3.1-70b",
    "llama-3.1-8b",
    "llama-3.2-1b",
    "qwen3-30b-a3b",
    "deepseek-v3",
    "gpt-oss-120b",
    "mixtral-8x7b",
)
ORDERS = (
    DEFAULT_ORDER,
    ("tp", "cp", "ep", "pp", "dp"),
    ("tp", "ep", "dp", "cp", "pp"),
    ("cp", "tp", "ep", "dp", "pp"),
)
MODULES = [m for m in Recompute if m]


def random_job(rng: random.Random, models: tuple[str, ...] = MODELS) -> Job:
    """A job with a plan that fills its cluster; everything else is drawn at random."""
    name = rng.choice(models)
    model = preset(name)
    tp, cp, pp = rng.choice((1, 2, 4, 8)), rng.choice((1, 1, 2, 4)), rng.choice((1, 1, 2, 3, 4, 8))
    dp = rng.choice((1, 2, 4, 6, 8))
    gpus = tp * cp * pp * dp
    vp = rng.choice((1, 1, 2, 4, 5)) if pp > 1 else 1
    mbs = rng.choice((1, 2, 4))
    micro_batches = rng.choice((1, 2, 4, 8, pp, 2 * pp, 4 * pp))
    layers = len(model.layers)
    experts = {layer.mlp.experts for layer in model.layers if isinstance(layer.mlp, Moe)}
    ep, etp = (rng.choice((1, 2, 4, 8)), rng.choice((1, 1, 2))) if experts else (1, 1)
    schedule = _schedule(rng, pp, vp)
    plan = Plan(
        tp=tp,
        sp=rng.random() < 0.8,
        cp=cp,
        cp_kind=rng.choice(list(CpKind)),
        pp=pp,
        vp=vp,
        schedule=schedule,
        layout=random_layout(rng, layers, pp * vp) if rng.random() < 0.4 and layers >= pp * vp - 2 else None,
        dp=dp,
        sharding=rng.choice(list(Sharding)),
        replicas=rng.choice((1, 1, 2)) if dp % 2 == 0 else 1,
        ep=ep,
        etp=etp,
        mbs=mbs,
        recompute_layers=rng.choice((0, 0, 1, 3, 10, ALL_LAYERS)),
        recompute_modules=rng.choice(
            (Recompute.NONE, Recompute.NONE, rng.choice(MODULES), rng.choice(MODULES) | rng.choice(MODULES))
        ),
    )
    node = next(n for n in (8, 6, 4, 3, 2, 1) if gpus % n == 0)
    setting = Setting(
        model,
        cluster_of("h100-sxm", gpus, gpus_per_node=node),
        Workload(
            seq=rng.choice((2048, 4096, 8192)),
            gbs=dp * mbs * micro_batches,
            precision=rng.choice(("bf16", "fp8")),
        ),
    )
    return Job(setting=setting, plan=plan, order=rng.choice(ORDERS), name="sample", asked_model=name)


def _schedule(rng: random.Random, pp: int, vp: int) -> Schedule:
    if pp == 1 or (vp == 1 and rng.random() < 0.7):
        return Schedule.ONE_F_ONE_B
    if vp == 1:
        return rng.choice((Schedule.GPIPE, Schedule.ZB_H1, Schedule.ZB_H2, Schedule.DUALPIPE))
    if vp == 2 and rng.random() < 0.4:
        return rng.choice((Schedule.ZB_V, Schedule.V_HALF, Schedule.DUALPIPE_V))
    return rng.choice((Schedule.INTERLEAVED, Schedule.INTERLEAVED, Schedule.LOOPED_BFS))


def random_layout(rng: random.Random, layers: int, stages: int) -> tuple[int, ...]:
    """A random cut of layers into stages; only the ends may be empty, they have embedding and head."""
    head, tail = rng.random() < 0.15 and stages > 2, rng.random() < 0.15 and stages > 2
    if stages > layers:
        head, tail = True, stages - 2 == layers or tail
    full = stages - head - tail
    cuts = sorted(rng.sample(range(1, layers), full - 1)) if full > 1 else []
    inner = [b - a for a, b in zip([0, *cuts], [*cuts, layers], strict=True)]
    return (*[0] * head, *inner, *[0] * tail)


def model_named(name: str) -> Model:
    """A preset."""
    return preset(name)
