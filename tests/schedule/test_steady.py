"""Orders with their repeating middle left out, against the whole order simulated."""

from __future__ import annotations

import numpy as np
import pytest

from meshplan.errors import InputError
from meshplan.schedule.generate import SCHEDULES, make_order, smallest_group, usual_group
from meshplan.schedule.simulate import simulate
from meshplan.schedule.steady import order_of, peak_alive, pipeline_ends


def problems(name: str, seed: int) -> list[tuple[int, int, list[int]]]:
    """(ranks, stages a rank, micro-batches of some runs), many of them longer than the order played."""
    rng = np.random.default_rng(seed)
    kind = SCHEDULES[name]
    found = []
    for ranks in (1, 2, 4, 6, 8):
        if kind.even and ranks % 2:
            continue
        for vp in (2, 3) if kind.vp is None else (kind.vp,):
            counts = sorted({ranks * int(rng.integers(2, 5)), ranks * int(rng.integers(8, 30)), 9 * ranks})
            found.append((ranks, vp, [count + count % 2 if kind.even else count for count in counts]))
    return found


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("spread", [0.0, 0.3])
@pytest.mark.parametrize("overlap", [True, False])
def test_as_the_whole_order(name: str, spread: float, overlap: bool) -> None:
    """Same ends of every rank, whether stages are equal but for the ends or differ by 30 %."""
    rng = np.random.default_rng(7)
    for ranks, vp, counts in problems(name, 3):
        stages = order_of(name, ranks=ranks, micro_batches=counts[0], vp=vp).stages
        size = rng.uniform(1 - spread, 1 + spread, (len(counts), stages)) / vp
        size[:, -1] *= 1.3
        f, b, w = size, 1.4 * size, 0.8 * size
        hop = rng.choice([0.0, 0.05], len(counts))
        ends = pipeline_ends(
            name, ranks=ranks, vp=vp, micro_batches=counts, forward=f, backward_input=b, weight=w, p2p=hop,
            overlap_p2p=overlap,
        )  # fmt: skip
        for i, count in enumerate(counts):
            order = order_of(name, ranks=ranks, micro_batches=count, vp=vp)
            run = simulate(
                order, forward=f[i], backward_input=b[i], weight=w[i], p2p=hop[i], overlap_p2p=overlap
            )
            assert ends[i] == pytest.approx(run.pipeline_end, rel=1e-9)


@pytest.mark.parametrize("name", ["dualpipe", "dualpipe-v"])
@pytest.mark.parametrize("share", [0.8, 1.0])
def test_pairs_as_the_whole_order(name: str, share: float) -> None:
    rng = np.random.default_rng(11)
    for ranks, vp, counts in problems(name, 6):
        stages = order_of(name, ranks=ranks, micro_batches=counts[0], vp=vp).stages
        f, b, w = (rng.uniform(0.8, 1.2, (len(counts), stages)) for _ in range(3))
        ends = pipeline_ends(
            name, ranks=ranks, vp=vp, micro_batches=counts, forward=f, backward_input=b, weight=w, p2p=0.05,
            pair_share=share,
        )  # fmt: skip
        for i, count in enumerate(counts):
            order = order_of(name, ranks=ranks, micro_batches=count, vp=vp)
            run = simulate(order, forward=f[i], backward_input=b[i], weight=w[i], p2p=0.05, pair_share=share)
            assert ends[i] == pytest.approx(run.pipeline_end, rel=1e-9)


@pytest.mark.parametrize("name", SCHEDULES)
def test_many_runs_at_once(name: str) -> None:
    """Enough runs that they are played in arrays, some of them settled only late or never."""
    rng = np.random.default_rng(5)
    ranks, vp = 4, SCHEDULES[name].vp or 2
    stages = order_of(name, ranks=ranks, micro_batches=8, vp=vp).stages
    counts = rng.choice([16, 40, 80, 96], 150)
    f, b, w = (rng.uniform(0.8, 1.2, (150, stages)) for _ in range(3))
    ends = pipeline_ends(
        name, ranks=ranks, vp=vp, micro_batches=counts, forward=f, backward_input=b, weight=w
    )
    for i in range(0, 150, 15):
        order = order_of(name, ranks=ranks, micro_batches=int(counts[i]), vp=vp)
        run = simulate(order, forward=f[i], backward_input=b[i], weight=w[i])
        assert ends[i] == pytest.approx(run.pipeline_end, rel=1e-9)


@pytest.mark.parametrize("name", SCHEDULES)
def test_activations_alive(name: str) -> None:
    rng = np.random.default_rng(9)
    for ranks, vp, counts in problems(name, 4):
        stages = order_of(name, ranks=ranks, micro_batches=counts[0], vp=vp).stages
        kept = rng.uniform(1, 2, (3, stages))
        for count in counts:
            run = simulate(
                order_of(name, ranks=ranks, micro_batches=count, vp=vp), forward=1, backward_input=1, weight=1
            )
            found = peak_alive(name, ranks=ranks, vp=vp, micro_batches=count, activations=kept)
            for i in range(3):
                assert found[i] == pytest.approx(run.memory(kept[i]).peak)


@pytest.mark.parametrize(("ranks", "micro_batches"), [(16, 120), (16, 24), (8, 20), (4, 10), (6, 45), (8, 5)])
def test_the_usual_group_is_the_smallest_that_works(ranks: int, micro_batches: int) -> None:
    group = usual_group("interleaved", ranks=ranks, micro_batches=micro_batches, vp=2)
    assert group == smallest_group(ranks, micro_batches)
    order = make_order(
        "interleaved", ranks=ranks, micro_batches=micro_batches, vp=2, group=group, unfilled=True
    )
    assert order.micro_batches == micro_batches
    if micro_batches % max(1, micro_batches // ranks):  # no equal rounds, as PyTorch has them
        for smaller in range(ranks, group):
            with pytest.raises(InputError, match="leave a last group"):
                make_order("interleaved", ranks=ranks, micro_batches=micro_batches, vp=2, group=smaller)
    assert usual_group("zb-v", ranks=ranks, micro_batches=micro_batches, vp=2) is None


def test_counts_no_schedule_accepts() -> None:
    one = np.ones((1, 4))
    with pytest.raises(InputError, match="even number of micro-batches"):
        pipeline_ends(
            "dualpipe", ranks=4, vp=1, micro_batches=33, forward=one, backward_input=one, weight=one
        )
