"""Which plans of a table are alike, so that what they share is priced once and gathered."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshplan.cost.full.context import Context
from meshplan.cost.full.distinct import Alike, alike
from meshplan.cost.full.layers import Priced


class Likeness(NamedTuple):
    """The kinds of plans in a table, from three sides."""

    worked: Alike
    """Ranks do the same work: layers of the same price, split in the same way."""
    held: Alike
    """Of those, ranks hold the same activations: the same schedule and micro-batches."""
    sharded: Alike
    """Ranks hold the same parameters, and share them with the same ranks."""

    def take(self, rows: slice) -> Likeness:
        """The same kinds for some rows; ``first`` still counts in the whole table."""
        return Likeness(
            worked=self.worked._replace(of=self.worked.of[rows]),
            held=self.held._replace(of=self.held.of[rows]),
            sharded=self.sharded._replace(of=self.sharded.of[rows]),
        )


def likeness(c: Context, priced: Priced) -> Likeness:
    """What the plans of a table share."""
    p, split = c.plans, c.splits.of_plan
    worked = alike(priced.of_plan, split)
    held = [worked.of, p.schedule, *c.scale]
    if c.gbs is not None:
        held.append(c.gbs)
    if c.stack.family == "torch":
        # Of what is held for a moment only torch's depends on how weights are gathered (``momentary``).
        held.append(c.gathers.astype(np.int64))
    return Likeness(
        worked=worked,
        held=alike(*held),
        sharded=alike(split, c.mesh, *c.scale, p.sharding, p.replicas, p.schedule),
    )
