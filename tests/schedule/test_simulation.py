"""The simulation against brute force, closed forms that are exact, and counts known from elsewhere."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from meshplan.errors import InputError
from meshplan.schedule.generate import SCHEDULES, make_order
from meshplan.schedule.order import Order, assemble, program
from meshplan.schedule.simulate import simulate, simulate_batch

Times = dict[tuple[str, int, int], float]


def brute_force(order: Order, f: Any, i: Any, w: Any, hop: Any, *, overlap: bool) -> Times:
    """Start of every action: all constraints relaxed over and over until none moves anything.

    Shares nothing with the code under test but the order: dictionaries of actions, no sequence.
    """
    home: dict[tuple[str, int, int], int] = {}
    rows = [[(a.kind, a.stage, a.micro_batch) for a in order.of_rank(r)] for r in range(order.ranks)]
    for rank, row in enumerate(rows):
        home.update(dict.fromkeys(row, rank))
    work = {
        (k, s, j): {"F": f[s, j], "B": i[s, j] + w[s, j], "I": i[s, j], "W": w[s, j]}[k] for (k, s, j) in home
    }
    last = order.stages - 1

    def gradient(stage: int, j: int) -> tuple[str, int, int]:
        return ("I", stage, j) if ("I", stage, j) in home else ("B", stage, j)

    needs: list[tuple[tuple[str, int, int], tuple[str, int, int], float]] = []
    held = dict.fromkeys(home, 0.0)
    for kind, s, j in list(home):
        source, boundary = None, -1
        if kind == "F" and s > 0:
            source, boundary = ("F", s - 1, j), s - 1
        elif kind in "BI":
            source, boundary = (("F", s, j), -1) if s == last else (gradient(s + 1, j), s)
        elif kind == "W":
            source = ("I", s, j)
        if source is not None:
            away = home[source] != home[kind, s, j]
            needs.append((source, (kind, s, j), hop[boundary] if away else 0.0))
            held[source] += hop[boundary] if away and not overlap else 0.0
    for row in rows:
        needs += [(a, b, held[a]) for a, b in itertools.pairwise(row)]
    start = dict.fromkeys(home, 0.0)
    moved = True
    while moved:
        moved = False
        for a, b, wait in needs:
            earliest = start[a] + work[a] + wait
            if earliest > start[b] + 1e-12:
                start[b], moved = earliest, True
    return start


def random_order(rng: np.random.Generator, ranks: int, vp: int, micro_batches: int) -> Order:
    """Any valid order: play the pipeline, each time a random action that could run now."""
    stages = ranks * vp
    rank_of = rng.permuted(np.arange(stages) % ranks)
    rows: list[list[tuple[int, int, int]]] = [[] for _ in range(ranks)]
    split = rng.random((stages, micro_batches)) < 0.5
    can = [(0, 0, j) for j in range(micro_batches)]
    while can:
        kind, s, j = can.pop(int(rng.integers(len(can))))
        rows[rank_of[s]].append((kind, s, j))
        backward = 2 if split[s - 1 if kind else s, j] else 1
        if kind == 0:
            can.append((0, s + 1, j) if s + 1 < stages else (backward, s, j))
        elif kind in (1, 2):
            can += [(3, s, j)] * (kind == 2)
            can += [(backward, s - 1, j)] * (s > 0)
    return assemble("random", stages=stages, micro_batches=micro_batches, programs=[program(r) for r in rows])


def random_times(rng: np.random.Generator, order: Order) -> tuple[np.ndarray, ...]:
    shape = (order.stages, order.micro_batches)
    return (*(rng.random(shape) + 0.1 for _ in range(3)), rng.random(max(order.stages - 1, 1)) * 0.5)


def agree(order: Order, f: Any, i: Any, w: Any, hop: Any, *, overlap: bool) -> None:
    run = simulate(order, forward=f, backward_input=i, weight=w, p2p=hop, overlap_p2p=overlap)
    expected = brute_force(order, f, i, w, hop, overlap=overlap)
    for index in range(len(order)):
        action = order.action(index)
        assert run.start[index] == pytest.approx(expected[tuple(action)], abs=1e-9), action


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("overlap", [True, False])
def test_brute_force_named(name: str, overlap: bool) -> None:
    rng = np.random.default_rng(1)
    for ranks, micro_batches in ((2, 4), (4, 8)):
        order = make_order(name, ranks=ranks, micro_batches=micro_batches)
        agree(order, *random_times(rng, order), overlap=overlap)


@pytest.mark.parametrize("seed", range(60))
def test_brute_force_any_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    order = random_order(rng, int(rng.integers(1, 5)), int(rng.integers(1, 4)), int(rng.integers(1, 6)))
    agree(order, *random_times(rng, order), overlap=bool(seed % 2))


@pytest.mark.parametrize("ranks", [1, 2, 4, 7])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_published_bubbles(ranks: int, rounds: int) -> None:
    """Narayanan et al. 2.2 (arXiv 2104.04473); zero-bubble tables 1 and 2 (arXiv 2401.10241)."""
    m, f, b, w = ranks * rounds, 3.0, 4.0, 2.0
    ideal = m * (f + b + w)

    def step(name: str, vp: int | None = None) -> float:
        order = make_order(name, ranks=ranks, micro_batches=m, vp=vp)
        n = order.stages // ranks
        return simulate(order, forward=f / n, backward_input=b / n, weight=w / n).step

    ramp = (ranks - 1) * (f + b + w)
    assert step("gpipe") == pytest.approx(ideal + ramp)
    assert step("1f1b") == pytest.approx(ideal + ramp)
    for vp in (2, 3, 4):
        assert step("interleaved", vp) == pytest.approx(ideal + ramp / vp)
        assert step("looped-bfs", vp) == pytest.approx(ideal + ramp / vp)
    assert step("zb-h1") == pytest.approx(ideal + (ranks - 1) * (f + b - w))


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_zero_bubble_is_zero(ranks: int) -> None:
    """With F = B = W no rank of ZB-H2 and ZB-V waits between its first and last action."""
    for name in ("zb-h2", "zb-v"):
        run = simulate(
            make_order(name, ranks=ranks, micro_batches=4 * ranks), forward=1, backward_input=1, weight=1
        )
        assert run.wait == pytest.approx(np.zeros(ranks))
    # Unequal times: (p - 1)(F + B - 2W), zero-bubble paper table 2, from each rank's own start.
    run = simulate(
        make_order("zb-h2", ranks=ranks, micro_batches=4 * ranks), forward=3, backward_input=4, weight=2
    )
    assert run.span.max() == pytest.approx(4 * ranks * 9 + (ranks - 1) * (3 + 4 - 4))


@pytest.mark.parametrize("ranks", [2, 4, 5, 8])
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_in_flight_1f1b_on_every_stage(ranks: int, rounds: int) -> None:
    """Megatron-LM schedules.py: p - i - 1 warm-up forwards and one more."""
    run = simulate(
        make_order("1f1b", ranks=ranks, micro_batches=rounds * ranks), forward=1, backward_input=1, weight=1
    )
    assert run.peak_in_flight.tolist() == [min(rounds * ranks, ranks - i) for i in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 4, 6])
@pytest.mark.parametrize("vp", [2, 3, 5])
@pytest.mark.parametrize(("rounds", "wider"), [(1, 0), (3, 0), (3, 1)])
def test_in_flight_interleaved_on_every_stage(ranks: int, vp: int, rounds: int, wider: int) -> None:
    """Megatron-LM schedules.py: min(m v, 2 (p - i - 1) + (v - 1) N + 1) stage forwards, N the group size."""
    group = ranks + wider
    m = rounds * group
    order = make_order("interleaved", ranks=ranks, micro_batches=m, vp=vp, group=group)
    run = simulate(order, forward=1, backward_input=1, weight=1)
    expected = [min(m * vp, 2 * (ranks - i - 1) + (vp - 1) * group + 1) for i in range(ranks)]
    assert run.peak_in_flight.tolist() == expected


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_in_flight_of_the_zero_bubble_family(ranks: int) -> None:
    """Published peaks in micro-batches: zero-bubble table 2; V-Half (p + 2) // 2 and V-Min (p + 4) // 3
    (arXiv 2405.15362 and its scheduler's page); DualPipe p + 1 (its README)."""
    peaks = {
        "zb-h1": ranks, "zb-h2": 2 * ranks - 1, "zb-v": ranks, "v-half": (ranks + 2) // 2,
        "v-min": (ranks + 4) // 3, "dualpipe": ranks + 1,
    }  # fmt: skip
    for name, peak in peaks.items():
        order = make_order(name, ranks=ranks, micro_batches=6 * ranks)
        run = simulate(order, forward=1, backward_input=1, weight=1)
        assert run.peak_in_flight.max() / (order.stages / ranks) == peak, name


def test_zb_h1_memory_by_rank() -> None:
    """Zero-bubble paper 2.3: worker i (from 1) holds (p - i + 1) M_B + (i - 1) M_W."""
    p, kept = 6, 0.4
    run = simulate(make_order("zb-h1", ranks=p, micro_batches=24), forward=1, backward_input=1, weight=1)
    peak = run.memory(10.0, freed_by_input=1 - kept).peak
    assert peak == pytest.approx([10 * (p - i + 1) + 10 * kept * (i - 1) for i in range(1, p + 1)])


def test_memory_by_hand() -> None:
    order = make_order("1f1b", ranks=2, micro_batches=3)
    memory = simulate(order, forward=1, backward_input=1, weight=1).memory([5.0, 7.0])
    # rank 0: F0 F1 B0 F2 B1 B2
    assert memory.during[:6].tolist() == [5, 10, 10, 10, 10, 5]
    assert memory.after[:6].tolist() == [5, 10, 5, 10, 5, 0]
    assert memory.peak.tolist() == [10, 7]
    with pytest.raises(InputError, match="one number or 2"):
        simulate(order, forward=1, backward_input=1, weight=1).memory([1.0, 2.0, 3.0])


def test_one_slow_micro_batch_by_hand() -> None:
    """Two ranks of GPipe; micro-batch 1 takes 10 forward on the last stage."""
    forward = np.array([[1.0, 1.0], [1.0, 10.0]])
    order = make_order("gpipe", ranks=2, micro_batches=2)
    run = simulate(order, forward=forward, backward_input=[1, 2], weight=1)
    # last stage: F0 1-2, F1 2-12, B0 12-15, B1 15-18; first stage: B0 15-17, B1 18-20
    assert run.step == 20
    assert [str(m) for m in run.critical_path()] == [
        "rank 0: 0F0", "rank 1: 1F0", "rank 1: 1F1", "rank 1: 1B0", "rank 1: 1B1", "rank 0: 0B1",
    ]  # fmt: skip
    assert run.busy.tolist() == [6, 17]
    assert run.bubble == pytest.approx(1 - 23 / 40)


def test_transfers_by_hand() -> None:
    order = make_order("gpipe", ranks=2, micro_batches=2)
    # With overlap: 0F0 0-1, 1F0 2-3 (after a hop of 1), 1F1 3-4, 1B0 4-6, 1B1 6-8, 0B1 9-11.
    assert simulate(order, forward=1, backward_input=1, weight=1, p2p=1).step == 11
    # Held: 0F0 0-1, sends until 2, 0F1 2-3, sends until 4; 1F1 4-5, 1B0 5-7, sends until 8,
    # 1B1 8-10, 0B1 11-13.
    held = simulate(order, forward=1, backward_input=1, weight=1, p2p=1, overlap_p2p=False)
    assert held.step == 13
    assert held.busy.tolist() == [6, 6]


def test_turns_of_a_v_cost_no_transfer() -> None:
    order = make_order("zb-v", ranks=1, micro_batches=4)
    assert simulate(order, forward=1, backward_input=1, weight=1, p2p=100).step == 24


def test_tail_counts_as_work() -> None:
    run = simulate(
        make_order("1f1b", ranks=2, micro_batches=2), forward=1, backward_input=1, weight=1, tail=[0, 5]
    )
    # the last rank ends its pipeline part one backward (2) before the first one
    assert run.finish.tolist() == [9, 12]
    assert run.step == 12
    assert run.busy.tolist() == [6, 11]


def test_overlapped_pairs() -> None:
    order = make_order("dualpipe-v", ranks=2, micro_batches=8)
    times = {"forward": 1.0, "backward_input": 1.0, "weight": 1.0}
    apart = simulate(order, **times)
    together = simulate(order, **times, pair_share=1.0)
    shorter = simulate(order, **times, pair_share=0.7)
    assert apart.step <= together.step
    assert shorter.step < apart.step
    first = np.flatnonzero(order.paired)
    assert (shorter.start[first] == shorter.start[first + 1]).all()
    assert shorter.end[first] - shorter.start[first] == pytest.approx(np.full(len(first), 0.7 * 3))
    assert shorter.busy[0] == pytest.approx(8 * 2 * 3 - 0.3 * 3 * order.paired[: order.first[1]].sum())


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_batch_is_many_runs(name: str) -> None:
    rng = np.random.default_rng(5)
    order = make_order(name, ranks=4, micro_batches=8)
    f, i, w = (rng.random((5, order.stages)) for _ in range(3))
    hop, tail = rng.random((5, order.stages - 1)), rng.random((5, 4))
    for more in ({}, {"overlap_p2p": False}, {"pair_share": 0.8}):
        batch = simulate_batch(order, forward=f, backward_input=i, weight=w, p2p=hop, tail=tail, **more)  # type: ignore[arg-type]
        for k in range(5):
            run = simulate(
                order, forward=f[k], backward_input=i[k], weight=w[k], p2p=hop[k], tail=tail[k], **more
            )  # type: ignore[arg-type]
            assert batch.step[k] == pytest.approx(run.step)
            assert batch.finish[k] == pytest.approx(run.finish)
            assert batch.busy[k] == pytest.approx(run.busy)
            assert batch.bubble[k] == pytest.approx(run.bubble)


def test_a_batch_by_micro_batch() -> None:
    rng = np.random.default_rng(6)
    order = make_order("zb-h1", ranks=3, micro_batches=6)
    f = rng.random((4, 3, 6))
    batch = simulate_batch(order, forward=f, backward_input=0.5, weight=0.25)
    steps = [simulate(order, forward=one, backward_input=0.5, weight=0.25).step for one in f]
    assert batch.step == pytest.approx(steps)


@pytest.mark.parametrize("name", SCHEDULES)
def test_parts_sum_to_the_step(name: str) -> None:
    rng = np.random.default_rng(8)
    order = make_order(name, ranks=4, micro_batches=8)
    f, i, w, hop = random_times(rng, order)
    run = simulate(order, forward=f, backward_input=i, weight=w, p2p=hop)
    assert run.busy + run.idle == pytest.approx(np.full(4, run.step))
    fill, drain = run.begin[order.first[:-1]], run.step - run.pipeline_end
    assert fill + run.wait + drain == pytest.approx(run.idle)
    copies = 2 if name == "dualpipe" else 1
    assert run.busy.sum() == pytest.approx((f + i + w).sum())
    assert copies * order.stages * order.micro_batches == copies * f.size


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_critical_path_has_no_slack(name: str) -> None:
    rng = np.random.default_rng(9)
    order = make_order(name, ranks=4, micro_batches=8)
    f, i, w, hop = random_times(rng, order)
    run = simulate(order, forward=f, backward_input=i, weight=w, p2p=hop)
    path = run.critical_path()
    assert path[0].start == 0.0
    assert path[-1].end == run.step
    for a, b in itertools.pairwise(path):
        transfer = 0.0 if a.rank == b.rank else hop[min(a.stage, b.stage)]
        assert b.start - a.end == pytest.approx(transfer, abs=1e-9)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"forward": -1.0}, "forward must be 0 or more seconds, not -1.0"),
        ({"weight": float("nan")}, "weight must be 0 or more seconds, not nan"),
        (
            {"backward_input": [1, 1, float("inf"), 1]},
            "backward_input must be 0 or more seconds, not inf at 2",
        ),
        ({"forward": [1, 2, 3]}, "forward has 3 values; it needs one number or 4 or 4 × 8"),
        ({"p2p": [1, 2]}, "p2p has 2 values; it needs one number or 3"),
        ({"tail": -0.5}, "tail must be 0 or more"),
        ({"pair_share": 0.0}, "pair_share must be above 0"),
        ({"forward": "x"}, "forward must be numbers"),
    ],
)
def test_bad_durations(change: dict[str, Any], sentence: str) -> None:
    order = make_order("1f1b", ranks=4, micro_batches=8)
    with pytest.raises(InputError) as error:
        simulate(order, **{"forward": 1.0, "backward_input": 1.0, "weight": 1.0, **change})
    assert sentence in str(error.value)


def test_nothing_takes_no_time() -> None:
    run = simulate(make_order("zb-v", ranks=2, micro_batches=4), forward=0, backward_input=0, weight=0)
    assert run.step == 0
    assert run.bubble == 0
    assert run.critical_path()[0].start == 0


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("seed", range(4))
def test_long_runs_skip_nothing_that_matters(name: str, seed: int) -> None:
    """Where a run repeats itself ``simulate`` leaves periods out; ``simulate_batch`` never does."""
    rng = np.random.default_rng(seed)
    ranks = int(rng.choice([2, 3, 4, 8])) if name != "dualpipe" else 4
    order = make_order(name, ranks=ranks, micro_batches=ranks * int(rng.integers(12, 30)))
    spread = (0.0, 0.01, 0.3, 1.0)[seed]
    f, i, w = (1 + spread * rng.random((1, order.stages)) for _ in range(3))
    hop = 0.2 * rng.random((1, order.stages - 1)) * (seed % 2)
    more: dict[str, Any] = {"overlap_p2p": seed < 2, "pair_share": 0.8 if seed == 3 else None}
    run = simulate(order, forward=f[0], backward_input=i[0], weight=w[0], p2p=hop[0], tail=0.5, **more)
    every = simulate_batch(order, forward=f, backward_input=i, weight=w, p2p=hop, tail=0.5, **more)
    assert run.finish == pytest.approx(every.finish[0], rel=1e-11)
    assert run.busy == pytest.approx(every.busy[0], rel=1e-11)
    # Given micro-batch by micro-batch the same durations are played through in full.
    whole = (np.repeat(x.T, order.micro_batches, axis=1) for x in (f, i, w))
    full = simulate(
        order, **dict(zip(("forward", "backward_input", "weight"), whole, strict=True)), p2p=hop[0], **more
    )
    assert run.start == pytest.approx(full.start, rel=1e-11, abs=1e-9)
    assert run.end == pytest.approx(full.end, rel=1e-11, abs=1e-9)
    assert run.release == pytest.approx(full.release, rel=1e-11, abs=1e-9)


@pytest.mark.parametrize("name", SCHEDULES)
def test_runs_that_change_late_are_played_right(name: str) -> None:
    """Stages that differ by little: which rank is waited for changes after many periods, not at once."""
    rng = np.random.default_rng(11)
    for ranks, rounds, spread, hop in ((4, 60, 1e-2, 0.0), (8, 30, 1e-3, 0.02), (6, 40, 0.05, 0.3)):
        order = make_order(name, ranks=ranks, micro_batches=ranks * rounds)
        f, i, w = (1 + spread * rng.random((1, order.stages)) for _ in range(3))
        run = simulate(order, forward=f[0], backward_input=i[0], weight=w[0], p2p=hop)
        every = simulate_batch(order, forward=f, backward_input=i, weight=w, p2p=hop)
        assert run.pipeline_end == pytest.approx(every.finish[0], rel=1e-10)
        whole = (np.repeat(x.T, order.micro_batches, axis=1) for x in (f, i, w))
        full = simulate(
            order, **dict(zip(("forward", "backward_input", "weight"), whole, strict=True)), p2p=hop
        )
        assert run.release == pytest.approx(full.release, rel=1e-10)


def test_transfers_that_go_round_all_ranks_are_skipped_too() -> None:
    """With transfers 1F1B does the same again only after as many micro-batches as are under way."""
    order = make_order("1f1b", ranks=8, micro_batches=1024)
    run = simulate(order, forward=1, backward_input=1, weight=1, p2p=0.1)
    assert len(run.times.ends) < len(order) / 4


def test_long_runs_do_skip() -> None:
    order = make_order("1f1b", ranks=4, micro_batches=512)
    run = simulate(order, forward=1, backward_input=1, weight=1)
    assert len(run.times.ends) < len(order) / 10
    assert run.step == (512 + 3) * 3
