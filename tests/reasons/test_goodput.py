"""Failures, checkpoints, money: published figures, formulas by hand, and a simulation of failing runs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from meshplan.cluster.presets import cluster_of, load_gpu
from meshplan.cost.handbook import Handbook
from meshplan.errors import InputError
from meshplan.goodput.checkpoint import checkpoint_of
from meshplan.goodput.failures import (
    Reliability,
    daly_interval_s,
    expected_losses,
    straggling,
    young_interval_s,
)
from meshplan.goodput.money import Power, Price, usual_power, usual_price
from meshplan.goodput.run import whole_run
from meshplan.model.load import load_model
from meshplan.plan.plans import Plan, Plans
from meshplan.plan.workload import Workload

HOUR = 3600.0
NODE_DAYS = 1000 * 86400.0


def test_young_and_daly_by_hand() -> None:
    """δ = 5 s, M = 3.1 h: sqrt(2 · 5 · 11160) = 334.07 s; Daly's factor 1 + x/3 + x²/9 with
    x = sqrt(5 / 22320) = 0.014967, less δ."""
    assert young_interval_s(5, 3.1 * HOUR) == pytest.approx(334.066, abs=0.01)
    assert daly_interval_s(5, 3.1 * HOUR) == pytest.approx(334.066 * 1.0050139 - 5, abs=0.01)
    assert daly_interval_s(100, 40) == 40


@pytest.mark.parametrize(("mtbf_h", "blocking", "restart"), [(3.1, 5, 600), (0.5, 30, 300), (24, 6.3, 660)])
def test_dalys_interval_is_the_best_one(mtbf_h: float, blocking: float, restart: float) -> None:
    def wall(interval: float) -> float:
        return expected_losses(
            1e6, interval_s=interval, blocking_s=blocking, restart_s=restart, mtbf_s=mtbf_h * HOUR
        ).wall_s

    tried = np.geomspace(blocking, mtbf_h * HOUR, 4000)
    best = min(wall(float(t)) for t in tried)
    assert wall(daly_interval_s(blocking, mtbf_h * HOUR)) == pytest.approx(best, rel=1e-4)


def _simulated(useful: float, interval: float, blocking: float, restart: float, mtbf: float, seed: int):
    """One run with failures drawn at random: wall time, restart time, failures."""
    rng = np.random.default_rng(seed)
    segments = round(useful / interval)
    wall = restarting = 0.0
    failures = done = 0
    alive = rng.exponential(mtbf)
    while done < segments:
        if alive >= interval + blocking:
            wall += interval + blocking
            alive -= interval + blocking
            done += 1
            continue
        wall += alive
        while True:  # restarts may fail too
            failures += 1
            alive = rng.exponential(mtbf)
            spent = min(alive, restart)
            wall += spent
            restarting += spent
            if alive > restart:
                alive -= restart
                break
    return wall, restarting, failures


@pytest.mark.parametrize(
    ("interval", "blocking", "restart", "mtbf"), [(300, 20, 600, 4000), (100, 10, 2000, 1000)]
)
def test_expected_losses_are_the_mean_of_simulated_runs(
    interval: float, blocking: float, restart: float, mtbf: float
) -> None:
    useful = interval * 400
    found = expected_losses(useful, interval_s=interval, blocking_s=blocking, restart_s=restart, mtbf_s=mtbf)
    runs = np.array([_simulated(useful, interval, blocking, restart, mtbf, seed) for seed in range(150)])
    mean, error = runs.mean(axis=0), 4 * runs.std(axis=0) / math.sqrt(len(runs))
    for value, at in zip((found.wall_s, found.restarts_s, found.failures), range(3), strict=True):
        assert abs(value - mean[at]) < error[at]
    parts = found.useful_s + found.checkpoints_s + found.lost_s + found.restarts_s
    assert parts == pytest.approx(found.wall_s, rel=1e-12)


def _run(gpus: int, reliability: Reliability | None, tokens: float = 1e12):
    model, workload = load_model("llama-3.1-405b"), Workload(seq=8192, gbs=2048)
    cluster = cluster_of("h100-sxm", gpus)
    plans = Plans.of(Plan(tp=8, pp=14, dp=1))
    costs = Handbook().price(model, cluster, workload, plans)
    power, price = Power(watts=700, source="hand"), Price(usd_per_hour=2, source="hand")
    return whole_run(
        model, workload, costs, gpus=gpus, tokens=tokens, reliability=reliability, price=price, power=power
    )


def test_llama_3_trained_more_than_nine_tenths_of_the_time() -> None:
    """arXiv 2407.21783, 3.3.4: over 90 % effective training time on 16,384 GPUs; stragglers apart, which
    were part of its steps."""
    run = _run(16384, Reliability(spread=0.0))
    assert 0.90 < run.goodput < 0.97
    assert run.mtbf_s is not None
    assert run.mtbf_s == pytest.approx(3.1 * HOUR, rel=0.02)


def test_megascale_trained_more_than_nine_tenths_of_the_time() -> None:
    """arXiv 2402.15627, 6.3: over 90 % on more than 10,000 GPUs."""
    assert _run(12288, Reliability(spread=0.0)).goodput > 0.90


def test_mean_time_to_failure_of_metas_research_clusters() -> None:
    """arXiv 2410.21680: 6.5 failures in 1,000 node-days: one in 1.8 h at 16,384 GPUs, 0.23 h at 131,072."""
    gpu_mttf = NODE_DAYS * 8 / 6.5
    for gpus, hours in ((16384, 1.8), (131072, 0.23)):
        run = _run(gpus, Reliability(gpu_mttf_s=gpu_mttf))
        assert run.mtbf_s == pytest.approx(hours * HOUR, rel=0.03)


def test_checkpoint_of_llama_3_405b() -> None:
    """405.85 B parameters of 14 bytes: 5.7 TB, read at the 2 TB/s of its storage in 3 s."""
    found = checkpoint_of(405.85e9, 16384)
    assert found.size_bytes == pytest.approx(5.68e12, rel=0.001)
    assert found.transfer_s == pytest.approx(2.84, rel=0.001)


def test_the_slowest_of_many() -> None:
    """sqrt(2 ln n) deviations bound the expected maximum of n normal values from above, and are near it."""
    rng = np.random.default_rng(1)
    for n in (64, 2048):
        seen = rng.standard_normal((2000, n)).max(axis=1).mean()
        assert 0.75 < seen / straggling(n, 1.0) <= 1.0
    assert straggling(1, 0.01) == 0.0


def test_without_failures_only_steps_are_left() -> None:
    run = _run(16384, None, tokens=8192 * 2048 * 1000)
    assert (run.steps, run.goodput, run.losses.failures) == (1000, 1.0, 0.0)
    assert run.wall_s == pytest.approx(1000 * run.step_s)
    assert run.gpu_hours == pytest.approx(16384 * 1000 * run.step_s / 3600)
    assert run.usd == pytest.approx(2 * run.gpu_hours)
    assert run.energy_j == pytest.approx(700 * 3600 * run.gpu_hours)


def test_half_a_step_is_a_whole_one() -> None:
    assert _run(16384, None, tokens=8192 * 2048 * 2.5).steps == 3
    assert _run(16384, None, tokens=8192 * 2048 * 3.0).steps == 3


def test_failures_that_leave_no_time_are_refused() -> None:
    with pytest.raises(InputError, match="leaves no time to work"):
        _run(16384, Reliability(gpu_mttf_s=3600.0))
    with pytest.raises(InputError, match="positive time"):
        Reliability(restart_s=0)
    with pytest.raises(InputError, match="tokens must be"):
        _run(16384, None, tokens=0.5)


def test_prices_and_powers_name_their_sources() -> None:
    price = usual_price(load_gpu("h800"))
    assert price is not None
    assert (price.usd_per_hour, price.source[:5]) == (2.0, "arXiv")  # arXiv 2412.19437, table 1
    assert usual_price(load_gpu("ascend-910b")) is None
    power = usual_power(load_gpu("h100-sxm"))
    assert power.watts == 700  # as Meta counts for Llama 3.1 in its model card
    assert power.source
