"""Clusters from flags: tiers, nodes, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan.cluster.cluster import MAX_GPUS, Cluster, Tier
from meshplan.cluster.presets import cluster_of, load_gpu
from meshplan.errors import InputError


def tiers(*spans):
    return tuple(Tier(name=f"t{s}", span=s, bandwidth=1e9, latency_s=1e-6) for s in spans)


def test_the_textbooks_cluster():
    cluster = cluster_of("h100-sxm", 64)
    assert [(t.span, t.bandwidth) for t in cluster.tiers] == [(8, 450e9), (64, 50e9)]
    assert cluster.gpus_per_node == 8
    assert cluster.memory_fraction is None
    assert cluster.memory_bytes == pytest.approx(0.9 * cluster.gpu.usable_hbm_bytes)


def test_default_latencies_are_nccls():
    """Ring hop, Simple protocol, in NCCL's src/graph/tuning.cc: NVLink 3.4, PCIe 5.7, network 14 µs."""
    assert [t.latency_s for t in cluster_of("h100-sxm", 16).tiers] == [3.4e-6, 14e-6]
    assert [t.latency_s for t in cluster_of("a100-pcie", 16).tiers] == [5.7e-6, 14e-6]


@pytest.mark.parametrize(
    ("gpu", "gpus", "spans"),
    [
        ("h100", 1, [1]),
        ("h100", 5, [5]),
        ("h100", 8, [8]),
        ("h100", 16384, [8, 16384]),
        ("gb200", 8, [8]),
        ("gb200", 72, [72]),
        ("gb200", 144, [72, 144]),
        ("gb200", 512, [64, 512]),  # 64 of a rack's 72 are used
        ("gb300", 256, [64, 256]),
        ("gb200", 300, [60, 300]),
        ("mi250", 128, [4, 128]),
    ],
)
def test_tiers_of_a_preset(gpu, gpus, spans):
    assert [t.span for t in cluster_of(gpu, gpus).tiers] == spans


def test_flags_win_over_the_preset():
    cluster = cluster_of("v100-32gb", 32, gpus_per_node=4, nic="100 Gb/s", memory_fraction=0.95)
    assert [(t.span, t.bandwidth) for t in cluster.tiers] == [(4, 150e9), (32, 12.5e9)]
    assert cluster.memory_bytes == pytest.approx(0.95 * 31.74 * 2**30)


@pytest.mark.parametrize(
    ("gpus", "more", "words"),
    [
        (0, {}, "gpus must be from 1 to 10,000,000, not 0"),
        (-8, {}, "gpus must be from 1 to 10,000,000, not -8"),
        (MAX_GPUS + 8, {}, "gpus must be from 1 to 10,000,000, not 10,000,008"),
        (12, {}, "12 GPUs do not fill whole nodes of 8; use 8 or 16"),
        (65, {}, "use 64 or 72"),
        (64.0, {}, "gpus must be a whole number, not '64.0'"),
        (True, {}, "gpus must be a whole number"),
        (64, {"gpus_per_node": 0}, "gpus_per_node must be from 1 to 10,000,000, not 0"),
        (64, {"gpus_per_node": 7}, "64 GPUs do not fill whole nodes of 7; use 63 or 70"),
        (64, {"nic": "400"}, "nic: '400' has no unit"),
        (64, {"nic": 0.0}, "bandwidth must be positive"),
        (64, {"nic": float("nan")}, "bandwidth must be positive, not nan"),
        (64, {"memory_fraction": 0.0}, "memory_fraction must be above 0 and at most 1"),
        (64, {"memory_fraction": float("nan")}, "memory_fraction must be above 0 and at most 1, not nan"),
        (64, {"memory_fraction": 1.1}, "at most 1, not 1.1"),
    ],
)
def test_flags_that_cannot_be(gpus, more, words):
    with pytest.raises(InputError) as error:
        cluster_of("h100-sxm", gpus, **more)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("gpus", "spans", "words"),
    [
        (64, (), "at least one network tier"),
        (64, (8, 8, 64), "tiers must grow from inside out"),
        (64, (16, 8, 64), "'t8' spans 8 GPUs, 't16' inside it 16"),
        (64, (8, 32), "reach only 32 of 64 GPUs; the last tier 't32' must span 64"),
        (64, (8, 20, 64), "not a multiple of the 8 of 't8' inside it; use 16 or 24"),
    ],
)
def test_tiers_that_cannot_be(gpus, spans, words):
    with pytest.raises(InputError) as error:
        Cluster(gpu=load_gpu("h100"), gpus=gpus, tiers=tiers(*spans))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [("span", 0), ("span", 2.5), ("bandwidth", -1.0), ("latency_s", -1.0), ("latency_s", float("nan"))],
)
def test_a_tier_that_cannot_be(field, value):
    with pytest.raises(InputError, match=r"tier 'x': .*"):
        Tier(**{"name": "x", "span": 8, "bandwidth": 1e9, "latency_s": 0.0, field: value})


def test_tier_of_a_span():
    cluster = Cluster(gpu=load_gpu("h100"), gpus=1024, tiers=tiers(8, 256, 1024))
    assert [cluster.tier_of(s) for s in (1, 8, 9, 256, 257, 1024)] == [0, 0, 1, 1, 2, 2]
    np.testing.assert_array_equal(cluster.tier_of(np.array([[2, 16], [512, 8]])), [[0, 1], [2, 0]])
    with pytest.raises(ValueError, match="no tier spans 1025"):
        cluster.tier_of(1025)


def test_other_numbers_of_gpus():
    cluster = Cluster(gpu=load_gpu("h100"), gpus=1024, tiers=tiers(8, 256, 1024))
    assert [t.span for t in cluster.with_gpus(4).tiers] == [4]
    assert [t.span for t in cluster.with_gpus(64).tiers] == [8, 64]
    assert [t.span for t in cluster.with_gpus(4096).tiers] == [8, 256, 4096]
    assert cluster.with_gpus(1024) == cluster
    with pytest.raises(InputError, match="use 8 or 16"):
        cluster.with_gpus(9)


@given(st.integers(1, 100_000), st.integers(1, 128))
def test_any_count_makes_a_cluster_or_names_counts_that_do(gpus, node):
    counts = [gpus]
    try:
        cluster_of("h100", gpus, gpus_per_node=node)
    except InputError as error:
        words = str(error).split()
        at = words.index("use")
        counts = [int(words[at + 1]), int(words[at + 3].rstrip(","))]
    for count in counts:
        cluster = cluster_of("h100", count, gpus_per_node=node)
        assert cluster.tiers[-1].span == count
        assert count <= node or count % cluster.gpus_per_node == 0
