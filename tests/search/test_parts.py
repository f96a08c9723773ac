"""The parts of a step: none below zero, and their sum is the step."""

from __future__ import annotations

import numpy as np
import pytest

from meshplan.cluster.presets import cluster_of
from meshplan.model.load import load_model
from meshplan.plan.rules import Setting
from meshplan.plan.space import Space
from meshplan.plan.workload import Workload
from meshplan.search.fidelity import Fidelity
from meshplan.search.search import search


@pytest.mark.parametrize("fidelity", ["simulate", "estimate"])
def test_no_part_is_below_zero(fidelity: Fidelity) -> None:
    """Pipeline ranks with the same work, whose mean rounds to above the largest."""
    model = load_model("mixtral-8x7b")
    setting = Setting(model, cluster_of("a100-80gb", 96), Workload(seq=4096, gbs=192))
    costs = search(*setting, space=Space.of("small", model), fidelity=fidelity, sure=10).costs
    assert len(costs.step_s)
    for name, part in costs.time.items():
        assert (part >= 0).all(), name
    assert np.allclose(sum(costs.time.values()), costs.step_s, rtol=1e-12, atol=0)
