"""The search with bounds against the one that prices every plan."""

from __future__ import annotations

import random

import numpy as np
import pytest

import meshplan.search.search as searching
from meshplan.cluster.presets import cluster_of
from meshplan.cost.full.model import FullModel
from meshplan.cost.models import cost_model_named
from meshplan.model.load import load_model
from meshplan.plan.kinds import Recompute, Sharding
from meshplan.plan.plans import AUTO_LAYERS, Plans
from meshplan.plan.rules import Setting, rules_of
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
from meshplan.search.bounded import EPSILON, NEAR
from meshplan.search.bounds import can_bound, floors_of
from meshplan.search.candidates import MESH, Funnel, Join
from meshplan.search.exists import any_fits
from meshplan.search.pool import first_of_mesh, mesh_keys
from meshplan.search.ranking import Ranking

MODELS = ("llama-3.1-8b", "llama-3.2-1b", "mixtral-8x7b", "moonlight-16b-a3b")
MOST = 400_000
"""Plans priced one by one for the comparison."""


def question(seed: int) -> tuple[Setting, Space]:
    rng = random.Random(seed)
    model = load_model(rng.choice(MODELS))
    cluster = cluster_of(rng.choice(("h100-sxm", "a100-80gb", "h200")), rng.choice((4, 8, 16)))
    workload = Workload(seq=rng.choice((4096, 8192, 32768)), gbs=rng.choice((16, 32, 48)))
    framework = rng.choice(("megatron", "torchtitan", "any"))
    return Setting(model, cluster, workload), Space.of("full", model, framework)


def keys(plans: Plans) -> list[tuple[int, ...]]:
    return list(zip(*(getattr(plans, name).tolist() for name in MESH), strict=True))


def both(seed: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Ranking, Ranking]:
    setting, space = question(seed)
    monkeypatch.setattr(searching, "LARGE", 0)
    bounded = searching.search(*setting, space=space, advise=False)
    monkeypatch.setattr(searching, "LARGE", 10**18)
    if bounded.counts.candidates - sum(bounded.counts.removed.values()) > MOST:
        pytest.skip("too many plans to price one by one")
    return searching.search(*setting, space=space, advise=False, keep=10**7), bounded


@pytest.mark.parametrize("seed", range(14))
def test_the_best_plan_of_every_good_mesh_is_found(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    every, bounded = both(seed, monkeypatch)
    assert bool(len(every)) == bool(len(bounded))
    if not len(every):
        return
    best = float(every.costs.step_s.min())
    own = first_of_mesh(bounded.costs.plans)
    steps = bounded.costs.step_s[own].tolist()
    found = dict(zip(mesh_keys(bounded.costs.plans)[own].tolist(), steps, strict=True))
    assert min(found.values()) <= best * (1 + 2 * EPSILON)
    first = first_of_mesh(every.costs.plans)
    meshes, steps = mesh_keys(every.costs.plans)[first], every.costs.step_s[first]
    for key, step in zip(meshes.tolist(), steps.tolist(), strict=True):
        if step < best * (1 + NEAR / 2):
            assert found[key] <= step * (1 + 2 * EPSILON)


@pytest.mark.parametrize("seed", range(14))
def test_every_candidate_is_accounted_for(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    setting, space = question(seed)
    monkeypatch.setattr(searching, "LARGE", 0)
    counts = searching.search(*setting, space=space, advise=False).counts
    removed, skipped = sum(counts.removed.values()), sum(counts.skipped.values())
    assert counts.candidates == removed + counts.memory + counts.feasible + skipped
    assert min(counts.removed.values(), default=0) >= 0
    assert min(counts.skipped.values(), default=0) >= 0
    monkeypatch.setattr(searching, "LARGE", 10**18)
    if counts.candidates - removed <= MOST:
        every = searching.search(*setting, space=space, advise=False).counts
        assert every.candidates == counts.candidates
        assert sum(every.removed.values()) >= removed


@pytest.mark.parametrize("seed", range(14))
def test_bounds_are_bounds(seed: int) -> None:
    """No plan below a mesh takes less time or memory than the floors of the mesh, no plan with a pipeline
    less time than the floor of the pipeline, but for what other cuts and recomputed layers can shift."""
    setting, space = question(seed)
    model = cost_model_named()
    assert can_bound(model)
    assert isinstance(model, FullModel)
    join = Join(setting, space, rules_of(space.framework), Funnel(), cuts=True)
    meshes = Plans.concatenate(list(join.below(0, {}, stop=len(MESH))))
    rng = np.random.default_rng(seed)
    meshes = meshes.take(rng.permutation(len(meshes))[:40])
    step, memory = floors_of(meshes, join, model)
    below = Plans.concatenate(list(join.below(len(MESH), {n: getattr(meshes, n) for n in MESH})))
    below = below.take(rng.permutation(len(below))[:3000])
    costs = model.price(*setting, below)
    place = {key: i for i, key in enumerate(keys(meshes))}
    of = np.array([place[key] for key in keys(below)])
    assert (costs.step_s >= step[of] * (1 - 1e-9)).all()
    assert (costs.memory_bytes >= memory[of] * (1 - 1e-9)).all()
    one = np.ones(len(below), dtype=np.int64)
    least = costs.plans.replace(
        sharding=np.minimum(below.sharding, Sharding.ZERO1),
        recompute_layers=0 * one,
        recompute_modules=0 * one,
        replicas=one,
    )
    floor, _ = model.pipeline_floors(*setting, least, np.inf)
    assert (costs.step_s >= floor * (1 - 0.005)).all()


@pytest.mark.parametrize("seed", range(20, 34))
def test_whether_anything_fits(seed: int) -> None:
    setting, space = question(seed)
    space = Space.of("full", setting.model, space.framework, recompute=((AUTO_LAYERS, Recompute.NONE),))
    setting = setting._replace(cluster=cluster_of("a100-80gb", random.Random(seed).choice((1, 2, 4, 8))))
    found = searching.search(*setting, space=space, advise=False)
    assert any_fits(setting, space, rules_of(space.framework), cost_model_named()) == bool(len(found))


@pytest.mark.parametrize("objective", ["memory", "simplicity"])
def test_other_objectives(objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(load_model("llama-3.1-8b"), cluster_of("h100-sxm", 8), Workload(seq=8192, gbs=16))
    space = Space.of("full", setting.model, "megatron")
    found = []
    for large in (0, 10**18):
        monkeypatch.setattr(searching, "LARGE", large)
        ranking = searching.search(*setting, space=space, advise=False, objective=objective)  # type: ignore[arg-type]
        first = ranking.costs.memory_bytes if objective == "memory" else ranking.complexity
        found.append(float(first[0]))
        assert (np.diff(first) >= -1e-6 * first[0]).all()
    assert found[0] == pytest.approx(found[1], rel=1e-9)
