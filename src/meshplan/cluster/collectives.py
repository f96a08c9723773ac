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
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshplan.cluster.presets import NETWORK_LATENCY_S
from meshplan.cluster.profile import Profile
from meshplan.cluster.profile_data import CollectiveCurve
from meshplan.errors import InputError, UnknownNameError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

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
_TREE_CHANNEL = {False: (23.6e9, 17.8e9), True: (41.4e9, 36.0e9)}
"""Bytes/s of the bus that a channel of a tree reaches over two nodes and over more, on A100 and on GPUs whose
switch adds up (H100; ``perChMaxTreeBws``). A node has a channel for each NIC of the group."""
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
    size, n, r, nic, hop = np.broadcast_arrays(
        np.asarray(size_bytes, dtype=np.float64),
        ranks,
        ranks_per_node,
        np.asarray(network_bandwidth) / np.asarray(nic_share),
        network_latency_s,
    )
    groups = Groups(
        profile,
        ranks=n,
        ranks_per_node=r,
        network_bandwidth=nic,
        network_latency_s=hop,
        scaleup_bandwidth=scaleup_bandwidth,
        pat=pat,
    )
    return groups.seconds(op, size)


class Groups:
    """Groups of GPUs that time their collectives: what depends on the groups alone is worked out once.

    Arguments are those of ``collective_seconds``, without a share of the NICs.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        ranks: npt.ArrayLike,
        ranks_per_node: npt.ArrayLike,
        network_bandwidth: npt.ArrayLike = math.inf,
        network_latency_s: npt.ArrayLike = NETWORK_LATENCY_S,
        scaleup_bandwidth: npt.ArrayLike | None = None,
        pat: bool = True,
    ) -> None:
        n = np.maximum(np.asarray(ranks, dtype=np.float64), 1.0)
        r = np.minimum(np.maximum(np.asarray(ranks_per_node, dtype=np.float64), 1.0), n)
        link = profile.gpu.scaleup_bandwidth if scaleup_bandwidth is None else scaleup_bandwidth
        link, nic = np.asarray(link, dtype=np.float64), np.asarray(network_bandwidth, dtype=np.float64)
        if not (np.all(link > 0) and np.all(nic > 0)):
            raise InputError("bandwidths of a collective must be above 0")
        hop = np.asarray(network_latency_s, dtype=np.float64) / NETWORK_LATENCY_S
        columns = [n, r, link, nic, hop]
        self.shape = n.shape
        if any(x.ndim and x.shape != n.shape for x in columns):
            self.shape = np.broadcast_shapes(*(x.shape for x in columns))
            columns = [np.broadcast_to(x, self.shape) if x.ndim else x for x in columns]
            n, r, link, nic, hop = columns
        self.several = n > 1
        """Groups of more than one rank."""
        self.alone, self.all_several = not self.several.any(), bool(self.several.all())
        home = r >= n
        self.home, self.away = np.flatnonzero(home), np.flatnonzero(~home)
        """Groups inside one domain, and those over several."""
        self.mixed = bool(len(self.home) and len(self.away))
        self.inside = self.outside = None
        if len(self.home) and not self.alone:
            n, r, link, nic, hop = _picked(self.home, columns) if self.mixed else columns
            self.inside = _Inside(profile, n, link)
        if len(self.away):
            n, r, link, nic, hop = _picked(self.away, columns) if self.mixed else columns
            self.outside = _Outside(profile, n, r, link, nic, hop, pat)

    def seconds(self, op: str, size_bytes: npt.ArrayLike) -> Floats:
        """Seconds of one ``op`` in each of the groups. Bytes are one number each; there may be several sizes
        of each, along further dimensions in front."""
        if op not in COLLECTIVES:
            raise UnknownNameError("collective", op, COLLECTIVES, f"known are {', '.join(COLLECTIVES)}")
        size = np.asarray(size_bytes, dtype=np.float64)
        if self.alone:
            return np.zeros(size.shape)
        nothing = not self.all_several or size.min() <= 0
        if nothing:
            size = np.maximum(size, 0.0)
        if self.inside and self.outside:
            table = size.reshape(*size.shape[: size.ndim - len(self.shape)], -1)
            found = np.empty(table.shape)
            found[..., self.home] = self.inside.seconds(op, table.take(self.home, axis=-1))
            found[..., self.away] = self.outside.seconds(op, table.take(self.away, axis=-1))
            found = found.reshape(size.shape)
        else:
            side = self.inside or self.outside
            assert side is not None  # groups are on one side or the other
            found = side.seconds(op, size)
        return np.where(self.several & (size > 0), found, 0.0) if nothing else found


def _picked(index: Ints, columns: list[Floats]) -> list[Floats]:
    return [x.take(index) if x.ndim else x for x in columns]


# ── inside one domain ────────────────────────────────────────────────────────────────────────────


def _measured(profile: Profile, op: str) -> tuple[CollectiveCurve, str]:
    """The curve that ``op`` is read from: broadcast, and messages without one, from all-gather's bytes."""
    name = op if op in profile.collectives else "all_gather"
    return profile.collectives[name], name


class _Inside:
    """Measured time at the same size, log-log between sizes and between group sizes.

    Groups larger than measured: the time that as many bytes on the wire took in the largest group
    measured, ``hop_s`` more for each further rank; all-to-all also loses 4 % of bandwidth a doubling.
    (NVL72: ring all-reduce reaches 680 GB/s among 72 GPUs and 673–682 among 8 of a B200 node, stas00
    ml-engineering.) Slower links stretch all but the shortest time in proportion.
    """

    def __init__(self, profile: Profile, n: Floats, link: Floats) -> None:
        self.profile, self.link, self.n = profile, link, np.maximum(n, 2.0)
        self.most = float(self.n.max())
        self.reach = _reach(profile, link, self.n)
        self.rows: dict[tuple[int, ...], _Rows] = {}

    def seconds(self, op: str, size: Floats) -> Floats:
        """Of one ``op``; bytes broadcast with the groups."""
        profile, n, reach = self.profile, self.n, self.reach
        curve, name = _measured(profile, op)
        if curve.in_switch and not profile.network.nvls:
            return self.seconds("reduce_scatter", size) + self.seconds("all_gather", size)
        grid = _grid(curve.ranks, curve.sizes, curve.seconds)
        largest = float(curve.ranks[-1])
        if op == "p2p":
            pair = np.asarray(2.0)
            size = size * bus_factor(op, pair) / bus_factor(name, pair)
            return _looked_up(
                grid, _rows(grid, pair), size, curve.link_bandwidth / _reach(profile, self.link, pair)
            )
        known = np.minimum(n, largest)
        if op != name or self.most > largest:
            size = size * bus_factor(op, n) / bus_factor(name, known)
        if curve.ranks not in self.rows:
            self.rows[curve.ranks] = _rows(grid, known)
        time = _looked_up(grid, self.rows[curve.ranks], size, curve.link_bandwidth / reach)
        if self.most <= largest:
            return time
        if name == "all_to_all":
            time = time * (1 - _WIDE_LOSS) ** -np.log2(n / known)
        return np.asarray(time + curve.hop_s * (n - known))


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


class _Rows(NamedTuple):
    """Where groups stand in a measured table: at a row, or a share of the way to the next one."""

    at: Ints
    share: Floats | None


def _rows(grid: _Grid, ranks: Floats) -> _Rows:
    """Where groups of ``ranks`` stand, none larger than the largest measured."""
    logs = np.log2(ranks)
    if len(grid.ranks) == 1:
        return _Rows(np.zeros(logs.shape, dtype=np.int64), None)
    row = np.searchsorted(grid.ranks, logs, side="right") - 1
    row = np.minimum(np.maximum(row, 0), len(grid.ranks) - 2)
    share = (logs - grid.ranks.take(row)) / (grid.ranks.take(row + 1) - grid.ranks.take(row))
    whole = share.astype(np.int64)
    if (whole == share).all():  # all of them group sizes that were measured
        return _Rows(row + whole, None)
    return _Rows(row, share)


def _looked_up(grid: _Grid, rows: _Rows, size: Floats, slower: Floats) -> Floats:
    """Time of a size: log-log between the sizes and geometric between the group sizes measured. Links that
    are slower stretch all but the shortest time."""
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

    if rows.share is None:
        return of_row(rows.at)
    return np.asarray(of_row(rows.at) ** (1 - rows.share) * of_row(rows.at + 1) ** rows.share)


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


class _Outside:
    """Of groups over several domains: as measured, or by the predictor."""

    def __init__(
        self, profile: Profile, n: Floats, r: Floats, link: Floats, nic: Floats, hop: Floats, pat: bool
    ) -> None:
        self.profile, self.n, self.r, self.link, self.nic, self.hop = profile, n, r, link, nic, hop
        self.pat, self.nodes = pat, np.maximum(np.ceil(n / r), 2.0)

    def seconds(self, op: str, size: Floats) -> Floats:
        """Of one ``op``; bytes broadcast with the groups."""
        return _as_measured(self.profile, op, size, self.n, self.r, self.nic, self._predicted(op, size))

    @cached_property
    def wires(self) -> Floats:
        """Bytes/s through the NICs of a group's ranks on one node."""
        return np.asarray(self.r * self.nic * self.profile.network.efficiency)

    @cached_property
    def local(self) -> Floats:
        """Bytes/s of its ring inside a node."""
        return np.where(self.r > 1, scaleup_bus(self.profile, "all_gather", self.r, self.link), np.inf)

    @cached_property
    def bandwidth(self) -> Floats:
        """Bytes/s of its ring."""
        return np.minimum(self.local, self.wires)

    @cached_property
    def one_a_node(self) -> Bools:
        """Groups with one rank on each node."""
        return np.asarray(self.r == 1)

    @cached_property
    def hops(self) -> list[Floats]:
        """Seconds that one round of a ring spends on latency, for each protocol: n - 1 steps, of which
        nodes - 1 cross the network."""
        crossing = self.nodes - 1
        inside = self.n - self.nodes
        return [inside * p.ring_hop + crossing * (p.ring_net_hop * self.hop) for p in _PROTOCOLS]

    def _predicted(self, op: str, size: Floats) -> Floats:
        net, nic, hop = self.profile.network, self.nic, self.hop
        if op == "p2p":  # one message through one NIC
            start = _PROTOCOLS[2].ring_base + _PROTOCOLS[0].ring_net_hop * hop
            return np.asarray(start + size / (nic * net.efficiency))
        if op == "all_to_all":
            inner = _Inside(self.profile, self.r, self.link)
            return _all_to_all(inner, size, self.n, self.r, nic * net.all_to_all_efficiency, hop)
        wire = size * bus_factor(op, self.n) / self.bandwidth
        best = self._ring(2.0 if op == "all_reduce" else 1.0, wire)
        others = []
        if op == "all_reduce":
            channel = _TREE_CHANNEL[net.nvls] if self.profile.gpu.scaleup_peer_bandwidth is None else None
            others = _trees(size, self.r, self.nodes, self.local, self.wires, hop, channel)
            if net.nvls:
                others.append(
                    _switch_tree(self.profile, size, self.r, self.nodes, self.link, self.wires, hop)
                )
        elif op in ("all_gather", "reduce_scatter") and self.pat and self.one_a_node.any():
            log = _PROTOCOLS[2].ring_base + np.ceil(np.log2(self.n)) * (_PAT_HOP * hop)
            others.append(np.where(self.one_a_node, log + wire / _PAT_BANDWIDTH, np.inf))
        for other in others:
            best = np.minimum(best, other)
        return best

    def _ring(self, rounds: float, wire: Floats) -> Floats:
        """Ring: base + (steps − network steps)·hop + network steps·network hop + bytes / bandwidth.

        Steps are n − 1 (twice for all-reduce), of which nodes − 1 (twice) cross the network. The ring enters
        and leaves a node once for each NIC, so its bandwidth is the least of NVLink's and r NICs'. ``wire``:
        seconds of the bytes at all of that bandwidth.
        """
        times = [
            (p.ring_base + rounds * latency) + wire / p.bandwidth
            for p, latency in zip(_PROTOCOLS, self.hops, strict=True)
        ]
        return np.minimum(np.minimum(*times[:2]), times[2])


def _trees(
    size: Floats,
    r: Floats,
    nodes: Floats,
    local: Floats,
    wires: Floats,
    hop: Floats,
    channel: tuple[float, float] | None,
) -> list[Floats]:
    """Double binary tree over nodes, a chain inside: 2·S a direction through a node's NICs, S between
    two nodes (each sends its sum once); 2·((r − 1)·hop + log₂ nodes · network hop) of latency. No more than
    ``channel`` bytes/s of the bus in each of r channels."""
    crossings = np.where(nodes > 2, 2.0, 1.0)
    slowest = np.maximum(2.0 / local, crossings / wires) / _TREE_BANDWIDTH
    if channel is not None:
        slowest = np.maximum(slowest, 2.0 / (r * np.where(nodes > 2, channel[1], channel[0])))
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


def _all_to_all(inner: _Inside, size: Floats, n: Floats, r: Floats, nic: Floats, hop: Floats) -> Floats:
    """What leaves the node through the GPU's own NIC, then what stays inside, one after the other.

    Both in a row, at 91 % of the NIC, give 5.7, 8.1 and 9.2 ms for 470 MB a rank over 16, 32 and 64
    H100, as measured (5.77, 8.06, 9.16; arXiv 2603.07685, table 7); overlapping them gives less than
    measured at 16.
    """
    outside = size * (n - r) / n
    latency = _PROTOCOLS[2].ring_net_hop * hop + (n - r) * _MESSAGE_S
    within = np.where(r > 1, inner.seconds("all_to_all", size * r / n), 0.0)
    return np.asarray(latency + outside / nic + within)
