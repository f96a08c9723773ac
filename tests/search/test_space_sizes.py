"""A larger space is never worse: its best plan is as fast as that of the smaller one, in every framework."""

from __future__ import annotations

import pytest

from meshplan.cluster.presets import cluster_of
from meshplan.model.load import load_model
from meshplan.plan.rules import FRAMEWORKS, Setting
from meshplan.plan.space import SIZES, Space
from meshplan.plan.workload import Workload
from meshplan.search.search import search

QUESTIONS = {
    "a pipeline": ("llama-3.1-70b", "h100-sxm", 64, 8192, 512),
    "large micro-batches": ("gpt2", "h100-sxm", 16, 1024, 512),
    "experts": ("mixtral-8x7b", "h100-sxm", 32, 4096, 256),
}


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_larger_space_is_never_slower(framework: str, question: str) -> None:
    name, gpu, gpus, seq, gbs = QUESTIONS[question]
    model = load_model(name)
    setting = Setting(model, cluster_of(gpu, gpus), Workload(seq=seq, gbs=gbs))
    rankings = [search(*setting, space=Space.of(size, model, framework), advise=False) for size in SIZES]
    plain, small, full = (float(found.costs.step_s.min()) if len(found) else None for found in rankings)
    assert plain is None or (small is not None and small <= plain * (1 + 1e-9)), "small"
    assert small is None or (full is not None and full <= small * (1 + 1e-9)), "full"
    every = [set(Space.of(size, model, framework).sharding) for size in SIZES]
    assert every[0] <= every[1] <= every[2], "shardings"
