"""Orders: the rules of each schedule, what users get wrong, files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshplan.errors import InputError, UnknownNameError
from meshplan.schedule.closed_form import CODES
from meshplan.schedule.generate import SCHEDULES, make_order, usual_group
from meshplan.schedule.graph import check, graph
from meshplan.schedule.order_file import order_dict, parse_order, read_order_file
from meshplan.schedule.vshape import building_block


def words(order: Any, rank: int) -> str:
    return " ".join(map(str, order.of_rank(rank)))


def test_1f1b_by_hand() -> None:
    order = make_order("1f1b", ranks=2, micro_batches=3)
    assert words(order, 0) == "0F0 0F1 0B0 0F2 0B1 0B2"
    assert words(order, 1) == "1F0 1B0 1F1 1B1 1F2 1B2"


def test_zb_h2_by_hand() -> None:
    # Figure 3 (bottom) of arXiv 2401.10241: rank 0 of 4 starts with 7 forwards, rank 3 with 1, and
    # rank 3 does its first weight gradient after the backward of micro-batch 6.
    order = make_order("zb-h2", ranks=4, micro_batches=8)
    assert words(order, 0).startswith("0F0 0F1 0F2 0F3 0F4 0F5 0F6 0I0 0W0 0F7 0I1 0W1")
    assert words(order, 3).startswith("3F0 3I0 3F1 3I1")
    assert "3I6 3W0" in words(order, 3)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (4, 8), (4, 12), (6, 24), (8, 16)])
def test_every_order_is_complete_and_finishes(name: str, ranks: int, micro_batches: int) -> None:
    order = make_order(name, ranks=ranks, micro_batches=micro_batches)
    check(order)
    assert len(graph(order).sequence) == len(order)
    if order.paired.any():
        assert len(graph(order, together=True).sequence) == len(order)


def test_names_have_the_codes_of_the_plan_table() -> None:
    from meshplan.plan.kinds import Schedule

    assert {s.label: int(s) for s in Schedule} == CODES
    assert list(SCHEDULES) == list(CODES)


def test_placements() -> None:
    assert make_order("interleaved", ranks=4, micro_batches=8, vp=3).stages_of(1) == [1, 5, 9]
    assert make_order("zb-v", ranks=4, micro_batches=8).stages_of(1) == [1, 6]
    assert make_order("dualpipe", ranks=4, micro_batches=8).stages_of(1) == [1, 2]


def test_interleaved_groups_as_megatron() -> None:
    # Megatron: micro-batches % group is 0 or at least the number of ranks.
    order = make_order("interleaved", ranks=2, micro_batches=6, vp=2, group=3)
    forwards = [a for a in order.of_rank(0) if a.kind == "F"]
    assert [str(a) for a in forwards[:6]] == ["0F0", "0F1", "0F2", "2F0", "2F1", "2F2"]
    uneven = make_order("interleaved", ranks=2, micro_batches=5, vp=2, group=3)
    forwards = [a for a in uneven.of_rank(0) if a.kind == "F"]
    assert [str(a) for a in forwards[6:]] == ["0F3", "0F4", "2F3", "2F4"]


def test_without_equal_rounds_the_group_is_the_smallest_that_megatron_takes() -> None:
    """Megatron-Core's schedules.py: what is left of the micro-batches over the group is 0 or at least the
    pipeline's ranks."""
    for ranks, micro_batches in ((2, 127), (4, 9), (4, 14), (8, 61), (3, 100)):
        group = next(
            g for g in range(ranks, micro_batches + 1) if micro_batches % g == 0 or micro_batches % g >= ranks
        )
        asked = {"ranks": ranks, "micro_batches": micro_batches, "vp": 2}
        assert usual_group("interleaved", **asked) == group
        assert make_order("interleaved", **asked) is make_order("interleaved", **asked, group=group)


@pytest.mark.parametrize("ranks", range(2, 17))
def test_v_blocks_start_as_published(ranks: int) -> None:
    """The repeated patterns of the authors of arXiv 2405.15362 (sail-sg/zero-bubble-pipeline-parallelism,
    scheduler/zbv_greedy.py): starts of F down, F up, I up, I down on every rank, in time units."""
    r, wait = np.arange(ranks), 3 * (ranks % 2 == 0)
    half = [2 * r, 3 * ranks - r - 2, 3 * ranks + wait + 2 * r - 1, 6 * ranks + wait - r - 2]
    assert (building_block(ranks, (2, 1, 2, 1), wait)[:, :4] == np.stack(half, axis=1)).all()
    wait = 2 * (ranks % 3 == 0)
    least = [r, 2 * ranks - r - 1, 2 * ranks + wait + r, 4 * ranks + wait - r - 1]
    assert (building_block(ranks, (1, 1, 1, 1), 0)[:, :4] == np.stack(least, axis=1)).all()


def test_pytorch_flexible_interleaving() -> None:
    # pytorch PR 129597: 4 ranks take 10 micro-batches (2 rounds of 5) and 3 (1 round).
    order = make_order("interleaved", ranks=4, micro_batches=10, vp=2)
    assert [a.micro_batch for a in order.of_rank(0) if a.kind == "F"][:6] == [0, 1, 2, 3, 4, 0]
    make_order("interleaved", ranks=4, micro_batches=3, vp=2, unfilled=True)


@pytest.mark.parametrize(
    ("name", "asked", "sentence"),
    [
        ("1f1b", {"ranks": 8, "micro_batches": 4}, "at least as many micro-batches as ranks, 8, not 4"),
        # NVIDIA-NeMo/Speech 14288: 3 micro-batches over 6 ranks.
        ("interleaved", {"ranks": 6, "micro_batches": 3}, "as many micro-batches as ranks, 6, not 3"),
        ("interleaved", {"ranks": 4, "micro_batches": 9, "group": 4}, "use a group of 5 or 9"),
        ("interleaved", {"ranks": 4, "micro_batches": 8, "group": 3}, "4 (ranks) to 8 (micro-batches), not"),
        ("zb-v", {"ranks": 4, "micro_batches": 8, "vp": 3}, "exactly 2 stages a rank, not 3: use 2"),
        ("1f1b", {"ranks": 4, "micro_batches": 8, "vp": 2}, "exactly 1 stage a rank, not 2: use 1"),
        ("1f1b", {"ranks": 4, "micro_batches": 8, "group": 4}, "no micro-batch group size"),
        ("dualpipe", {"ranks": 5, "micro_batches": 20}, "even number of ranks, not 5: use 4 or 6"),
        ("dualpipe", {"ranks": 4, "micro_batches": 9}, "even number of micro-batches, not 9: use 8 or 10"),
        ("dualpipe", {"ranks": 4, "micro_batches": 6}, "2 micro-batches a rank, 8, not 6"),
        ("dualpipe-v", {"ranks": 4, "micro_batches": 7}, "2 micro-batches a rank, 8, not 7"),
        ("v-half", {"ranks": 4, "micro_batches": 3}, "as many micro-batches as ranks, 4, not 3"),
        ("gpipe", {"ranks": 0, "micro_batches": 3}, "at least 1 rank, not 0"),
        ("gpipe", {"ranks": 2, "micro_batches": 0}, "at least 1 micro-batch, not 0"),
        ("looped-bfs", {"ranks": 2, "micro_batches": 2, "vp": 0}, "at least 1 stage, not 0"),
        ("gpipe", {"ranks": 10**6, "micro_batches": 10**6}, "the most a simulation takes"),
    ],
)  # fmt: skip
def test_rules_name_the_nearest_value(name: str, asked: dict[str, int], sentence: str) -> None:
    with pytest.raises(InputError) as error:
        make_order(name, **asked)
    assert sentence in str(error.value)


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'zb-h2' or 'zb-h1'"):
        make_order("zb-h3", ranks=2, micro_batches=4)


def test_same_question_same_object() -> None:
    assert make_order("1f1b", ranks=4, micro_batches=8) is make_order("1f1b", ranks=4, micro_batches=8)


OWN = {"micro_batches": 2, "ranks": [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]}


@pytest.mark.parametrize("name", SCHEDULES)
def test_orders_survive_a_file(name: str, tmp_path: Path) -> None:
    order = make_order(name, ranks=4, micro_batches=8)
    path = tmp_path / "order.json"
    path.write_text(json.dumps(order_dict(order)))
    again = read_order_file(path)
    assert str(again) == str(order)
    assert (again.paired == order.paired).all()


def changed(**change: Any) -> dict[str, Any]:
    return {**OWN, **change}


def with_action(rank: int, place: int, text: Any) -> dict[str, Any]:
    rows = [list(row) for row in OWN["ranks"]]  # type: ignore[attr-defined]
    rows[rank][place] = text
    return changed(ranks=rows)


def ranks(*rows: str) -> dict[str, Any]:
    return changed(ranks=[row.split() for row in rows])


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ([], "an order is an object"),
        (changed(rank=[]), "unknown key 'rank'"),
        (changed(schema_version=2), "schema_version '2' is not 1"),
        (changed(ranks=[]), '"ranks" must be a list'),
        (changed(ranks=[["0F0"], "x"]), '"ranks" must be a list'),
        (changed(ranks=[["0F0"], []]), "rank 1 has no actions"),
        (changed(micro_batches=2.0), "micro_batches must be a whole number"),
        (changed(micro_batches=True), "micro_batches must be a whole number"),
        (changed(stages=0), "stages must be a whole number from 1"),
        (changed(name=""), "name must be"),
        (with_action(0, 1, 7), "rank 0, action 1: an action is text"),
        (with_action(0, 1, "0.5F1"), "rank 0, action 1: '0.5F1' is not an action"),
        (with_action(0, 1, "0F-1"), "'0F-1' is not an action"),
        (with_action(0, 1, "0X1"), "rank 0, action 1: '0X1' has kind 'X'; kinds are F, B, I and W"),
        (with_action(0, 1, "0F1+1F1"), "only F and B overlap"),
        (with_action(0, 1, "0F0"), "rank 0, action 1 (0F0) is there twice"),
        (changed(micro_batches=3), "misses F of stage 0, micro-batch 2"),
        (changed(stages=3), "misses F of stage 2, micro-batch 0"),
        (with_action(0, 3, "0I1"), "misses W of stage 0, micro-batch 1"),
        (with_action(1, 3, "0B1"), "is there twice"),
        (with_action(0, 1, "999999F0"), "misses F of stage"),
        (ranks("0F0 0B0 0F1 0B1 1F0", "1B0 1F1 1B1"), "a stage cannot move"),
        (ranks("0F0 0F1 0B0 0W0 0B1", "1F0 1B0 1F1 1B1"), "W but no I"),
        (ranks("0F0 0F1 0W0 0I0 0B1", "1F0 1B0 1F1 1B1"), "action 2 (0W0) comes before 0I0"),
        (ranks("0F0 0F1 0B0 0I0 0W0 0B1", "1F0 1B0 1F1 1B1"), "both B and I"),
        (
            ranks("0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"),
            "can never finish: rank 0 waits at 0B0 for 1B0 of rank 1; rank 1 waits at 1F1 for 0F1 of rank 0",
        ),
    ],
)  # fmt: skip
def test_a_wrong_order_is_refused_with_its_place(found: Any, sentence: str) -> None:
    with pytest.raises(InputError) as error:
        graph(parse_order(found))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "line 1, column 2: not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("NaN", "an order is an object"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "order.json"
    path.write_text(text)
    with pytest.raises(InputError, match=sentence):
        read_order_file(path)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read order file"):
        read_order_file(tmp_path / "none.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        read_order_file(tmp_path / "binary")


def test_deadlocks_of_any_shape_end() -> None:
    """Random shuffles of a good order: each either runs or is refused, none hangs."""
    rng = np.random.default_rng(7)
    good = order_dict(make_order("zb-h1", ranks=3, micro_batches=4))
    refused = []
    for _ in range(200):
        rows = [list(row) for row in good["ranks"]]
        row = rows[int(rng.integers(3))]
        a, b = rng.integers(len(row), size=2)
        row[a], row[b] = row[b], row[a]
        try:
            graph(parse_order({**good, "ranks": rows}))
        except InputError as error:
            refused.append(str(error))
    assert 50 < len(refused) < 200
    assert all("can never finish" in text or "comes before" in text for text in refused)
