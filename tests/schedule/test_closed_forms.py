"""Closed forms against the simulation: exact where they claim it, bounded elsewhere."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from meshplan.errors import InputError
from meshplan.schedule.automatic import automatic_zero_bubble
from meshplan.schedule.closed_form import CODES, SEARCHED, bubbles, in_flight, step_time
from meshplan.schedule.generate import SCHEDULES, make_order
from meshplan.schedule.simulate import simulate

# Largest error of the step time with (equal stages, stages of ±20 %, hops of 5 % of a forward).
BOUNDS = {
    "gpipe": (0.0, 0.001, 0.001),
    "1f1b": (0.0, 0.07, 0.02),
    "interleaved": (0.0, 0.10, 0.02),
    "looped-bfs": (0.0, 0.11, 0.01),
    "zb-h1": (0.0, 0.07, 0.02),
    "zb-h2": (0.0, 0.10, 0.02),
    "zb-v": (0.0, 0.06, 0.04),
    "v-half": (0.02, 0.07, 0.05),
    "v-min": (0.02, 0.07, 0.05),
    "dualpipe": (0.0, 0.09, 0.03),
    "dualpipe-v": (0.0, 0.09, 0.05),
}


def worst_error(name: str, *, spread: float, hop: float, seed: int) -> float:
    """Largest relative error of ``step_time`` over random problems."""
    rng = np.random.default_rng(seed)
    worst = 0.0
    for _ in range(25):
        ranks = int(rng.choice([2, 4, 6, 8, 12, 16]))
        m = ranks * int(rng.integers(2, 7))
        vp = int(rng.integers(2, 5)) if name in ("interleaved", "looped-bfs") else None
        order = make_order(name, ranks=ranks, micro_batches=m, vp=vp)
        vp = order.stages // ranks
        size = rng.uniform(1 - spread, 1 + spread, order.stages) / vp
        f, b, w = size, size * rng.uniform(0.8, 1.6), size * rng.uniform(0.5, 1.1)
        overlap = bool(rng.integers(2))
        run = simulate(order, forward=f, backward_input=b, weight=w, p2p=hop, overlap_p2p=overlap)
        copies = 2 if name == "dualpipe" else 1
        held = [order.stages_of(r) for r in range(ranks)]
        busiest = held[int(np.argmax([size[h].sum() for h in held]))]
        most = [x[busiest].sum() / copies for x in (f, b, w)]
        total, bubble = step_time(
            CODES[name], ranks, vp, m, *most, f.sum(), b.sum(), w.sum(), hop, overlap_p2p=overlap
        )
        assert total == pytest.approx(bubble + m * sum(most))
        worst = max(worst, abs(float(total) / run.step - 1))
    return worst


@pytest.mark.parametrize("name", SCHEDULES)
def test_error_is_bounded(name: str) -> None:
    equal, uneven, hops = BOUNDS[name]
    assert worst_error(name, spread=0.0, hop=0.0, seed=1) <= equal + 1e-9
    assert worst_error(name, spread=0.2, hop=0.0, seed=2) <= uneven
    assert worst_error(name, spread=0.0, hop=0.05, seed=3) <= hops


# Largest error over the grid below with (equal stages, a heavier last stage and a lighter first one).
GRID_BOUNDS = {"zb-v": (0.05, 0.06), "v-half": (0.05, 0.10), "v-min": (0.06, 0.07)}


@pytest.mark.parametrize("name", GRID_BOUNDS)
@pytest.mark.parametrize("ends", [False, True])
def test_schedules_on_a_v_over_a_grid(name: str, ends: bool) -> None:
    """Few and many micro-batches, backward and weight gradient from less than the forward to nearly twice of
    it, with and without hops: a few per cent at most, in the median one to three."""
    errors = []
    for ranks, rounds in itertools.product((2, 4, 6, 8, 12), (2, 4, 12)):
        order = make_order(name, ranks=ranks, micro_batches=ranks * rounds)
        size = np.ones(2 * ranks) / 2
        if ends:
            size[0] *= 0.9
            size[-1] *= 1.3
        held = np.array([0, 2 * ranks - 1])
        for b, w, hop in itertools.product((0.9, 1.3, 1.8), (0.5, 1.1), (0.0, 0.05)):
            times = (size, b * size, w * size)
            run = simulate(order, **dict(zip(KINDS, times, strict=True)), p2p=hop / 2)
            sums = [x.sum() for x in times]
            total, _ = step_time(
                CODES[name], ranks, 2, ranks * rounds, *(x[held].sum() for x in times), *sums, hop / 2
            )
            errors.append(abs(float(total) / run.step - 1))
    assert max(errors) <= GRID_BOUNDS[name][ends]
    assert np.median(errors) <= 0.03


KINDS = ("forward", "backward_input", "weight")


@pytest.mark.parametrize("name", ["dualpipe", "dualpipe-v"])
def test_overlapped_pairs(name: str) -> None:
    rng = np.random.default_rng(4)
    for _ in range(25):
        ranks = int(rng.choice([2, 4, 8, 16]))
        m = ranks * int(rng.integers(2, 7))
        order = make_order(name, ranks=ranks, micro_batches=m)
        vp, share = order.stages // ranks, rng.uniform(0.65, 1.0)
        b, w = rng.uniform(0.9, 1.6), rng.uniform(0.5, 1.1)
        run = simulate(order, forward=1 / vp, backward_input=b / vp, weight=w / vp, pair_share=share)
        total, _ = step_time(
            CODES[name], ranks, vp, m, 1, b, w, ranks, b * ranks, w * ranks, pair_share=share
        )
        assert -0.01 <= float(total) / run.step - 1 <= 0.08


@pytest.mark.parametrize("name", ["dualpipe", "dualpipe-v"])
@pytest.mark.parametrize("spread", [0.0, 0.15])
def test_pairs_that_save_nothing(name: str, spread: float) -> None:
    """Stages equal, or not by up to 15 %, the last up to 1.4 times the others; hops hide beside pairs."""
    rng, errors = np.random.default_rng(8), []
    for _ in range(30):
        ranks = int(rng.choice([4, 8, 16]))
        m = ranks * int(rng.integers(2, 8))
        order = make_order(name, ranks=ranks, micro_batches=m)
        vp = order.stages // ranks
        size = rng.uniform(1 - spread, 1 + spread, order.stages) / vp
        size[-1] *= rng.uniform(1, 1.4) if spread else 1
        times = size, rng.uniform(0.9, 1.6) * size, rng.uniform(0.4, 1.1) * size
        hop = rng.choice([0.0, 0.05])
        run = simulate(order, **dict(zip(KINDS, times, strict=True)), p2p=hop, pair_share=1.0)
        ranked = [(x + x[::-1]) / 2 if vp == 1 else x[:ranks] + x[::-1][:ranks] for x in times]
        busy = int(np.argmax(sum(ranked)))
        sums, most = [x.sum() for x in ranked], [x[busy] for x in ranked]
        total, bubble = step_time(CODES[name], ranks, vp, m, *most, *sums, hop, pair_share=1.0)
        one = np.array([CODES[name]]), np.array([ranks]), np.array([vp]), np.array([float(m)])
        columns = [np.array([x]) for x in (*most, *sums, hop)]
        found = bubbles(*one, *columns, paired=True)
        assert float(sum(found)[0]) == pytest.approx(float(bubble), rel=1e-9)
        errors.append(float(total) / run.step - 1)
    low, high = (-0.01, 0.02) if spread == 0 else (-0.03, 0.06)
    assert low <= min(errors)
    assert max(errors) <= high
    assert np.median(np.abs(errors)) <= (0.01 if spread == 0 else 0.02)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("ranks", [2, 4, 6, 8, 16])
def test_in_flight_equals_the_simulation(name: str, ranks: int) -> None:
    for vp in (2, 3) if name in ("interleaved", "looped-bfs", "zb-h1") else (None,):
        order = make_order(name, ranks=ranks, micro_batches=4 * ranks, vp=vp)
        run = simulate(order, forward=1, backward_input=1, weight=1)
        stages = order.stages // ranks
        formula = in_flight(CODES[name], ranks, stages, 4 * ranks, np.arange(ranks))
        if name == "v-min":  # some ranks hold a stage less than the others
            assert (formula >= run.peak_in_flight / stages).all()
            assert formula.max() == run.peak_in_flight.max() / stages
        else:
            assert formula == pytest.approx(run.peak_in_flight / stages)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("ranks", "micro_batches"), [(16, 24), (8, 12), (6, 9), (4, 5), (8, 4), (6, 3)])
def test_in_flight_of_any_count(name: str, ranks: int, micro_batches: int) -> None:
    """Micro-batches that ranks do not divide, and fewer than ranks."""
    for vp in (2, 4) if name in ("interleaved", "looped-bfs", "zb-h1") else (None,):
        try:
            order = make_order(name, ranks=ranks, micro_batches=micro_batches, vp=vp, unfilled=True)
        except InputError:
            continue
        run = simulate(order, forward=1, backward_input=1, weight=1)
        stages = order.stages // ranks
        formula = in_flight(CODES[name], ranks, stages, micro_batches, np.arange(ranks))
        if name in ("v-half", "v-min"):
            assert (formula >= run.peak_in_flight / stages).all()
        else:
            assert formula == pytest.approx(run.peak_in_flight / stages)


def test_no_more_alive_than_micro_batches() -> None:
    assert in_flight([1, 2, 4, 5, 6, 9], 8, [1, 4, 1, 1, 2, 1], 2, 0).tolist() == [2, 2, 2, 2, 1.5, 2]


def test_fewer_micro_batches_than_ranks() -> None:
    for name in ("gpipe", "1f1b", "looped-bfs"):
        order = make_order(name, ranks=8, micro_batches=3, unfilled=True)
        vp = order.stages // 8
        run = simulate(order, forward=1 / vp, backward_input=1 / vp, weight=1 / vp)
        assert float(step_time(CODES[name], 8, vp, 3, 1, 1, 1, 8, 8, 8)[0]) == pytest.approx(run.step)


def test_one_rank_has_no_bubble() -> None:
    total, bubble = step_time(list(CODES.values()), 1, 1, 8, 1, 2, 3, 1, 2, 3, 0.5)
    assert (bubble == 0).all()
    assert (total == 48).all()


def test_a_table_of_plans_is_fast() -> None:
    """100,000 plans take some tens of milliseconds; broadcasting gives the shape of the table."""
    n = 100_000
    rng = np.random.default_rng(0)
    code, p = rng.integers(0, 11, n), rng.choice([2, 4, 8], n)
    began = time.process_time()
    total, bubble = step_time(code, p, 2, 4 * p, 1.0, 1.0, 1.0, p, p, p, 0.01)
    assert time.process_time() - began < 2
    assert total.shape == bubble.shape == (n,)
    assert np.isfinite(total).all()


@pytest.mark.parametrize(
    ("ranks", "micro_batches", "times", "hop"),
    # Milliseconds that the authors profiled of their 1.5, 6.2, 14.6 and 28.3 B models (arXiv 2401.10241).
    [
        (8, 24, (18.522, 18.086, 9.337), 0.601),
        (8, 32, (18.522, 18.086, 9.337), 0.601),
        (8, 24, (29.718, 29.444, 19.927), 0.527),
        (8, 64, (29.718, 29.444, 19.927), 0.527),
        (16, 48, (11.347, 11.248, 8.132), 0.577),
        (32, 96, (10.419, 10.207, 7.715), 0.408),
        (8, 32, (10.0, 15.0, 8.0), 0.0),
        (8, 16, (10.0, 10.0, 5.0), 0.0),
    ],
)
def test_a_searched_order_takes_what_the_heuristic_of_its_authors_finds(
    ranks: int, micro_batches: int, times: tuple[float, float, float], hop: float
) -> None:
    f, b, w = times
    order = automatic_zero_bubble(
        ranks=ranks, micro_batches=micro_batches, forward=f, backward_input=b, weight=w, p2p=hop,
        limit=2 * ranks,
    )  # fmt: skip
    run = simulate(order, forward=f, backward_input=b, weight=w, p2p=hop)
    total, _ = step_time(SEARCHED, ranks, 1, micro_batches, *times, *(ranks * t for t in times), hop)
    assert float(total) == pytest.approx(float(run.span.max()), rel=0.01)
