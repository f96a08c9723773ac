"""Seconds a layer's transfers take for one micro-batch on one rank: what is exposed and what hides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshplan.cluster.cluster import Cluster
from meshplan.cluster.collectives import Groups
from meshplan.cluster.profile import Profile
from meshplan.cost.costs import Bools, Floats
from meshplan.cost.full.keys import LayerKeys
from meshplan.cost.full.stack import Stack
from meshplan.cost.full.topology import Group, link_bandwidth
from meshplan.model.layers import Layer, Moe
from meshplan.plan.kinds import CpKind
from meshplan.plan.plans import Ints


class LayerComm(NamedTuple):
    """Seconds by dimension: exposed in forward and backward, and hidden under computing."""

    forward: dict[str, Floats]
    backward: dict[str, Floats]
    hidden: dict[str, Floats]


def limited(comm: LayerComm, forward: dict[str, Floats], backward: dict[str, Floats]) -> LayerComm:
    """``comm`` with no more hidden than there is computing to hide it: TP under the layer's matrix
    products (half of it in forward, half in backward), EP under all that TP leaves of the computing."""
    exposed_f, exposed_b, hidden = dict(comm.forward), dict(comm.backward), dict(comm.hidden)
    room_f, room_b = forward["matmul"], backward["matmul"]
    rest_f, rest_b = (sum(x.values()) - x["matmul"] for x in (forward, backward))
    for dim in ("tp", "ep"):
        half = hidden[dim] / 2
        over_f, over_b = np.maximum(half - room_f, 0.0), np.maximum(half - room_b, 0.0)
        exposed_f[dim], exposed_b[dim] = exposed_f[dim] + over_f, exposed_b[dim] + over_b
        hidden[dim] = hidden[dim] - over_f - over_b
        room_f, room_b = room_f - half + over_f + rest_f, room_b - half + over_b + rest_b
    return LayerComm(forward=exposed_f, backward=exposed_b, hidden=hidden)


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """Everything the time of a collective depends on but its size and group."""

    cluster: Cluster
    profile: Profile
    network_rate: float
    scaleup_rate: float
    all_to_all_rate: float

    def among(self, group: Group, span: Ints) -> Among:
        """What times the collectives of ``group``, whose neighbours stand ``span`` ranks apart."""
        tiers = self.cluster.tiers
        network = tiers[1] if len(tiers) > 1 else tiers[0]
        return Among(
            links=self,
            wide=group.size > group.per_node,
            groups=Groups(
                self.profile,
                ranks=group.size,
                ranks_per_node=group.per_node,
                scaleup_bandwidth=tiers[0].bandwidth,
                network_bandwidth=link_bandwidth(self.cluster, group.size * span),
                network_latency_s=network.latency_s,
            ),
        )

    def seconds(self, op: str, size_bytes: Floats, group: Group, span: Ints) -> Floats:
        """One collective over ``group``, whose neighbours stand ``span`` ranks apart."""
        return self.among(group, span).seconds(op, size_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Among:
    """Groups of ranks whose collectives are to be timed."""

    links: Links
    wide: Bools
    """Groups over several domains."""
    groups: Groups

    def seconds(self, op: str, size_bytes: Floats) -> Floats:
        """One collective; bytes may have dimensions before those of the groups."""
        links = self.links
        across = links.all_to_all_rate if op == "all_to_all" else links.network_rate
        seconds = self.groups.seconds(op, size_bytes)
        if across == links.scaleup_rate:
            return seconds / across
        return np.asarray(seconds / np.where(self.wide, across, links.scaleup_rate))


class Stream(NamedTuple):
    """Seconds that transfers of the whole residual stream over tp take, an entry a key: gathering and
    scattering it where there is SP, all-reducing it where there is not, otherwise 0."""

    gather: Floats
    gather_low: Floats
    """Gathering it as layers do: in fp8 where the stack casts first."""
    scatter: Floats
    reduce: Floats

    @property
    def block(self) -> Floats:
        """What one block needs each way: its input gathered and its output scattered, or one all-reduce
        (arXiv 2205.05198, 4.2.2)."""
        return self.gather_low + self.scatter + self.reduce


def stream_seconds(hidden: int, keys: LayerKeys, tp: Among, stack: Stack) -> Stream:
    """TP's transfers of the stream, each with the stack's waiting for the last rank."""
    size, split = keys.element_bytes * hidden * keys.tokens, keys.tp > 1
    zero = np.zeros(len(keys))

    def where(rows: Bools, op: str, share: float = 1.0) -> Floats:
        if not rows.any():
            return zero
        return np.where(rows, tp.seconds(op, share * size) + stack.tp_wait_s, 0.0)

    sp, whole = split & keys.sp, split & ~keys.sp
    gather = where(sp, "all_gather")
    low = stack.fp8_gathers and keys.precision == "fp8"
    return Stream(
        gather=gather,
        gather_low=where(sp, "all_gather", 0.5) if low else gather,
        scatter=where(sp, "reduce_scatter"),
        reduce=where(whole, "all_reduce"),
    )


def tensor_parallel(
    layer: Layer, one: Floats, keys: LayerKeys, group: Group, stack: Stack
) -> tuple[Floats, Floats, Floats]:
    """Forward, backward and hidden seconds of TP, where a block's transfers take ``one`` second each way
    (``Stream.block``). A MoE block with experts not split by tp needs none of its own."""
    blocks = int(layer.attention is not None)
    blocks += int(layer.mlp is not None and (not isinstance(layer.mlp, Moe) or layer.mlp.shared_width > 0))
    if layer.parallel:
        blocks = min(blocks, 1)
    # Overlap with the product that gathers or scatters needs SP and the links of one domain (userbuffers).
    exposed = np.where(keys.sp & (group.size <= group.per_node), stack.tp_exposed, 1.0)
    return blocks * one * exposed, blocks * one * exposed, 2 * blocks * one * (1 - exposed)


def context_parallel(
    layer: Layer,
    keys: LayerKeys,
    links: Links,
    group: Group,
    attention_f: Floats,
    attention_b: Floats,
    stack: Stack,
) -> tuple[Floats, Floats, Floats]:
    """Forward, backward and hidden seconds of CP: ring hops hide under attention of the chunk at hand;
    all-gather and Ulysses transfers do not."""
    att, kind, on = layer.attention, keys.cp_kind, keys.cp > 1
    forward, backward, hidden = (np.zeros(len(keys)) for _ in range(3))
    if att is None:
        return forward, backward, hidden
    t = span = keys.tp
    kv_heads = att.heads / t if stack.repeats_kv else np.maximum(att.kv_heads / t, 1.0)
    k_and_v = keys.element_bytes * keys.tokens * kv_heads * (att.head_dim + att.v_dim)
    if (ring := on & (kind == CpKind.RING)).any():
        per_chunk = attention_f / keys.cp, attention_b / keys.cp
        ring_f, ring_b, moved = _ring(keys, links, group, k_and_v, per_chunk, stack)
        forward, backward = np.where(ring, ring_f, forward), np.where(ring, ring_b, backward)
        hidden = np.where(ring, moved - ring_f - ring_b, hidden)
    if (gathers := on & (kind == CpKind.ALL_GATHER)).any():
        gather = links.seconds("all_gather", k_and_v * keys.cp, group, span)
        scatter = links.seconds("reduce_scatter", k_and_v * keys.cp, group, span)
        forward = np.where(gathers, gather, forward)
        backward = np.where(gathers, gather + scatter, backward)
    if (ulysses := on & (kind == CpKind.ULYSSES)).any():
        # KV heads are repeated where there are fewer than ranks that are to have one each.
        repeats = np.maximum(keys.cp * t / att.kv_heads, 1.0)
        width = att.q_width + att.out_width + repeats * (att.k_width + att.v_width)
        moved = links.seconds("all_to_all", keys.element_bytes * keys.tokens / t * width, group, span)
        forward, backward = np.where(ulysses, moved, forward), np.where(ulysses, moved, backward)
    return forward, backward, hidden


def _ring(
    keys: LayerKeys,
    links: Links,
    group: Group,
    k_and_v: Floats,
    attention: tuple[Floats, Floats],
    stack: Stack,
) -> tuple[Floats, Floats, Floats]:
    """Exposed seconds of a ring forward and backward, and all of them; ``attention``: seconds of one chunk.

    In hops, the next chunk arrives and its gradients leave while the chunk at hand is computed. Gathered, all
    arrive while the rank's own chunk is computed; gradients, in fp32, make ``cp`` hops until they are home.
    """
    attention_f, attention_b = attention
    if stack.ring == "gathered":
        gather = links.seconds("all_gather", k_and_v * keys.cp, group, keys.tp)
        hop = links.seconds("p2p", k_and_v * 4.0 / keys.element_bytes, group, keys.tp)
        moved = 2 * gather + keys.cp * hop
        if not stack.cp_overlap:
            return gather, gather + keys.cp * hop, moved
        home = (keys.cp - 1) * np.maximum(hop - attention_b, 0.0) + hop
        return np.maximum(gather - attention_f, 0.0), np.maximum(gather - attention_b, 0.0) + home, moved
    hop, hops = links.seconds("p2p", k_and_v, group, keys.tp), keys.cp - 1
    moved = hops * 3 * hop
    if not stack.cp_overlap:
        return hops * hop, hops * 2 * hop, moved
    exposed_f = np.maximum(hops * (hop - attention_f), 0.0)
    return exposed_f, np.maximum(hops * (2 * hop - attention_b), 0.0), moved


DEDUP_RATE = 1.26
"""How much faster DeepEP and HybridEP write into the memory of peers than NCCL's all-to-all sends: 661 µs
for the 5.25 distinct ranks of 8 that a token goes to, 1,265 µs for 8 copies (arXiv 2603.07685, table 7)."""


def distinct(places: Floats, choices: float) -> Floats:
    """How many of ``places`` an even choice of ``choices`` reaches: n · (1 − (1 − 1/n)^k)."""
    return np.asarray(places * (1 - (1 - 1 / np.maximum(places, 1.0)) ** choices))


def nodes_reached(moe: Moe, nodes: Floats) -> Floats:
    """Nodes that hold one of a token's experts, its own among them, where experts are spread over ``nodes``.

    Routing that first chooses ``groups_used`` of ``groups`` (arXiv 2412.19437, 2.1.2) reaches no more nodes
    than hold those groups: of G groups, G/n on a node, M choices miss a node with probability
    C(G − G/n, M) / C(G, M).
    """
    if moe.groups <= moe.groups_used:
        return distinct(nodes, moe.topk)
    groups = float(moe.groups)
    on_node = np.maximum(groups / nodes, 1.0)
    missed = np.ones_like(nodes)
    for chosen in range(moe.groups_used):
        missed = missed * np.clip((groups - on_node - chosen) / (groups - chosen), 0.0, 1.0)
    spread = np.where(nodes >= groups, moe.groups_used * nodes / groups, nodes * (1 - missed))
    return distinct(np.maximum(spread, 1.0), moe.topk)


def expert_parallel(
    layer: Layer, hidden: int, keys: LayerKeys, links: Links, ep: Group, etp: Group, stack: Stack
) -> tuple[Floats, Floats]:
    """Seconds of dispatch and combine, one way each, and so of forward; backward is the same again.

    A rank sends one copy of a token for each of its experts (all-to-all). DeepEP and HybridEP send one to
    each node it has experts on and let NVLink spread it, and inside a domain one to each rank
    (arXiv 2603.07685).
    """
    moe = layer.mlp
    zero = np.zeros(len(keys))
    if not isinstance(moe, Moe):
        return zero, zero
    held = keys.tokens * keys.stream_share
    copies = np.full(len(keys), float(moe.topk))
    low = keys.precision in ("fp8", "mxfp8", "nvfp4") and stack.fp8_dispatch
    if stack.dispatcher == "dedup":
        inside = distinct(keys.ep.astype(np.float64), moe.topk) / DEDUP_RATE
        across = nodes_reached(moe, np.maximum(ep.nodes.astype(np.float64), 1.0))
        copies = np.minimum(np.where(ep.nodes > 1, across, inside), moe.topk)
    payload = held * copies * hidden
    among = links.among(ep, keys.etp)
    back = one = among.seconds("all_to_all", payload * keys.element_bytes)
    if low:
        one = among.seconds("all_to_all", payload)
    ep_time, etp_time = np.where(keys.ep > 1, one + back, 0.0), zero
    if (keys.etp > 1).any():
        routed = held * moe.topk * hidden * keys.element_bytes * keys.etp
        ones = np.ones(len(keys), dtype=np.int64)
        gather = links.seconds("all_gather", routed, etp, ones)
        scatter = links.seconds("reduce_scatter", routed, etp, ones)
        etp_time = np.where(keys.etp > 1, gather + scatter, 0.0)
    both = (ep_time + etp_time) * stack.moe_imbalance
    return both * stack.ep_exposed, both * (1 - stack.ep_exposed) * 2
