"""Where the ranks of a group sit: how many on one node, over how many nodes, on which links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from meshplan.cluster.cluster import Cluster
from meshplan.plan.plans import Ints, Plans

DENSE = ("tp", "cp", "dp", "pp")


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """One group of a plan, for each plan: ``size`` ranks, ``per_node`` of them in one scale-up
    domain, so ``size / per_node`` domains."""

    size: Ints
    per_node: Ints

    def beside(self, other: Group) -> Group:
        """Both groups of every plan, (2, plans)."""
        return Group(
            size=np.stack([self.size, other.size]), per_node=np.stack([self.per_node, other.per_node])
        )

    @property
    def nodes(self) -> Ints:
        """Scale-up domains the group reaches over."""
        return np.asarray(np.maximum(-(-self.size // self.per_node), 1))


def spans(plans: Plans) -> dict[str, Ints]:
    """For each dimension, the distance in ranks between neighbours: the product of all inside it.

    ``ep`` in the order places the experts' groups; attention's dimensions skip it, and the experts'
    mesh is ``etp`` where ``tp`` stands, ``edp`` where ``dp`` stands (folding, arXiv 2504.14960).
    """
    names = {"tp": "etp", "ep": "ep", "dp": "edp", "pp": "pp"}
    expert = [names[dim] for dim in plans.order if dim in names]
    if expert[-1:] == ["pp"]:  # what is outside all of them needs no product of them
        expert.pop()
    out = _inside(plans, expert) | _inside(plans, [dim for dim in plans.order if dim in DENSE])
    if "ep" not in out:  # an order without ep: just outside tp
        out["ep"] = plans.etp
        out["edp"] = plans.etp * plans.ep
        out["etp"] = np.ones(len(plans), dtype=np.int64)
    return out


def inner_alone(order: Sequence[str]) -> bool:
    """Whether the distances of all dimensions but ``dp`` and ``pp`` follow from those dimensions."""
    return set(order[-2:]) == {"dp", "pp"}


def _inside(plans: Plans, dims: list[str]) -> dict[str, Ints]:
    """For each of ``dims``, the product of those before it."""
    product = np.ones(len(plans), dtype=np.int64)
    found = dict.fromkeys(dims[:1], product)
    for before, dim in pairwise(dims):
        found[dim] = product = product * getattr(plans, before)
    return found


def group(size: Ints, span: Ints, domain: int) -> Group:
    """The group of ``size`` ranks that stand ``span`` apart, on scale-up domains of ``domain``."""
    room = np.maximum(domain // np.maximum(span, 1), 1)
    return Group(size=size, per_node=np.minimum(size, room))


def joint_group(inner: Ints, outer: Ints, inner_span: Ints, outer_span: Ints, domain: int) -> Group:
    """A group over two dimensions (``dp × cp``): what both have on one domain."""
    a = group(inner, inner_span, domain)
    b = group(outer, outer_span, domain)
    return Group(size=inner * outer, per_node=np.minimum(a.per_node * b.per_node, domain))


def link_bandwidth(cluster: Cluster, reach: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Bytes/s per GPU and direction of the narrowest tier that groups spanning ``reach`` ranks cross,
    scale-up domain left out."""
    outer = cluster.tiers[1:]
    if not outer:
        return np.full(reach.shape, cluster.tiers[0].bandwidth)
    bandwidth = np.full(reach.shape, outer[0].bandwidth)
    narrowest = outer[0].bandwidth
    for below, tier in pairwise(outer):
        narrowest = min(narrowest, tier.bandwidth)
        bandwidth = np.where(reach > below.span, narrowest, bandwidth)
    return bandwidth
