"""Seconds of a collective, inside one scale-up domain and across nodes; arguments broadcast.

Inside a domain times are read off the profile's measured curves. Across nodes they follow NCCL's own
predictor (``src/graph/tuning.cc``): for each algorithm and protocol latency + bytes / bandwidth, and
the fastest is taken, with bandwidths from the profile's curves and the links the caller gives.

Sizes are those of nccl-tests: the buffer of an all-reduce or broadcast, the *full gathered* buffer of
an all-gather or reduce-scatter, all that one rank sends in an all-to-all, one message point to point.

Left out: congestion and what other traffic takes (give the caller's share of the link), what a
collective costs the compute it runs beside, first-call set-up. Known misses: all-reduce over four B200
nodes on EFA was measured at 64, 157, 229 and 327 GB/s for 16, 64, 256 and 512 MiB, here 206, 301, 341
and 349 (362 against 352 at 1 GiB; stas00 ml-engineering): give such a network its longer latency;
all-gather of 2 GiB over 256 H100 at 200 GB/s, here about 300 (nccl #1218). Inside a node the tables are of
NCCL 2.27 to 2.29; NCCL of 2021 on A100 fits them too (about 190 GB/s at 100 MB, arXiv 2205.05198).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshplan.cluster.presets import NETWORK_LATENCY_S
from meshplan.cluster.profile import Profile
from meshplan.cluster.profile_data import CollectiveCurve
from meshplan.errors import InputError, UnknownNameError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p")


class _Protocol(NamedTuple):
    """One NCCL protocol: share of bandwidth, base latency and latency a step, in seconds."""

    bandwidth: float
    ring_base: float
    ring_hop: float
    ring_net_hop: float
    tree_base: float
    tree_hop: float
    tree_net_hop: float


# NCCL 2.27 src/graph/tuning.cc: base and hop latencies in µs there; LL carries 4 of every 8 bytes, LL128
# 120 of 128 (0.92 with its other overhead).
_PROTOCOLS = (
    _Protocol(0.50, 6.6e-6, 0.6e-6, 2.7e-6, 6.8e-6, 0.6e-6, 5.0e-6),  # LL
    _Protocol(0.92, 14.0e-6, 1.9e-6, 4.0e-6, 14.0e-6, 1.25e-6, 8.5e-6),  # LL128
    _Protocol(1.00, 8.4e-6, 3.4e-6, 14.0e-6, 8.4e-6, 4.0e-6, 14.0e-6),  # Simple
)
_TREE_BANDWIDTH = 0.85
_PAT_BANDWIDTH, _PAT_HOP = 0.75, 14.0e-6
_NVLS_BASE, _NVLS_NET_HOP = 25.0e-6, 20.9e-6
_MESSAGE_S = 1.0e-6
"""Assumed cost of one more peer in an all-to-all across nodes."""
_WIDE_LOSS = 0.039
"""Bandwidth an all-to-all loses with each doubling of the domain beyond the ranks measured: 470 MB take
735 µs among 8 and 930 µs among 64 GPUs of a GB200 NVL72 (arXiv 2603.07685, table 7)."""


def bus_factor(op: str, ranks: npt.ArrayLike) -> Floats:
    """Bytes a rank puts on the wire over the size of ``op`` (nccl-tests, doc/PERFORMANCE.md):
    2(n − 1)/n for all-reduce, (n − 1)/n for gather, scatter and all-to-all, 1 for the others."""
    n = np.maximum(np.asarray(ranks, dtype=np.float64), 1.0)
    if op in ("broadcast", "p2p"):
        return np.ones_like(n)
    return np.asarray((2.0 if op == "all_reduce" else 1.0) * (n - 1) / n)


def collective_seconds(
    profile: Profile,
    op: str,
    size_bytes: npt.ArrayLike,
    *,
    ranks: npt.ArrayLike,
    ranks_per_node: npt.ArrayLike,
    network_bandwidth: npt.ArrayLike = math.inf,
    network_latency_s: npt.ArrayLike = NETWORK_LATENCY_S,
    scaleup_bandwidth: npt.ArrayLike | None = None,
    nic_share: npt.ArrayLike = 1.0,
    pat: bool = True,
) -> Floats:
    """Seconds of one ``op`` over ``ranks`` GPUs, ``ranks_per_node`` of them in each scale-up domain.

    ``network_bandwidth`` is bytes/s per GPU and direction of the narrowest tier the group crosses, as if
    each GPU had its own NIC: a group with r ranks a node drives r of them. ``nic_share`` is how many
    groups of the same node use the same NICs beyond that (1 where each GPU has its own).
    ``network_latency_s`` is one hop of NCCL's Simple protocol, 14 µs in its own tables; the other protocols'
    hops are scaled with it.
    ``scaleup_bandwidth`` is the link of the domain where it is not the profile's. ``pat``: NCCL 2.23 or
    later, whose all-gather and reduce-scatter take log₂ n steps where a node holds one rank.

    A group of one rank, or of no bytes, takes 0 s. Rises with bytes. Raises ``UnknownNameError`` for
    another ``op`` and ``InputError`` for bandwidths that are not positive.
    """
    if op not in COLLECTIVES:
        raise UnknownNameError("collective", op, COLLECTIVES, f"known are {', '.join(COLLECTIVES)}")
    size = np.maximum(np.asarray(size_bytes, dtype=np.float64), 0.0)
    n = np.maximum(np.asarray(ranks, dtype=np.float64), 1.0)
    r = np.minimum(np.maximum(np.asarray(ranks_per_node, dtype=np.float64), 1.0), n)
    link = profile.gpu.scaleup_bandwidth if scaleup_bandwidth is None else scaleup_bandwidth
    link = np.asarray(link, dtype=np.float64)
    nic = np.asarray(network_bandwidth, dtype=np.float64) / np.asarray(nic_share, dtype=np.float64)
    if not (np.all(link > 0) and np.all(nic > 0)):
        raise InputError("bandwidths of a collective must be above 0")
    hop = np.asarray(network_latency_s, dtype=np.float64) / NETWORK_LATENCY_S
    if not (n > 1).any():
        return np.zeros(np.broadcast_shapes(size.shape, n.shape, r.shape, link.shape, nic.shape, hop.shape))
    one_domain, moves = r >= n, (n > 1) & (size > 0)
    if one_domain.all():
        found = _inside(profile, op, size, n, link)
    elif not one_domain.any():
        found = _outside(profile, op, size, n, r, link, nic, hop, pat)
    else:
        columns = np.broadcast_arrays(size, n, r, link, nic, hop)
        home = np.broadcast_to(one_domain, columns[0].shape)
        found = np.empty(home.shape)
        size_in, n_in, _, link_in, *_ = (column[home] for column in columns)
        found[home] = _inside(profile, op, size_in, n_in, link_in)
        size, n, r, link, nic, hop = (column[~home] for column in columns)
        found[~home] = _outside(profile, op, size, n, r, link, nic, hop, pat)
    return np.asarray(np.where(moves, found, 0.0))


# ── inside one domain ────────────────────────────────────────────────────────────────────────────


def _measured(profile: Profile, op: str) -> tuple[CollectiveCurve, str]:
    """The curve that ``op`` is read from: broadcast, and messages without one, from all-gather's bytes."""
    name = op if op in profile.collectives else "all_gather"
    return profile.collectives[name], name


def _inside(profile: Profile, op: str, size: Floats, n: Floats, link: Floats) -> Floats:
    """Measured time at the same size, log-log between sizes and between group sizes.

    Groups larger than measured: the time that as many bytes on the wire took in the largest group
    measured, ``hop_s`` more for each further rank; all-to-all also loses 4 % of bandwidth a doubling.
    (NVL72: ring all-reduce reaches 680 GB/s among 72 GPUs and 673–682 among 8 of a B200 node, stas00
    ml-engineering.) Slower links stretch all but the shortest time in proportion.
    """
    curve, name = _measured(profile, op)
    if curve.in_switch and not profile.network.nvls:
        halves = (_inside(profile, half, size, n, link) for half in ("reduce_scatter", "all_gather"))
        return np.asarray(sum(halves))
    largest = float(curve.ranks[-1])
    group = np.full_like(n, 2.0) if op == "p2p" else np.maximum(n, 2.0)
    known = np.minimum(group, largest)
    size = size * bus_factor(op, group) / bus_factor(name, known)
    slower = curve.link_bandwidth / _reach(profile, link, group)
    time = _looked_up(_grid(curve.ranks, curve.sizes, curve.seconds), np.log2(known), size, slower)
    if not (group > known).any():
        return time
    if name == "all_to_all":
        time = time * (1 - _WIDE_LOSS) ** -np.log2(group / known)
    return np.asarray(time + curve.hop_s * (group - known))


def _reach(profile: Profile, link: Floats, n: Floats) -> Floats:
    """Bytes/s that a group of n reaches: the whole link through a switch, n − 1 of the links of a mesh."""
    link = link * profile.network.scaleup_share
    peer = profile.gpu.scaleup_peer_bandwidth
    if peer is None:
        return link
    return np.asarray(link * np.minimum((n - 1) * peer / profile.gpu.scaleup_bandwidth, 1.0))


class _Grid(NamedTuple):
    """A measured table, one row a group size: logarithms of what was measured, the slope from each size to
    the next, and what follows the largest."""

    ranks: Floats
    sizes: Floats
    seconds: Floats
    slopes: Floats
    shortest: Floats
    smallest_bytes: float
    largest_bytes: float
    per_byte: Floats
    """Seconds of a byte more than the largest size: at the last doubling's bandwidth."""


@lru_cache(maxsize=1024)
def _grid(ranks: tuple[int, ...], sizes: tuple[float, ...], seconds: tuple[tuple[float, ...], ...]) -> _Grid:
    measured, log_sizes = np.asarray(seconds), np.log(np.asarray(sizes))
    logs = np.log(measured)
    return _Grid(
        ranks=np.log2(np.asarray(ranks, dtype=np.float64)),
        sizes=log_sizes,
        seconds=np.ascontiguousarray(logs[:, :-1]).ravel(),
        slopes=(np.diff(logs, axis=1) / np.diff(log_sizes)).ravel(),
        shortest=measured[:, 0].copy(),
        smallest_bytes=float(sizes[0]),
        largest_bytes=float(sizes[-1]),
        per_byte=(measured[:, -1] - measured[:, -2]) / (sizes[-1] - sizes[-2]),
    )


def _looked_up(grid: _Grid, ranks: Floats, size: Floats, slower: Floats) -> Floats:
    """Time of a size among 2 to the ``ranks``: log-log between the sizes and geometric between the group
    sizes measured. Links that are slower stretch all but the shortest time."""
    steps = len(grid.sizes) - 1
    x = np.log(np.minimum(np.maximum(size, grid.smallest_bytes), grid.largest_bytes))
    column = np.minimum(np.maximum(np.searchsorted(grid.sizes, x, side="right") - 1, 0), steps - 1)
    further, beyond = x - grid.sizes.take(column), np.maximum(size - grid.largest_bytes, 0.0)

    def of_row(row: Ints) -> Floats:
        at, shortest = row * steps + column, grid.shortest.take(row)
        time = np.exp(grid.slopes.take(at) * further + grid.seconds.take(at)) + beyond * grid.per_byte.take(
            row
        )
        return np.asarray(shortest + (time - shortest) * slower)

    if len(grid.ranks) == 1:
        return of_row(np.zeros(ranks.shape, dtype=np.int64))
    row = np.searchsorted(grid.ranks, ranks, side="right") - 1
    row = np.minimum(np.maximum(row, 0), len(grid.ranks) - 2)
    share = (ranks - grid.ranks.take(row)) / (grid.ranks.take(row + 1) - grid.ranks.take(row))
    whole = share.astype(np.int64)
    if (whole == share).all():  # all of them group sizes that were measured
        return of_row(row + whole)
    return np.asarray(of_row(row) ** (1 - share) * of_row(row + 1) ** share)


def scaleup_bus(profile: Profile, op: str, ranks: npt.ArrayLike, link: npt.ArrayLike | None = None) -> Floats:
    """Bus bandwidth, bytes/s, of very large messages of ``op`` among ``ranks`` of one domain."""
    curve, name = _measured(profile, op)
    n = np.maximum(np.asarray(ranks, dtype=np.float64), 2.0)
    bandwidth = profile.gpu.scaleup_bandwidth if link is None else link
    slower = curve.link_bandwidth / _reach(profile, np.asarray(bandwidth, dtype=np.float64), n)
    grid = _grid(curve.ranks, curve.sizes, curve.seconds)
    rates = bus_factor(name, curve.ranks) / grid.per_byte
    return np.asarray(np.interp(np.log2(n), grid.ranks, rates) / slower)


# ── across nodes, as measured ────────────────────────────────────────────────────────────────────


def _as_measured(
    profile: Profile, op: str, size: Floats, n: Floats, r: Floats, nic: Floats, otherwise: Floats
) -> Floats:
    """The measured time where a group of as many ranks and nodes was measured; messages need no group."""
    curve = profile.across.get(op)
    if curve is None:
        return otherwise
    slower = curve.network_bandwidth / nic
    sizes = np.asarray(curve.sizes)
    for ranks, per, row in zip(curve.ranks, curve.per_node, curve.seconds, strict=True):
        seconds = np.asarray(row)
        time = np.exp(np.interp(np.log(np.maximum(size, 1.0)), np.log(sizes), np.log(seconds)))
        beyond = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
        time = time + np.maximum(size - sizes[-1], 0.0) * beyond
        time = seconds[0] + (time - seconds[0]) * slower
        same = np.ones_like(n, dtype=bool) if op == "p2p" else (n == ranks) & (r == per)
        otherwise = np.where(same, time, otherwise)
    return np.asarray(otherwise)


# ── across nodes ─────────────────────────────────────────────────────────────────────────────────


def _outside(
    profile: Profile,
    op: str,
    size: Floats,
    n: Floats,
    r: Floats,
    link: Floats,
    nic: Floats,
    hop: Floats,
    pat: bool,
) -> Floats:
    """Of groups over several domains: as measured, or by the predictor."""
    nodes = np.maximum(np.ceil(n / r), 2.0)
    wide = _across(profile, op, size, n, r, nodes, link, nic, hop, pat)
    return _as_measured(profile, op, size, n, r, nic, wide)


def _across(
    profile: Profile,
    op: str,
    size: Floats,
    n: Floats,
    r: Floats,
    nodes: Floats,
    link: Floats,
    nic: Floats,
    hop: Floats,
    pat: bool,
) -> Floats:
    net = profile.network
    if op == "p2p":  # one message through one NIC
        return np.asarray(
            _PROTOCOLS[2].ring_base + _PROTOCOLS[0].ring_net_hop * hop + size / (nic * net.efficiency)
        )
    if op == "all_to_all":
        return _all_to_all(profile, size, n, r, link, nic * net.all_to_all_efficiency, hop)
    local = np.where(r > 1, scaleup_bus(profile, "all_gather", r, link), np.inf)
    wires = r * nic * net.efficiency
    bandwidth = np.minimum(local, wires)
    choices = _rings(op, size, n, nodes, bandwidth, hop)
    if op == "all_reduce":
        choices += _trees(size, r, nodes, local, wires, hop)
        if net.nvls:
            choices.append(_switch_tree(profile, size, r, nodes, link, wires, hop))
    elif op in ("all_gather", "reduce_scatter") and pat:
        step = _PAT_HOP * hop
        log = _PROTOCOLS[2].ring_base + np.ceil(np.log2(n)) * step
        one = log + bus_factor(op, n) * size / (bandwidth * _PAT_BANDWIDTH)
        choices.append(np.where(r == 1, one, np.inf))
    best = choices[0]
    for other in choices[1:]:
        best = np.minimum(best, other)
    return np.asarray(best)


def _rings(op: str, size: Floats, n: Floats, nodes: Floats, bandwidth: Floats, hop: Floats) -> list[Floats]:
    """Ring: base + (steps − network steps)·hop + network steps·network hop + bytes / bandwidth.

    Steps are n − 1 (twice for all-reduce), of which nodes − 1 (twice) cross the network. The ring enters
    and leaves a node once for each NIC, so its bandwidth is the least of NVLink's and r NICs'.
    """
    rounds = 2.0 if op == "all_reduce" else 1.0
    steps, crossing = rounds * (n - 1), rounds * (nodes - 1)
    wire = bus_factor(op, n) * size
    return [
        p.ring_base
        + (steps - crossing) * p.ring_hop
        + crossing * p.ring_net_hop * hop
        + wire / (bandwidth * p.bandwidth)
        for p in _PROTOCOLS
    ]


def _trees(size: Floats, r: Floats, nodes: Floats, local: Floats, wires: Floats, hop: Floats) -> list[Floats]:
    """Double binary tree over nodes, a chain inside: 2·S a direction through a node's NICs, S between
    two nodes (each sends its sum once); 2·((r − 1)·hop + log₂ nodes · network hop) of latency."""
    crossings = np.where(nodes > 2, 2.0, 1.0)
    slowest = np.maximum(2.0 / local, crossings / wires) / _TREE_BANDWIDTH
    return [
        p.tree_base
        + 2 * (r - 1) * p.tree_hop
        + 2 * np.ceil(np.log2(nodes)) * p.tree_net_hop * hop
        + size * slowest / p.bandwidth
        for p in _PROTOCOLS
    ]


def _switch_tree(
    profile: Profile, size: Floats, r: Floats, nodes: Floats, link: Floats, wires: Floats, hop: Floats
) -> Floats:
    """NVLS inside the node and a tree between nodes, from 5 GPUs a node: two H100 nodes reach
    430–470 GB/s, more nodes what their NICs carry (nccl #1221, #2409)."""
    switch = scaleup_bus(profile, "all_reduce", r, link)
    crossings = np.where(nodes > 2, 2.0, 1.0)
    slowest = np.maximum(bus_factor("all_reduce", r) / switch, crossings / wires)
    latency = _NVLS_BASE + np.ceil(np.log2(nodes)) * _NVLS_NET_HOP * hop
    return np.asarray(np.where(r > 4, latency + size * slowest, np.inf))


def _all_to_all(
    profile: Profile, size: Floats, n: Floats, r: Floats, link: Floats, nic: Floats, hop: Floats
) -> Floats:
    """What leaves the node through the GPU's own NIC, then what stays inside, one after the other.

    Both in a row, at 91 % of the NIC, give 5.7, 8.1 and 9.2 ms for 470 MB a rank over 16, 32 and 64
    H100, as measured (5.77, 8.06, 9.16; arXiv 2603.07685, table 7); overlapping them gives less than
    measured at 16.
    """
    outside = size * (n - r) / n
    latency = _PROTOCOLS[2].ring_net_hop * hop + (n - r) * _MESSAGE_S
    within = np.where(r > 1, _inside(profile, "all_to_all", size * r / n, r, link), 0.0)
    return np.asarray(latency + outside / nic + within)
