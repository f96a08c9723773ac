"""Which plans of a table are alike, so that what they share is priced once and gathered."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshplan.cost.full.context import Context
from meshplan.cost.full.distinct import distinct
from meshplan.cost.full.layers import Priced
from meshplan.plan.plans import Ints


class Kinds(NamedTuple):
    """The kinds of plans from one side: the question about the first plan of each kind, that plan's row in
    the whole table, and the kind of every plan."""

    question: Context
    first: Ints
    of: Ints


class Likeness(NamedTuple):
    """The kinds of plans in a table, from three sides."""

    worked: Kinds
    """Ranks do the same work: layers of the same price, split in the same way."""
    held: Kinds
    """Of those, ranks hold the same activations: the same schedule and micro-batches."""
    sharded: Kinds
    """Ranks hold the same parameters, and share them with the same ranks."""

    def take(self, rows: slice) -> Likeness:
        """The same kinds for some rows."""
        return Likeness(*(kinds._replace(of=kinds.of[rows]) for kinds in self))


def likeness(c: Context, priced: Priced) -> Likeness:
    """What the plans of a table share."""
    p, split = c.plans, c.splits.of_plan

    def kinds(*columns: Ints) -> Kinds:
        first, of = distinct(columns)
        return Kinds(c.take(first), first, of)

    worked = kinds(priced.of_plan, split)
    held = [worked.of, p.schedule, *c.scale]
    if c.gbs is not None:
        held.append(c.gbs)
    if c.stack.family == "torch":
        # Of what is held for a moment only torch's depends on how weights are gathered (``momentary``).
        held.append(c.gathers.astype(np.int64))
    return Likeness(
        worked=worked,
        held=kinds(*held),
        sharded=kinds(split, c.mesh, *c.scale, p.sharding, p.replicas, p.schedule),
    )
