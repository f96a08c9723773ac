"""Nothing is dropped silently: every candidate is counted once, by what removed it or as feasible."""

from __future__ import annotations

import pytest

from meshplan.cluster.presets import cluster_of
from meshplan.cost.models import cost_model_named
from meshplan.model.load import load_model
from meshplan.plan.rules import FRAMEWORKS
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
from meshplan.search.objective import Objective
from meshplan.search.ranking import Counts, Ranking
from meshplan.search.search import search


def sum_of(counts: Counts) -> int:
    return sum(counts.removed.values()) + counts.memory + counts.feasible + sum(counts.skipped.values())


def ranked(name: str, gpu: str, gpus: int, seq: int, gbs: int, **asked: object) -> Ranking:
    model = load_model(name)
    size, framework = asked.pop("size", "plain"), asked.pop("framework", "any")
    fixed = {key: asked.pop(key) for key in ("tp", "pp", "vp", "mbs", "ep") if key in asked}
    space = Space.of(size, model, framework, **fixed)  # type: ignore[arg-type]
    return search(
        model,
        cluster_of(gpu, gpus),
        Workload(seq=seq, gbs=gbs),
        space=space,
        advise=False,
        **asked,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("size", ["plain", "small", "full"])
@pytest.mark.parametrize(
    ("name", "gpu", "gpus", "seq", "gbs"),
    [
        ("llama-2-7b", "a100-40gb", 8, 2048, 64),
        ("llama-3.1-8b", "h100-sxm", 24, 8192, 96),
        ("llama-3.1-70b", "h100-sxm", 8, 8192, 64),  # nothing fits
        ("qwen3-30b-a3b", "h100-sxm", 16, 4096, 128),
        ("deepseek-v2-lite", "b200-sxm", 16, 4096, 60),
        ("gemma-2-9b", "mi300x", 24, 8192, 36),
    ],
)  # fmt: skip
def test_counts_sum_to_the_candidates(name: str, gpu: str, gpus: int, seq: int, gbs: int, size: str) -> None:
    ranking = ranked(name, gpu, gpus, seq, gbs, size=size)
    assert sum_of(ranking.counts) == ranking.counts.candidates > 0
    assert min(ranking.counts.removed.values()) >= 0
    assert min(ranking.counts.skipped.values(), default=0) >= 0
    assert len(ranking) <= ranking.counts.feasible


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_counts_sum_in_every_framework(framework: str) -> None:
    for name in ("llama-3.1-8b", "qwen3-30b-a3b"):
        ranking = ranked(name, "h100-sxm", 16, 4096, 64, size="full", framework=framework)
        assert sum_of(ranking.counts) == ranking.counts.candidates


@pytest.mark.parametrize("objective", ["step", "mfu", "memory", "cost", "simplicity"])
@pytest.mark.parametrize("fidelity", ["estimate", "simulate"])
def test_counts_sum_whatever_ranks_the_plans(objective: Objective, fidelity: str) -> None:
    ranking = ranked(
        "llama-3.1-8b", "h100-sxm", 16, 8192, 64, size="full", objective=objective, fidelity=fidelity
    )
    assert sum_of(ranking.counts) == ranking.counts.candidates


def test_counts_sum_where_dimensions_are_fixed() -> None:
    for fixed in ({"tp": (3,)}, {"pp": (2, 4), "vp": (1, 2)}, {"mbs": (1,), "ep": (8, 16)}):
        ranking = ranked("qwen3-30b-a3b", "h100-sxm", 32, 4096, 64, size="small", **fixed)
        assert sum_of(ranking.counts) == ranking.counts.candidates


def test_counts_sum_in_the_textbook_model() -> None:
    ranking = ranked("llama-3.1-70b", "h100-sxm", 64, 8192, 512, cost_model=cost_model_named("handbook"))
    assert sum_of(ranking.counts) == ranking.counts.candidates
