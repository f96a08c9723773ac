"""Columns of a table of plans: what is chosen and joined, and that one entry for all plans stays one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshplan.plan.plans import Plans, chooser, end_to_end, is_constant

VARIED = np.array([5, 3, 5, 8, 1])
SAME = np.broadcast_to(np.int64(7), (5,))
CHOICES: list[Any] = [
    np.array([4, 0, 0, 2]),
    np.array([1, 1, 2, 3, 4, 0, 0, 2]),  # more than there are
    np.array([-1, 2]),
    np.array([], dtype=np.int64),
    np.array([True, False, True, True, False]),
    np.zeros(5, dtype=bool),
    slice(1, 4),
    [3, 1],
]


@pytest.mark.parametrize("index", CHOICES, ids=str)
def test_what_is_chosen_is_what_numpy_chooses(index: Any) -> None:
    pick = chooser(index)
    assert pick(VARIED).tolist() == VARIED[index].tolist()
    assert pick(SAME).tolist() == np.full(5, 7)[index].tolist()


@pytest.mark.parametrize("index", [c for c in CHOICES if not isinstance(c, list)], ids=str)
def test_one_entry_for_all_stays_one(index: Any) -> None:
    assert is_constant(SAME)
    assert not is_constant(VARIED)
    assert not is_constant(np.full(5, 7))
    assert is_constant(chooser(index)(SAME))


def test_constant_columns_end_to_end() -> None:
    more, other = SAME[:2], np.broadcast_to(np.int64(6), (3,))
    assert is_constant(end_to_end([SAME, more]))
    assert end_to_end([SAME, more]).tolist() == [7] * 7
    assert end_to_end([SAME, other]).tolist() == [7] * 5 + [6] * 3
    assert end_to_end([more, VARIED]).tolist() == [7, 7, 5, 3, 5, 8, 1]
    assert end_to_end([SAME[:0], other]).tolist() == [6] * 3


def test_tables_with_layouts_of_their_own_are_joined() -> None:
    """The first table's only layout is the second table's second one; -1 and -2 stand for themselves."""
    a = Plans.from_columns({"pp": [2, 2]}).replace(layout=np.broadcast_to(np.int64(0), (2,)))
    b = Plans.from_columns({"pp": [2, 2, 2, 2]}).replace(layout=np.array([1, 0, -1, -2]))
    both = Plans.concatenate([with_layouts(a, (3, 5)), with_layouts(b, (4, 4), (3, 5))])
    assert both.layouts == ((3, 5), (4, 4))
    assert both.layout.tolist() == [0, 0, 0, 1, -1, -2]
    assert both.take(both.layout == 0).pp.tolist() == [2, 2, 2]


def with_layouts(plans: Plans, *layouts: tuple[int, ...]) -> Plans:
    names = [n for n in Plans.__dataclass_fields__ if n != "layouts"]
    return Plans(**{n: getattr(plans, n) for n in names}, layouts=layouts)
