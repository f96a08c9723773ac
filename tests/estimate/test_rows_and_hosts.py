"""Rows that do not fill 16 bytes, vocabularies as stacks shard them, and layers timed one at a time."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshplan.cli import main
from meshplan.cluster.curves import unaligned
from meshplan.cluster.presets import cluster_of
from meshplan.cost.full.model import FullModel
from meshplan.cost.full.stack import Stack, load_stack
from meshplan.errors import InputError
from meshplan.model.load import load_model
from meshplan.plan.kinds import CpKind
from meshplan.plan.plans import Plan, Plans
from meshplan.plan.workload import Workload

TABLE = Path(__file__).parents[2].parent / "shared" / "measurements" / "measurements.csv"


def priced(model, stack, *, gbs=8, seq=1024, **degrees):
    cluster = cluster_of("a100-80gb", Plan(**degrees).gpus)
    return FullModel(stack=stack).price(
        model, cluster, Workload(seq=seq, gbs=gbs, precision="fp16"), Plans.of(Plan(**degrees))
    )


def test_rows_of_whole_16_bytes_are_not_slower():
    assert unaligned(50304, 1600, 8) == 1.0
    assert unaligned(16, element_bytes=1.0) == 1.0


def test_an_odd_vocabulary_makes_the_head_three_times_as_slow():
    """Netflix, 'Scaling LLM Post-Training': a head off the multiple took three times as long."""
    assert unaligned(50257, 4096) == pytest.approx(3.0, rel=0.05)
    # The worse aligned, the slower: multiples of 8, 4 and 2 elements, and odd ones.
    slower = unaligned(np.array([25128, 12564, 6282, 50257]))
    assert slower[0] == 1.0
    assert np.all(np.diff(slower) > 0)


def test_the_worst_row_decides_and_shards_are_whole_columns():
    assert unaligned(50257, 4096) == unaligned(4096, 50257) == unaligned(50256.5)


def test_only_frameworks_that_do_not_pad_pay_for_the_vocabulary():
    """GPT-2's 50,257 words: Megatron pads them to 50,304, torchtitan does not pad."""
    gpt2 = load_model("gpt2-xl")
    assert gpt2.vocab == 50257
    padded = replace(gpt2, vocab=50304)

    def head(model, name):
        costs = priced(model, load_stack(name), dp=1, tp=1, mbs=1)
        return float(costs.time["head and loss"][0])

    assert head(gpt2, "megatron-2023") == head(padded, "megatron-2023")
    assert 1.7 < head(gpt2, "torchtitan") / head(padded, "torchtitan") < 3.0  # the loss is no product


def test_an_unknown_way_to_shard_the_vocabulary_is_refused():
    with pytest.raises(InputError, match="padded, uneven or cut"):
        Stack(name="x", title="x", vocabulary="tidy")


def test_layers_timed_one_by_one_do_not_hide_the_host_under_the_head():
    """A host of 10 ms a layer and way, far above any kernel here: two layers both ways are 40 ms of a
    micro-batch, and the head's work and 3 ms of its own come on top."""
    gpt2 = load_model("gpt2-xl")
    model = replace(gpt2, layers=gpt2.layers[:2])
    stack = replace(load_stack("torchtitan"), one_by_one=True, host_layer_s=0.01, host_micro_s=0.003)
    costs = priced(model, stack, gbs=8, dp=1, tp=1, mbs=1)
    waits = sum(float(costs.time[part][0]) for part in ("host", "matmul", "attention", "elementwise"))
    embedding = 8 * 0.2e-3  # at most
    assert 8 * 0.043 <= waits <= 8 * 0.043 + embedding
    hidden = priced(model, replace(stack, one_by_one=False), gbs=8, dp=1, tp=1, mbs=1)
    assert costs.step_s[0] > hidden.step_s[0]


def test_times_of_the_vtrain_node_are_sums_of_few_layers():
    """What ``one_by_one`` of the stack says: with everything else the same, equal numbers of micro-batches
    add equal times, to a nanosecond."""
    if not TABLE.exists():
        pytest.skip("the large table of published runs is not here: claim about vTrain's rows not checked")
    runs = defaultdict(dict)
    with TABLE.open(encoding="utf-8") as lines:
        header = next(lines).rstrip("\n").split(",")
        for line in lines:
            row = dict(zip(header, line.split(","), strict=False))
            if row["id"].startswith("vtrain-s"):
                key = tuple(row[c] for c in ("hidden", "layers", "tp", "pp", "dp", "mbs"))
                count = float(row["gbs"]) / float(row["dp"]) / float(row["mbs"])
                runs[key][count] = float(row["step_s"])
    checked = 0
    for times in runs.values():
        if {2.0, 4.0, 8.0} <= times.keys():
            assert (times[8.0] - times[4.0]) / (times[4.0] - times[2.0]) == pytest.approx(2.0, abs=1e-6)
            checked += 1
    assert checked > 50


def test_a_blocking_pipeline_waits_for_both_sends_of_every_micro_batch():
    """nanotron sends activations and gradients one after the other and waits: 32 micro-batches send twice
    4,096 · 4,096 · 2 bytes, 33.6 MB over 50 GB/s, 0.67 ms at line rate."""
    stack = replace(load_stack("nanotron"), network_rate=1.0)
    plan = {"pp": 4, "tp": 1, "dp": 1, "mbs": 1}
    model, cluster = load_model("llama-2-7b"), cluster_of("h100-sxm", 4, gpus_per_node=1)

    def sending(**changes):
        full = FullModel(stack=replace(stack, **changes))
        work = Workload(seq=4096, gbs=32)
        return float(full.price(model, cluster, work, Plans.of(Plan(**plan))).time["pp"][0])

    assert load_stack("nanotron").p2p_blocking
    more = sending() - sending(p2p_blocking=False)
    assert 2 * 32 * 0.67e-3 <= more <= 1.3 * 2 * 32 * 0.67e-3


def test_an_estimate_says_that_the_head_is_unaligned(capsys):
    line = "estimate gpt2-xl --gpu a100-80gb --gpus 8 --dp 8 --seq 1024 --gbs 64"
    assert main([*line.split(), "--framework", "torchtitan"]) == 0
    assert "a head of 50,257 columns a rank, no multiple of 8" in " ".join(capsys.readouterr().out.split())
    assert main([*line.split(), "--framework", "megatron"]) == 0
    assert "no multiple of 8" not in capsys.readouterr().out


@pytest.mark.parametrize(("sp", "transfers"), [(False, 4), (True, 8)])
def test_every_tensor_parallel_transfer_waits_for_the_last_rank(sp, transfers):
    """Two layers, four micro-batches, 1 ms a transfer: a layer has two blocks, each with one all-reduce
    forward and one backward, or with an all-gather and a reduce-scatter in its place (arXiv 2205.05198).
    Embedding and gradient of the head's input are all-reduced; with SP there are two gathers as well."""
    gpt2 = load_model("gpt2-xl")
    model = replace(gpt2, layers=gpt2.layers[:2])
    plan = {"pp": 1, "tp": 2, "sp": sp, "dp": 1, "mbs": 1}
    cluster, work = cluster_of("a100-80gb", 2), Workload(seq=1024, gbs=4)

    def transferring(stack):
        full = FullModel(stack=stack)
        return float(full.price(model, cluster, work, Plans.of(Plan(**plan))).time["tp"][0])

    stack = replace(load_stack("megatron-2022"), tp_exposed=1.0, head_overlap=False)
    more = transferring(replace(stack, tp_wait_s=1e-3)) - transferring(stack)
    assert more == pytest.approx(4 * (2 * transfers + transfers / 2) * 1e-3)


def test_ulysses_repeats_kv_heads_that_are_fewer_than_ranks():
    """Llama 3.1 8B: 32 query heads of 128, 8 KV heads. Over 16 ranks of one domain each KV head goes to two:
    (4,096 · 2 + 2 · 2 · 1,024) features of a token instead of (4,096 · 2 + 2 · 1,024), 1.2 times as many."""
    one_layer = replace(load_model("llama-3.1-8b"), layers=load_model("llama-3.1-8b").layers[:1])
    attention = one_layer.layers[0].attention
    cluster, work = cluster_of("gb200", 16), Workload(seq=1 << 20, gbs=1)
    plan = Plans.of(Plan(cp=16, cp_kind=CpKind.ULYSSES, dp=1, mbs=1))

    def moving(heads):
        layer = replace(one_layer.layers[0], attention=replace(attention, kv_heads=heads))
        full = FullModel(stack=load_stack("deepspeed"))
        return float(full.price(replace(one_layer, layers=(layer,)), cluster, work, plan).time["cp"][0])

    features = {heads: 2 * 4096 + 2 * 128 * max(heads, 16) for heads in (8, 16, 32)}
    assert moving(8) == pytest.approx(moving(16), rel=1e-6)
    assert moving(8) / moving(32) == pytest.approx(features[8] / features[32], rel=0.01)
