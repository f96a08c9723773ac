"""Collectives: against measurements printed elsewhere, NCCL's formulas by hand, and the links' limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.cluster.collectives import COLLECTIVES, Groups, bus_factor, collective_seconds, scaleup_bus
from meshplan.cluster.profile import load_profile, profile_names
from meshplan.cluster.profile_data import OPS
from meshplan.errors import InputError, UnknownNameError

MIB, GIB = 2**20, 2**30


def bus(gpu: str, op: str, size: float, ranks: int, per_node: int, nic: float = 50e9) -> float:
    """Bus bandwidth as nccl-tests prints it, GB/s."""
    seconds = collective_seconds(
        load_profile(gpu), op, size, ranks=ranks, ranks_per_node=per_node, network_bandwidth=nic
    )
    return float(bus_factor(op, ranks) * size / seconds / 1e9)


# nccl-tests, NCCL 2.27 (aiconfigurator 095f58a5): GB/s at 1, 4, 16, 64, 256, 512 MiB.
@pytest.mark.parametrize(
    ("gpu", "ranks", "op", "printed"),
    [
        ("a100-80gb", 8, "all_reduce", [47, 95, 136, 197, 215, 222]),
        ("a100-80gb", 8, "all_gather", [34, 77, 109, 167, 193, 205]),
        ("h100-sxm", 2, "all_gather", [46, 78, 150, 211, 245, 259]),
        ("h100-sxm", 4, "reduce_scatter", [68, 96, 212, 259, 297, 310]),
        ("h100-sxm", 8, "all_reduce", [72, 145, 241, 362, 430, 445]),
        ("h100-sxm", 8, "all_to_all", [59, 140, 194, 265, 308, 315]),
        ("b200", 8, "all_reduce", [61, 138, 296, 422, 657, 704]),
        ("b200", 8, "reduce_scatter", [45, 135, 151, 431, 593, 613]),
        ("gb200", 4, "all_gather", [52, 121, 212, 465, 544, 564]),
    ],
)
def test_printed_inside_a_node(gpu: str, ranks: int, op: str, printed: list[float]) -> None:
    sizes = [1, 4, 16, 64, 256, 512]
    got = [bus(gpu, op, s * MIB, ranks, 8) for s in sizes]
    # 1 MiB less exactly: where a larger message was measured faster than a smaller one, both are averaged
    assert got[:1] == pytest.approx(printed[:1], rel=0.07)
    assert got[1:] == pytest.approx(printed[1:], rel=0.03)


# Larger than the table: torch all_reduce benchmarks of stas00 ml-engineering, GB/s.
@pytest.mark.parametrize(
    ("gpu", "op", "gib", "printed"),
    [
        ("a100-80gb", "all_reduce", 1, 229),
        ("a100-80gb", "all_reduce", 16, 235),
        ("h200", "all_reduce", 1, 464),
        ("h200", "all_reduce", 16, 482),
        ("h200", "all_gather", 16, 361),
        ("h200", "reduce_scatter", 16, 363),
        ("b200", "all_reduce", 1, 723),
    ],
)
def test_beyond_the_table(gpu: str, op: str, gib: int, printed: float) -> None:
    assert bus(gpu, op, gib * GIB, 8, 8) == pytest.approx(printed, rel=0.05)


def test_all_to_all_of_experts_on_h100_nodes() -> None:
    """470 MB a rank among 8, 16, 32 and 64 H100: µs of arXiv 2603.07685, table 7, dispatch."""
    profile = load_profile("h100-sxm")
    seconds = collective_seconds(
        profile, "all_to_all", 470e6, ranks=[8, 16, 32, 64], ranks_per_node=8, network_bandwidth=50e9
    )
    assert seconds * 1e6 == pytest.approx([1265, 5774, 8059, 9164], rel=0.05)


def test_all_to_all_inside_a_rack() -> None:
    """The same on GB200 NVL72, one NVLink domain: 735, 743, 769, 930 µs."""
    profile = load_profile("gb200")
    seconds = collective_seconds(profile, "all_to_all", 470e6, ranks=[8, 16, 32, 64], ranks_per_node=72)
    assert seconds * 1e6 == pytest.approx([735, 743, 769, 930], rel=0.17)


def test_all_reduce_over_two_and_more_nodes() -> None:
    """H100 nodes with eight 400 Gb/s NICs: 430–470 GB/s on two (tree), 320–370 beyond (nccl #1221, #2409)."""
    assert 420 < bus("h100-sxm", "all_reduce", 512 * MIB, 16, 8) < 495
    for nodes in (4, 8, 16):
        assert 310 < bus("h100-sxm", "all_reduce", 512 * MIB, 8 * nodes, 8) < 375
    assert 150 < bus("a100-80gb", "all_reduce", GIB, 32, 8, nic=25e9) < 195


def test_a_group_drives_as_many_nics_as_it_has_ranks_on_a_node() -> None:
    """Four nodes, 256 MiB: 45 GB/s with four GPUs a node and 90 with eight, of 100 Gb/s each (nccl #1168).
    Two nodes with four GPUs a node and a NIC for each: 159 of 200 GB/s on H100 (nccl #1411), 78 of 100 on
    A100 (nccl-tests #277); a tree of four channels makes nothing of what NVLink has more."""
    for ranks, measured in ((4, 45), (8, 90)):
        found = bus("a100-80gb", "all_reduce", 256 * MIB, 4 * ranks, ranks, nic=12.5e9)
        assert found == pytest.approx(measured, rel=0.06)
    assert bus("h100-sxm", "all_reduce", 256 * MIB, 8, 4) == pytest.approx(159, rel=0.15)
    assert bus("a100-80gb", "all_reduce", GIB, 8, 4, nic=25e9) == pytest.approx(78, rel=0.2)


def test_ring_latency_by_hand() -> None:
    """All-gather of 512 GPUs on 64 nodes, 16 KiB: Simple would take 8.4 + 448·3.4 + 63·14 = 2,414 µs, LL
    6.6 + 448·0.6 + 63·2.7 = 446 µs and is taken; 1 GiB needs 368 GB/s beside Simple's 2,414 µs."""
    profile = load_profile("h100-sxm")

    def microseconds(size: float) -> float:
        seconds = collective_seconds(
            profile, "all_gather", size, ranks=512, ranks_per_node=8, network_bandwidth=50e9
        )
        return float(seconds) * 1e6

    assert microseconds(16384) == pytest.approx(446, rel=0.01)
    bandwidth = min(8 * 50e9 * 0.92, float(scaleup_bus(profile, "all_gather", 8)))
    wire = 511 / 512 * GIB / bandwidth * 1e6
    assert microseconds(GIB) <= 2414 + wire + 1
    assert microseconds(GIB) > wire


def test_one_rank_a_node_has_one_nic() -> None:
    """Data parallel under tp 8: 42–47 GB/s over 400 Gb/s, not NVLink's bandwidth."""
    for op in ("all_reduce", "all_gather", "reduce_scatter"):
        assert 42 < bus("h100-sxm", op, 4 * GIB, 16, 1) < 47


def test_log_steps_help_where_a_node_holds_one_rank() -> None:
    profile = load_profile("h100-sxm")
    old, new = (
        float(
            collective_seconds(
                profile, "all_gather", 64 * MIB, ranks=512, ranks_per_node=1, network_bandwidth=50e9, pat=pat
            )
        )
        for pat in (False, True)
    )
    assert new < 0.8 * old


def test_groups_that_share_nics() -> None:
    profile = load_profile("h100-sxm")
    kwargs = {"ranks": 16, "ranks_per_node": 1}
    alone = collective_seconds(profile, "all_gather", 4 * GIB, network_bandwidth=50e9, **kwargs)
    shared = collective_seconds(profile, "all_gather", 4 * GIB, network_bandwidth=50e9, nic_share=4, **kwargs)
    assert float(shared / alone) == pytest.approx(4, rel=0.02)


def test_a_mesh_gives_a_pair_one_link() -> None:
    """MI300X: 7 links of 64 GB/s; two GPUs have one of them, eight have all."""
    profile = load_profile("mi300x")
    two = float(collective_seconds(profile, "all_gather", GIB, ranks=2, ranks_per_node=8))
    assert two >= 0.5 * GIB / 64e9
    assert two == pytest.approx(0.5 * GIB / (64e9 * 274 / 450), rel=0.05)  # H100's share of its link at 2
    eight = float(collective_seconds(profile, "all_reduce", GIB, ranks=8, ranks_per_node=8))
    assert 2 * 7 / 8 * GIB / eight < 448e9  # no switch that adds up


def test_slower_link_of_the_same_chip() -> None:
    """H800 has 4/9 of H100's NVLink: large messages take 9/4 of the time, small ones the same."""
    h100, h800 = load_profile("h100-sxm"), load_profile("h800")
    for size, ratio in ((GIB, 2.25), (4096, 1.0)):
        fast, slow = (
            float(collective_seconds(p, "all_gather", size, ranks=8, ranks_per_node=8)) for p in (h100, h800)
        )
        assert slow / fast == pytest.approx(ratio, rel=0.03)
    given_link = collective_seconds(
        h100, "all_gather", GIB, ranks=8, ranks_per_node=8, scaleup_bandwidth=200e9
    )
    assert float(given_link) == pytest.approx(
        float(collective_seconds(h800, "all_gather", GIB, ranks=8, ranks_per_node=8)), rel=1e-9
    )


def test_point_to_point() -> None:
    """16.8 MB between H100 nodes: 0.36–0.40 ms through one 400 Gb/s NIC; far less over NVLink."""
    profile = load_profile("h100-sxm")
    across = collective_seconds(profile, "p2p", 16.8e6, ranks=2, ranks_per_node=1, network_bandwidth=50e9)
    assert 0.36e-3 < float(across) < 0.40e-3
    assert float(collective_seconds(profile, "p2p", 16.8e6, ranks=2, ranks_per_node=2)) < 0.15e-3


SIZE = st.floats(1024, 1e11)


@given(
    gpu=st.sampled_from(profile_names()),
    op=st.sampled_from(COLLECTIVES),
    size=SIZE,
    per_node=st.sampled_from([1, 2, 3, 4, 6, 8]),
    nodes=st.sampled_from([1, 2, 3, 4, 16, 100, 1024]),
    nic=st.floats(1e9, 2e11),
)
@settings(max_examples=400, deadline=None)
def test_never_above_the_links_and_rises(
    gpu: str, op: str, size: float, per_node: int, nodes: int, nic: float
) -> None:
    profile = load_profile(gpu)
    n = per_node * nodes

    def seconds(s: float) -> float:
        return float(
            collective_seconds(profile, op, s, ranks=n, ranks_per_node=per_node, network_bandwidth=nic)
        )

    t = seconds(size)
    if n == 1:
        assert t == 0
        return
    assert math.isfinite(t)
    assert t > 0
    assert seconds(size * 1.3) >= t * (1 - 1e-9)
    # What one GPU must send, or a node's NICs must carry, whatever the algorithm.
    least = {"all_reduce": size, "broadcast": 0.0, "p2p": size}.get(op, (n - 1) / n * size)
    if nodes == 1:
        assert t >= least / profile.gpu.scaleup_bandwidth * (1 - 1e-9)
    elif op == "all_to_all":
        assert t >= size * (n - per_node) / n / nic
    elif op in ("all_gather", "reduce_scatter"):  # every node takes in what the others hold
        assert t >= size * (nodes - 1) / nodes / (per_node * nic)
    elif op == "all_reduce":
        assert t >= size / (per_node * nic)


@given(
    gpu=st.sampled_from(["h100-sxm", "b200", "gb200", "a100-80gb"]),
    op=st.sampled_from(OPS),
    size=SIZE,
)
@settings(max_examples=100, deadline=None)
def test_group_sizes_between_those_measured(gpu: str, op: str, size: float) -> None:
    profile = load_profile(gpu)
    two, three, four, six, eight = (
        float(collective_seconds(profile, op, size, ranks=n, ranks_per_node=8)) for n in (2, 3, 4, 6, 8)
    )
    assert min(two, four) <= three * (1 + 1e-9)
    assert three <= max(two, four) * (1 + 1e-9)
    assert min(four, eight) * (1 - 1e-9) <= six <= max(four, eight) * (1 + 1e-9)


def test_shapes_broadcast() -> None:
    profile = load_profile("h100-sxm")
    seconds = collective_seconds(
        profile,
        "all_reduce",
        np.array([1e6, 1e8])[:, None],
        ranks=np.array([1, 8, 16, 64]),
        ranks_per_node=np.array([1, 8, 8, 2]),
        network_bandwidth=50e9,
    )
    assert seconds.shape == (2, 4)
    assert seconds[0, 0] == 0
    one = collective_seconds(profile, "all_reduce", 1e8, ranks=64, ranks_per_node=2, network_bandwidth=50e9)
    assert seconds[1, 3] == pytest.approx(float(one))
    assert float(collective_seconds(profile, "all_reduce", 0.0, ranks=8, ranks_per_node=8)) == 0


@pytest.mark.parametrize("op", COLLECTIVES)
def test_groups_asked_together_take_what_each_takes_alone(op: str) -> None:
    """Groups of one rank, of some and of all of a node, and over nodes; two sizes of each."""
    profile = load_profile("h100-sxm")
    ranks, per_node = np.array([1, 2, 3, 8, 16, 64, 12]), np.array([1, 2, 3, 8, 8, 1, 4])
    sizes = np.array([[1e5, 3e6, 0.0, 2e9, 5e7, 1e6, 4e8], [1e9] * 7])
    groups = Groups(profile, ranks=ranks, ranks_per_node=per_node, network_bandwidth=50e9)
    together = groups.seconds(op, sizes)
    for (row, column), size in np.ndenumerate(sizes):
        n, r = int(ranks[column]), int(per_node[column])
        alone = collective_seconds(profile, op, size, ranks=n, ranks_per_node=r, network_bandwidth=50e9)
        assert together[row, column] == pytest.approx(float(alone), rel=1e-12)
        assert (together[row, column] > 0) == (n > 1 and size > 0)


def test_nonsense_is_refused() -> None:
    profile = load_profile("h100-sxm")
    with pytest.raises(UnknownNameError, match="unknown collective 'all_redcue'; did you mean 'all_reduce'"):
        collective_seconds(profile, "all_redcue", 1e6, ranks=8, ranks_per_node=8)
    with pytest.raises(InputError, match="bandwidths of a collective must be above 0"):
        collective_seconds(profile, "all_reduce", 1e6, ranks=16, ranks_per_node=8, network_bandwidth=0.0)
